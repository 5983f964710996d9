"""One federated round as pure functions: the only loops over steps and rules.

Engines differ in three functions that they hand to `local_round`: where gradients come from, how a function of one
client becomes one of many (`lift`), and how a step is repeated (`scan`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedkeel.core.contract import name_of
from fedkeel.core.method import Method, Phase
from fedkeel.core.objectives import Objective
from fedkeel.core.rule import Local, Rule, State
from fedkeel.core.trees import Tree, where
from fedkeel.errors import MethodError


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


class Moment(NamedTuple):
    """What changes from step to step."""

    batch: Any
    step: Tensor
    key: Tensor
    active: Tensor | None = None  # None when no step of the phase is padding


class Fixed(NamedTuple):
    """What stays during a phase."""

    start: Tree
    message: State
    lr: Tensor
    steps: Tensor


Carry = tuple[Tree, State]
Body = Callable[[Carry, Fixed, Moment], tuple[Carry, Tensor]]
Lift = Callable[[Callable[..., Any], tuple[Any, ...]], Callable[..., Any]]


class Stretch(NamedTuple):
    """One phase's work: its moments, and the share of the samples in each."""

    moments: Iterable[Moment]
    shares: Tensor
    padded: bool = False


def alone(f: Callable[..., Any], dims: tuple[Any, ...]) -> Callable[..., Any]:
    """The lift of one client: nothing."""
    return f


def one_by_one(phase: Phase, body: Body, carry: Carry, fixed: Fixed, moments: Iterable[Moment]) -> tuple[Carry, Tensor]:
    """The plain scan: call the body for each moment."""
    losses = []
    for moment in moments:
        carry, loss = body(carry, fixed, moment)
        losses.append(loss)
    return carry, torch.stack(losses, -1)


# ---- state ---------------------------------------------------------------------------------------------------------
def init_server(method: Method, params: Tree, buffers: Tree | None = None) -> State:
    server: State = {"params": params} | ({} if buffers is None else {"buffers": buffers})
    for rule in method.rules:
        server |= rule.server_slots(params)
    return server


def init_client(method: Method, params: Tree, buffers: Tree | None = None) -> State:
    """What a client remembers before it first takes part; from w_0, so that it does not matter when it joins."""
    client: State = {} if buffers is None else {"buffers": buffers}
    for rule in method.rules:
        client |= rule.client_slots(params)
    return client


def broadcast(method: Method, server: State) -> State:
    message: State = {"params": server["params"]}
    for rule in method.rules:
        message = rule.broadcast(message, server)
    return message


def begin(method: Method, message: State, client: State) -> tuple[Tree, State]:
    """The model from which a client's last phase would set out, had it just received `message`, and its state then."""
    params: Tree = message["params"]
    for rule in (*method.personal, *(rule for phase in method.phases for rule in phase.rules)):
        params, client = rule.start(params, client, message)
    return params, client


