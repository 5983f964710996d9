"""Checks of a method when it is built: its rules must fit together, and fit the places where they stand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from fedkeel.core.objective import Objective
from fedkeel.core.rule import STAGES, Rule, State, Weighting
from fedkeel.core.trees import Tree
from fedkeel.errors import MethodError, nearest
from fedkeel.text import in_one_line

if TYPE_CHECKING:
    from fedkeel.core.method import Method, Phase

CLIENT_FACTS = ("size", "steps", "lr", "client", "histogram")
"""Facts known of a client; a client slot of such a name holds the fact in every round."""

FACTS = (*CLIENT_FACTS, "population", "loss", "learned", "weights", "update", "delta")
"""Names that reports hold beside the slots of rules."""

ASKED = ("histogram", "key")
"""Facts that objectives are given where they ask for them."""

RESERVED = ("params", "buffers", "own_buffers")
"""Slots of the model itself; "own_buffers" are those of a model that a client does not send."""

GRADIENT = "gradient"
"""The name that a rule lists in `reads` when it uses `at.gradient`."""

NEVER_CALLED = {
    "personal": {"scale_rate", "step"},
    "server": {"scale_rate", "start", "step"},
    "weights": {"scale_rate", "start", "step"},
    "server_phase": {"server_slots", "client_slots", "broadcast", "server_step", "remember", "deploy"},
    "final": {"server_step"},
}
"""By place: the stages that are never called for a rule in that place. In the phases of clients all are called."""


def check_method(method: Method) -> None:
    """Refuse a method whose rules do not fit together, before anything runs."""
    if not method.name.strip():
        raise MethodError(f"a method needs a name, not {method.name!r}.", 'for example name = "mine"')
    if not any(phase.uploads for phase in method.phases):
        raise MethodError(
            f"no phase of {method.name!r} uploads, so its clients would send nothing.", "set uploads=True on one phase"
        )
    for place, rules in _list_chains(method):
        _check_chain(method, place, rules)
    for phase in method.all_phases:
        _check_phase(method, phase)
    _check_slots(method)


def name_of(rule: Rule) -> str:
    """Return the name of the rule's class, or of the class of the rule that a wrapper stands for."""
    inner = getattr(rule, "stands_for", None)
    return type(rule).__name__ if inner is None else name_of(inner)


# ---- places --------------------------------------------------------------------------------------------------------
def _list_chains(method: Method) -> Iterator[tuple[str, tuple[Rule, ...]]]:
    """Yield every chain of rules with the name of its place."""
    for phase in method.phases:
        yield from phase.chains
    for place, other in (("server_phase", method.server_phase), ("final", method.final)):
        if other is not None:
            yield from ((place, rules) for _, rules in other.chains)
    yield "server", method.server
    yield "personal", method.personal
    yield "weights", (method.weights,)


def _check_chain(method: Method, place: str, rules: tuple[Rule, ...]) -> None:
    """Refuse a rule that would keep its state twice, or whose stages would never be called in its place."""
    trained = {rule for phase in method.phases for rule in phase.rules}
    for i, rule in enumerate(rules):
        if rule in rules[:i] and _slots_of(rule):
            raise MethodError(
                f"{name_of(rule)} stands twice in {place} of {method.name!r}, and would keep its state twice.",
                "use it once",
            )
        if isinstance(rule, Weighting) and place != "weights":
            raise MethodError(
                f"{name_of(rule)} weighs clients, and does nothing in {place} of {method.name!r}.",
                f"weights={name_of(rule)}(…)",
            )
        uncalled = rule.stages & NEVER_CALLED.get(place, set())
        if place == "final" and rule in trained:
            continue
        if uncalled:
            stage = min(uncalled, key=STAGES.index)
            raise MethodError(
                f"{name_of(rule)} stands in {place} of {method.name!r}, where its {stage} is never called.",
                "put it into the perturb or gradient chain of a phase"
                if place != "final"
                else "put it into a phase of the rounds, too",
            )
        if not rule.stages and place in ("perturb", "personal", "server"):
            raise MethodError(
                f"{name_of(rule)} does nothing in {place} of {method.name!r}.",
                "put it into the gradient chain of a phase that trains",
            )


