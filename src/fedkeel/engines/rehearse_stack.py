"""A round of two clients, stacked and one by one, which finds rules that are wrong to say stackable = True."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedkeel.core.contract import name_of
from fedkeel.core.layout import Layout, layout
from fedkeel.core.local_step import Gradient, StepInput
from fedkeel.core.method import Method
from fedkeel.core.objective import Objective
from fedkeel.core.round import PhaseWork, broadcast, init_client, init_server, lift_nothing, local_round, server_round
from fedkeel.core.rule import LOCAL_STAGES, Rule, Setting, State, Weighting
from fedkeel.core.trees import Tree, all_finite, stack, tensors
from fedkeel.engines.stacked.client_mapping import choose_lift, lift_by_broadcast
from fedkeel.engines.watched_rules import RETURNS, Watched, WatchedWeighting
from fedkeel.errors import MethodError
from fedkeel.randomness import keyed_normals
from fedkeel.text import in_one_line

ALONG_LAST_AXIS = "a rule that says stackable = True works along the last axis: tree.norm(), number[..., None] * vector"
FAR, NEAR_ZERO = 1e-3, 1e-5
"""How far what a rule makes may lie apart, so that rounding in float32 is no fault: of its norm, and beside it."""
CPU, STEPS, SIDE = torch.device("cpu"), 2, 3
SIZES = (3.0, 7.0)


class Note(NamedTuple):
    """What a rule made at a stage; None where it failed."""

    rule: Rule
    stage: str
    made: Any = None


@dataclass(frozen=True)
class Noted(Watched):
    """A rule that notes what its clients' stages make."""

    notes: deque[Note] = field(default_factory=deque, compare=False, repr=False)  # a list would become a tuple

    def call(self, stage: str, *given: Any) -> Any:
        self.notes.append(Note(self.stands_for, stage))
        made = getattr(self.stands_for, stage)(*given)
        self.notes[-1] = self.notes[-1]._replace(made=made)
        return made


@dataclass(frozen=True)
class NotedWeighting(Noted, WatchedWeighting):
    """A weighting that does so."""


def rehearse_stack(method: Method, setting: Setting) -> None:
    """Refuse a method with a rule of the user's own that says stackable = True and mixes stacked clients.

    It is tried on a small model whose parameters have the names and axes of the whole one. A method that cannot be
    trained there is not judged.
    """
    called = [rule for rule in method.local_rules if rule.stages & LOCAL_STAGES]
    if any(map(is_own, called)) and choose_lift(method, CPU) is lift_by_broadcast:
        fault = compare_stack(method, setting)
        if fault is not None and is_own(fault.rule):
            line = f"{name_of(fault.rule)} says stackable = True, but mixes clients: its {fault.stage} {fault.made}."
            raise MethodError(line, f"{ALONG_LAST_AXIS}; or leave stackable = True out")


def is_own(rule: Rule) -> bool:
    """Whether a rule, or one inside it, is not the library's."""
    parts = [one for value in vars(rule).values() for one in (value if isinstance(value, tuple) else (value,))]
    return type(rule).__module__.partition(".")[0] != __name__.partition(".")[0] or any(
        is_own(part) for part in parts if isinstance(part, Rule)
    )


@torch.no_grad()
def compare_stack(method: Method, setting: Setting) -> Note | None:
    """Train two clients for two rounds, each alone and both stacked; find the first rule that makes something else."""
    notes: deque[Note] = deque()
    whole = setting.layout.shapes.items()
    small = layout(tuple((name, tuple(min(side, SIDE) for side in shape)) for name, shape in whole))
    with suppress(Exception):  # of a client alone, or of the server: this is not the model that the method is for
        settled = method.map_rules(lambda rule: rule.settled(setting._replace(layout=small)))
        noted = settled.map_rules(partial(note, notes))
        params = 0.1 * invent(0, small)
        server, states = init_server(noted, params), [init_client(noted, params) for _ in SIZES]
        for round in range(2):
            message = broadcast(noted, server)
            apart = [record(notes, noted, message, state, round, i) for i, state in enumerate(states)]
            fault = find_fault(record(notes, noted, message, stack(states), round, None), apart)
            if fault is not None:
                return fault
            reports = stack([one.report for one in apart]) | {"population": params.scalar(2.0)}
            server, states = server_round(noted, server, reports), [one.state for one in apart]
    return None