# ---- the client's half ---------------------------------------------------------------------------------------------
def chain(rules: Iterable[Rule], tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
    for rule in rules:
        tree, client = rule.step(tree, client, at)
    return tree, client


def local_step(phase: Phase, gradient: GradientOf, lift: Lift, padded: bool, sent: int | None) -> Body:
    """The body of a phase: perturb, take the gradient there, pass it through the chain, step.

    `sent` is the client axis of what the server sent: None where all clients got the same.
    """

    def climb(
        g: Tree | None, client: State, params: Tree, start: Tree, message: State, lr: Tensor, steps: Tensor,
        step: Tensor, key: Tensor,
    ) -> tuple[Tree, State]:  # fmt: skip
        at = Local(params, start, message, g, lr, step, steps, key)
        perturbation, client = chain(phase.perturb, params.zeros() if g is None else g, client, at)
        return params + perturbation, client

    def move(
        g: Tree, before: Tree | None, client: State, params: Tree, start: Tree, message: State, lr: Tensor,
        steps: Tensor, step: Tensor, key: Tensor, active: Tensor | None, old: State, loss: Tensor,
    ) -> Carry:  # fmt: skip
        at = Local(params, start, message, before, lr, step, steps, key, loss)
        direction, client = chain(phase.gradient, g, client, at)
        moved = params.stepped(direction, lr) if phase.trains else params
        if active is None:
            return moved, client
        chosen: Carry = where(active, (moved, client), (params, old))  # a padded step changes nothing
        return chosen

    ascends = phase.ascends
    climbs, same = ascends is not None, ascends == phase.objective
    climb = lift(climb, (0 if climbs else None, 0, 0, 0, sent, sent, 0, None, 0))
    move = lift(move, (0, 0 if climbs else None, 0, 0, 0, sent, sent, 0, None, 0, 0 if padded else None, 0, 0))

    def body(carry: Carry, fixed: Fixed, moment: Moment) -> tuple[Carry, Tensor]:
        params, client = carry
        start, message, lr, steps = fixed
        batch, step, key, active = moment
        old, point, before, seen = client, params, None, client.get("buffers")
        if ascends is not None:
            first = gradient(params, batch, ascends, message, seen)
            before = first.tree
        if phase.perturb:
            point, client = climb(before, client, params, start, message, lr, steps, step, key)
        second = gradient(point, batch, phase.objective, message, seen)
        # the statistics of the unperturbed pass, where there is one; its loss, where it is one of the same objective
        seen = first.buffers if climbs else second.buffers
        if seen is not None and phase.trains:
            client = client | {"buffers": seen}
        carry = move(
            second.tree, before, client, params, start, message, lr, steps, step, key, active, old, second.loss
        )
        return carry, first.loss if same else second.loss

    return body


@torch.no_grad()  # rules are never differentiated through; gradient() switches it on for itself
def local_round(
    method: Method,
    gradient: GradientOf,
    message: State,
    client: State,
    work: Iterable[Stretch],
    lr: Tensor,
    facts: State,
    *,
    lift: Lift = alone,
    scan: Callable[..., tuple[Carry, Tensor]] = one_by_one,
    sent: int | None = None,
) -> tuple[State, State]:
    """Train from `message`; return (report, client). `work` holds one stretch per phase of the method.

    With `sent` = 0, `message` and `lr` have a client axis: stacked clients of several servers.
    """
    steps = facts["steps"]
    nothing = torch.zeros((), dtype=torch.int64)
    client = client | {name: fact for name, fact in facts.items() if name in client}

    def enter(rules: tuple[Rule, ...], params: Tree, client: State) -> Carry:
        def f(params: Tree, client: State, message: State) -> Carry:
            for rule in rules:
                params, client = rule.start(params, client, message)
            return params, client

        entered: Carry = lift(f, (0, 0, sent))(params, client, message) if rules else (params, client)
        return entered

    def leave(
        rules: tuple[Rule, ...], report: State, client: State, params: Tree, start: Tree, loss: Tensor
    ) -> tuple[State, State]:
        def f(
            report: State, client: State, params: Tree, start: Tree, message: State, lr: Tensor, steps: Tensor,
            loss: Tensor,
        ) -> tuple[State, State]:  # fmt: skip
            at = Local(params, start, message, None, lr, nothing, steps, nothing, loss)
            for rule in rules:
                report, client = rule.finish(report, client, at)
            return report, client

        if not rules:
            return report, client
        left: tuple[State, State] = lift(f, (0, 0, 0, 0, sent, sent, 0, 0))(
            report, client, params, start, message, lr, steps, loss
        )
        return left

    # every client begins where the server says; lifting over the facts gives stacked clients their axis
    params: Tree = lift(lambda message, steps: message["params"], (sent, 0))(message, steps)
    params, client = enter(method.personal, params, client)
    began, report, loss = params, State(), torch.zeros_like(steps)
    for phase, stretch in zip(method.phases, work, strict=True):
        params, client = enter(phase.rules, params, client)
        start = params
        body = local_step(phase, gradient, lift, stretch.padded, sent)
        fixed = Fixed(start, message, lr, steps)
        (params, client), losses = scan(phase, body, (params, client), fixed, stretch.moments)
        # a step that only fills up has no share, and may have no loss
        mean = torch.where(stretch.shares > 0, losses * stretch.shares, 0.0).sum(-1)
        if phase.uploads:
            report["delta"] = lift(lambda p, m: p - m["params"], (0, sent))(params, message)
            loss = mean
        report, client = leave(phase.rules, report, client, params, start, mean)
    report, client = leave((*method.personal, *method.server, method.weights), report, client, params, began, loss)
    return report | facts | {"loss": loss}, client


# ---- the server's half ---------------------------------------------------------------------------------------------
@torch.no_grad()
def server_round(method: Method, server: State, reports: State) -> State:
    """Combine `reports`, which are stacked on a leading client axis, in client order."""
    weights = method.weights(reports, server)
    if not isinstance(weights, Tensor) or weights.shape != reports["lr"].shape:
        what = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise MethodError(f"{name_of(method.weights)} gives one weight for each client, not {what}.")
    update = reports["delta"].average(weights)
    # the plain average, for rules that want it before others changed it
    reports = reports | {"weights": weights, "update": update}
    for rule in method.rules:
        update, server = rule.server_step(update, server, reports)
    params: Tree = server["params"]
    return server | {"params": params | params.only(update.layout) + method.server_lr * update}