def _check_phase(method: Method, phase: Phase) -> None:
    """Refuse rules that need what their phase does not have."""
    if phase.trains and not phase.objective.differentiable:
        raise MethodError(f"a phase of {method.name!r} trains on {phase.objective!r}, of which no gradient is taken.",
                          "trains=False, or objective=fk.Loss()")  # fmt: skip
    if not isinstance(phase.ascends, Objective | None):
        raise MethodError(
            f"what {name_of(phase.perturb[0])} climbs on must be an Objective, not {phase.ascends!r}.",
            "for example needs_gradient = fk.Loss()",
        )
    for objective in filter(None, (phase.objective, phase.ascends)):
        for fact in set(objective.asks) - set(ASKED):
            raise MethodError(
                f"{type(objective).__name__} of {method.name!r} asks for {fact!r}, which objectives are not given.",
                nearest(fact, ASKED, "facts"),
            )
    for rule in (*phase.perturb[1:], *phase.gradient):
        if rule.needs_gradient is not None:
            raise MethodError(
                f"{name_of(rule)} climbs along a gradient, but is not first in the perturb chain of {method.name!r}.",
                "put it first; filters follow it",
            )
    if phase.perturb and phase.perturb[0].filters:
        name = name_of(phase.perturb[0])
        raise MethodError(
            f"{name} is first in a perturb chain of {method.name!r}, where there is no perturbation to change yet.",
            f"put a rule that perturbs before it: Sam(0.1), {name}(…); or {name} into the gradient chain",
        )
    optimisers = [rule for rule in phase.rules if rule.optimiser]
    if len(optimisers) > 1:
        raise MethodError(
            f"{name_of(optimisers[0])} and {name_of(optimisers[1])} are both optimisers of one phase of "
            f"{method.name!r}.",
            "leave one of them out",
        )
    for rule in phase.perturb:
        if rule.optimiser:
            raise MethodError(
                f"{name_of(rule)} is an optimiser, and stands in the perturb chain of {method.name!r}.",
                "put it at the end of the gradient chain",
            )
    for rule in phase.gradient:
        if GRADIENT in rule.reads and not phase.ascends:
            raise MethodError(
                f"{name_of(rule)} reads the gradient before the climb, but its phase of {method.name!r} takes none.",
                "put a rule that climbs along one first into perturb: Sam(0.1)",
            )
        if not rule.stages and not phase.trains:
            raise MethodError(
                f"{name_of(rule)} does nothing in a phase of {method.name!r} that does not train.",
                "put it into the gradient chain of a phase that trains",
            )
    for rule in phase.perturb:
        if "loss" in rule.reads:
            raise MethodError(
                f"{name_of(rule)} reads the loss, which a perturb chain of {method.name!r} comes before.",
                "put it into the gradient chain",
            )


# ---- slots ---------------------------------------------------------------------------------------------------------
def _sample_tree() -> Tree:
    return Tree.of({"weight": torch.zeros(2, 2), "bias": torch.zeros(2)})


def _slots_of(rule: Rule) -> State:
    return {**_try_slots(rule, "server_slots"), **_try_slots(rule, "client_slots"), **_try_slots(rule, "round_slots")}


def _try_slots(rule: Rule, stage: str) -> State:
    """Call a slot function with a made-up model: only the names and kinds of its slots count."""
    try:
        slots: Any = getattr(rule, stage)(_sample_tree())
    except (KeyError, IndexError, ValueError, RuntimeError) as error:
        raise MethodError(
            f"{name_of(rule)}.{stage} fails on a made-up model of 'weight' [2, 2] and 'bias' [2], which it is tried on "
            f"when a method is built: {type(error).__name__}: {in_one_line(error)}.",
            "take layers by params.only(…), which any model has, or their names and shapes in settled(setting)",
        ) from error
    if not isinstance(slots, dict):
        line = f"{name_of(rule)}.{stage} must return slots by name, not {type(slots).__name__}."
        raise MethodError(line, 'return {"velocity": params.zeros()}, or {} where there are none')
    return State(slots)