def note(notes: deque[Note], rule: Rule) -> Rule:
    return (NotedWeighting if isinstance(rule, Weighting) else Noted)(rule, notes=notes)


def invent(number: int, like: Layout) -> Tree:
    return Tree(keyed_normals(torch.tensor(number), like.size), like)


class Trained(NamedTuple):
    """What the rules of a client made, or those of both at once; and the error of the last one, if it failed."""

    notes: list[Note]
    report: State
    state: State
    error: str = ""


def record(notes: deque[Note], method: Method, message: State, state: State, round: int, client: int | None) -> Trained:
    """Train a client, or with None both, stacked, on gradients that are made up."""
    notes.clear()
    like, each = message["params"].layout, range(len(SIZES)) if client is None else [client]

    def given(make: Callable[[int], Any]) -> Any:
        values = [make(one) for one in each]
        return stack(values) if client is None else values[0]

    def number(value: float) -> Tensor:
        return torch.tensor(value, dtype=torch.float64)

    def step_input(phase: int, step: int) -> StepInput:
        def scaled(one: int) -> Tree:
            return (1 + 2.0 * one) * invent(100 * round + 10 * phase + 2 * step + one + 1, like)

        return StepInput(given(scaled), torch.tensor(step), torch.tensor(0))

    shares = given(lambda _: torch.full((STEPS,), 1 / STEPS, dtype=torch.float64))
    work = [PhaseWork([step_input(i, step) for step in range(STEPS)], shares) for i in range(len(method.phases))]
    made = {
        "size": given(lambda one: number(SIZES[one])), "steps": given(lambda _: number(STEPS)),
        "lr": given(lambda _: number(0.1)), "client": given(lambda one: number(one)),
        "histogram": given(lambda one: number(SIZES[one]).expand(SIDE)),
    }  # fmt: skip
    facts = {name: fact for name, fact in made.items() if name not in ("client", "histogram") or name in method.asks}
    lift = lift_by_broadcast if client is None else lift_nothing
    try:
        report, after = local_round(method, gradient, message, state, work, number(0.1), facts, lift=lift)
    except Exception as error:
        if client is not None:
            raise
        return Trained([*notes], {}, {}, in_one_line(error))
    return Trained([*notes], report, after)


def gradient(params: Tree, batch: Tree, objective: Objective, message: State, buffers: Tree | None) -> Gradient:
    return Gradient(batch + 0.1 * params, 1 + batch.buffer[..., 0].abs(), buffers)


def find_fault(together: Trained, apart: Sequence[Trained]) -> Note | None:
    """The first rule that makes something else of a stack than of each client, or that fails; and what it does."""
    for one, *others in zip(together.notes, *(client.notes for client in apart), strict=False):
        if one.made is None:
            return one._replace(made=f"fails for stacked clients: {together.error}")
        if not all_finite([other.made for other in others]):
            return None  # what follows is no number, either
        for place, slot in parts_of(one).items():
            if any(is_far(slot, parts_of(other)[place], client) for client, other in enumerate(others)):
                what = repr(place[1]) if place[1] else place[0]
                return one._replace(made=f"makes another {what} of stacked clients than of each alone")
    return None


def parts_of(note: Note) -> dict[tuple[str, str], Tree | Tensor]:
    """What a stage returned: a tree by its word, the slots of a state by its word and their names."""
    words = RETURNS[note.stage][1].split(", ")
    parts = zip(words, ({"": part} if isinstance(part, Tree) else part for part in note.made), strict=True)
    return {(word, name): slot for word, part in parts for name, slot in part.items()}


def is_far(stacked: Tree | Tensor, alone: Tree | Tensor, client: int) -> bool:
    """Whether a client's row, or what a stack has in common, is not what the client has alone."""
    (many,), (one,) = tensors(stacked), tensors(alone)
    row = many[client] if many.dim() > one.dim() else many
    if row.shape != one.shape:
        return True
    row, one = row.double(), one.double()
    return not bool((row - one).norm() <= FAR * one.norm() + NEAR_ZERO)
