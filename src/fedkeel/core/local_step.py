"""One local step as a pure function: perturb, take the gradient there, pass it through the rules, step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from fedkeel.core.method import Phase
from fedkeel.core.objective import Objective
from fedkeel.core.rule import Local, Rule, State
from fedkeel.core.trees import Tree, where
from fedkeel.randomness import another_key


class Gradient(NamedTuple):
    """A gradient, the loss it was taken of, and the model's buffers afterwards (None for models without)."""

    tree: Tree
    loss: Tensor
    buffers: Tree | None = None


class GradientOf(Protocol):
    """gradient(params, batch, objective, message, buffers): of one client, or of all that are stacked."""

    def __call__(
        self, params: Tree, batch: Any, objective: Objective, message: State, buffers: Tree | None
    ) -> Gradient: ...


class StepInput(NamedTuple):
    """What differs from step to step."""

    batch: Any
    step: Tensor
    key: Tensor
    active: Tensor | None = None  # None when no step of the phase is padding
    scale: Tensor | None = None  # of the rate; None when no rule of the phase changes it


class PhaseContext(NamedTuple):
    """What stays the same during a phase."""

    start: Tree
    message: State
    lr: Tensor
    steps: Tensor


Carry = tuple[Tree, State]
Body = Callable[[Carry, PhaseContext, StepInput], tuple[Carry, Tensor]]
Lift = Callable[[Callable[..., Any], tuple[Any, ...]], Callable[..., Any]]


def apply_chain(rules: Iterable[Rule], tree: Tree, client: State, at: Local, drawing: int = 0) -> tuple[Tree, State]:
    before = client
    for rule, own in with_own_keys(rules, at, drawing):
        tree, client = rule.step(tree, client, own)
    return tree, keep_axes(before, client)


def with_own_keys(rules: Iterable[Rule], at: Local, drawing: int) -> Iterator[tuple[Rule, Local]]:
    """Each rule with its moment: no two rules draw from one key. `drawing` rules that draw came before these."""
    for rule in rules:
        yield rule, at._replace(key=another_key(at.key, drawing)) if rule.random and drawing else at
        drawing += rule.random


def count_drawing(rules: Iterable[Rule]) -> int:
    return sum(rule.random for rule in rules)


def keep_axes(before: State, after: State) -> State:
    """Give slots back the client axis that a constant does not have: a view. Without such an axis nothing changes."""
    lost: State = {}
    for name, slot in after.items() if after is not before else ():
        old: Any = before.get(name, slot)
        if isinstance(slot, Tree):
            if slot.buffer.dim() < old.buffer.dim():
                lost[name] = slot.expand(len(old.buffer))
        elif slot.dim() < old.dim():
            lost[name] = slot.expand(len(old), *slot.shape)
    return after | lost if lost else after


def add_own_teachers(objective: Objective, message: State, carry: Carry, lift: Lift, axis: int | None) -> State:
    """The message with those models that the objective compares with and the client itself keeps.

    It then has a client axis.
    """
    params, client = carry
    own = {slot: client[slot] for slot in objective.teachers if slot in client and slot not in message}
    return lift(lambda message, own, params: message | own, (axis, 0, 0))(message, own, params) if own else message


def make_local_step(phase: Phase, gradient: GradientOf, lift: Lift, padded: bool, axis: int | None) -> Body:
    """Make the body of a phase: perturb, take the gradient there, pass it through the chain, step.

    `axis` is the client axis of the message and the learning rate: None where all clients got the same.
    """

    def climb(
        g: Tree | None, client: State, params: Tree, start: Tree, message: State, lr: Tensor, steps: Tensor,
        step: Tensor, key: Tensor,
    ) -> tuple[Tree, State]:  # fmt: skip
        at = Local(params, start, message, g, lr, step, steps, key)
        perturbation, client = apply_chain(phase.perturb, params.zeros() if g is None else g, client, at)
        return params + perturbation, client

    def move(
        g: Tree, before: Tree | None, client: State, params: Tree, start: Tree, message: State, lr: Tensor,
        steps: Tensor, step: Tensor, key: Tensor, active: Tensor | None, old: State, loss: Tensor,
    ) -> Carry:  # fmt: skip
        at = Local(params, start, message, before, lr, step, steps, key, loss)
        direction, client = apply_chain(phase.gradient, g, client, at, count_drawing(phase.perturb))
        moved = params.stepped(direction, lr) if phase.trains else params
        if active is None:
            return moved, client
        chosen: Carry = where(active, (moved, client), (params, old))  # a padded step changes nothing
        return chosen

    ascends = phase.ascends
    climbs, same_objective = ascends is not None, ascends == phase.objective
    rate = 0 if phase.varies_rate else axis  # clients with fewer steps are further in them
    climb = lift(climb, (0 if climbs else None, 0, 0, 0, axis, rate, 0, None, 0))
    move = lift(move, (0, 0 if climbs else None, 0, 0, 0, axis, rate, 0, None, 0, 0 if padded else None, 0, 0))

    def body(carry: Carry, context: PhaseContext, given: StepInput) -> tuple[Carry, Tensor]:
        params, client = carry
        start, message, lr, steps = context
        batch, step, key, active, scale = given
        lr = lr if scale is None else lr * scale
        old, point, before, buffers = client, params, None, client.get("buffers")
        if ascends is not None:
            first = gradient(params, batch, ascends, add_own_teachers(ascends, message, carry, lift, axis), buffers)
            before = first.tree
        if phase.perturb:
            point, client = climb(before, client, params, start, message, lr, steps, step, key)
        told = add_own_teachers(phase.objective, message, (params, client), lift, axis)
        second = gradient(point, batch, phase.objective, told, buffers)
        # the statistics of the unperturbed pass, where there is one; its loss, where it is one of the same objective
        buffers = first.buffers if climbs else second.buffers
        if buffers is not None and phase.trains:
            client = client | {"buffers": buffers}
        carry = move(
            second.tree, before, client, params, start, message, lr, steps, step, key, active, old, second.loss
        )
        return carry, first.loss if same_objective else second.loss

    return body