def _check_slots(method: Method) -> None:
    owners: dict[str, Rule] = {}
    for rule in method.rules:
        _check_slot_names(rule)
        for slot, value in _slots_of(rule).items():
            if not isinstance(value, Tree | torch.Tensor):
                raise MethodError(
                    f"slot {slot!r} of {name_of(rule)} must be a tree or a tensor, not {type(value).__name__}.",
                    "params.zeros(), or params.scalar(0.0) for a number",
                )
            if slot in owners:
                raise MethodError(
                    f"{name_of(owners[slot])} and {name_of(rule)} of {method.name!r} both keep {slot!r}.",
                    "use one of them, or give one slot another name",
                )
            owners[slot] = rule
    for rule in method.rules:
        for slot in rule.reads:
            if slot not in (*owners, *FACTS, *RESERVED, GRADIENT):
                raise MethodError(
                    f"{name_of(rule)} reads slot {slot!r}, which no rule of {method.name!r} keeps.",
                    f"add the rule that keeps {slot!r}",
                )


def _check_slot_names(rule: Rule) -> None:
    """Refuse slots whose name is taken by a fact, by the model or by another slot of the client."""
    names_taken = {stage: set(FACTS) for stage in ("server_slots", "client_slots", "round_slots")}
    names_taken["client_slots"] -= set(CLIENT_FACTS)
    for stage, taken in names_taken.items():
        for slot in _try_slots(rule, stage):
            if slot in taken or slot in RESERVED or not isinstance(slot, str):
                raise MethodError(
                    f"{name_of(rule)} keeps a slot called {slot!r}, which is the name of something else.",
                    f'call it otherwise: "own_{slot}"',
                )
    for declared, stage in (("means", "server_slots"), ("adds", "client_slots")):
        for slot in set(getattr(rule, declared)) - _try_slots(rule, stage).keys():
            line = f"{name_of(rule)} names {slot!r} in `{declared}`, but keeps no such slot in {stage}."
            raise MethodError(line, f"name a slot that {stage} returns")
    for slot in _try_slots(rule, "client_slots").keys() & _try_slots(rule, "round_slots").keys():
        raise MethodError(
            f"{name_of(rule)} keeps {slot!r} both in client_slots and in round_slots.",
            "what lasts for a round only belongs into round_slots alone",
        )


# ---- what stages return --------------------------------------------------------------------------------------------
def check_same_slots(rule: Rule, stage: str, side: str, before: State, after: State) -> None:
    """Refuse slots of the "client" or the "server" that appear, disappear or change their shape.

    A tensor of the server may grow or shrink along its first axis: it knows the clients one after another. A slot laid
    out like the model's buffers may be added: `server_slots` is not given them.
    """
    if after is before:
        return
    check_kept_slots(rule, stage, side, before, after)
    for slot, new in after.items():
        if slot not in before:
            if side == "server" and "buffers" in before and shape_of(new) == shape_of(before["buffers"]):
                continue
            raise MethodError(
                f"{name_of(rule)}.{stage} adds slot {slot!r}: {_same_slots(side)}.",
                f"keep it from the start: def {side}_slots(self, params): return {{{slot!r}: params.zeros()}}",
            )
        if shape_of(new) != shape_of(before[slot]) and not (side == "server" and _grows(before[slot], new)):
            model = slot in RESERVED
            raise MethodError(
                f"{name_of(rule)}.{stage} changes the shape of slot {slot!r}.",
                "the model has one layout all the time" if model else f"give it its shape in {side}_slots",
            )


def _grows(old: object, new: object) -> bool:
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return False
    return 0 < old.dim() == new.dim() and old.shape[1:] == new.shape[1:]


def check_kept_slots(rule: Rule, stage: str, what: str, before: State, after: State) -> None:
    """Refuse a state, message, report or model that lacks something which the rule was given."""
    for slot in before:
        if slot not in after:
            line = f"{name_of(rule)}.{stage} lacks slot {slot!r}: {_same_slots(what)}."
            raise MethodError(line, f"return {what} | {{…}}")


def _same_slots(what: str) -> str:
    if what in ("client", "server"):
        return f"{'a' if what == 'client' else 'the'} {what} has the same slots all the time"
    return f"a rule returns the {what} that it was given, with what it adds"


def shape_of(slot: object) -> object:
    """What stays the same of a slot in all rounds and at all clients."""
    if isinstance(slot, Tree):
        return slot.layout, tuple(slot.buffer.shape)
    return tuple(slot.shape) if isinstance(slot, torch.Tensor) else type(slot)
