"""Two rounds without gradients, which find what a method's rules do wrong before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial, partialmethod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.contract import FACTS, check_kept_slots, check_same_layout, check_same_slots, name_of
from fedkeel.core.local_step import Gradient, StepInput
from fedkeel.core.method import Method
from fedkeel.core.objective import Objective
from fedkeel.core.round import (
    PhaseWork,
    broadcast,
    deploy,
    init_client,
    init_round,
    init_server,
    local_round,
    server_round,
)
from fedkeel.core.rule import LOCAL_STAGES, Local, Rule, State, Weighting
from fedkeel.core.stacking import check_alike
from fedkeel.core.trees import Tree, all_finite, stack, tensors
from fedkeel.engines.cost import sent
from fedkeel.engines.engine import client_facts
from fedkeel.errors import MethodError
from fedkeel.problems.task import Task
from fedkeel.problems.try_objectives import try_objective
from fedkeel.randomness import list_gpus, read_generators


class Rehearsal(NamedTuple):
    """A message, a report and a state with the right slots, layouts and types; the numbers mean nothing."""

    message: State
    report: State
    state: State


def rehearse(method: Method, task: Task) -> None:
    """Refuse a method whose rules break their contract."""
    gpus = list_gpus(task.device)
    before = read_generators(gpus)
    rehearse_rounds(method, method.map_rules(watch), task)
    if before != read_generators(gpus):  # once more, to see which rule has drawn, if it was a rule
        rehearse_rounds(method, method.map_rules(partial(watch, looks=True)), task)


def rehearse_rounds(method: Method, watched: Method, task: Task) -> None:
    """Two rounds of a client and the server, and the final phase."""
    first = rehearse_client(watched, task)
    for objective in method.objectives:
        models = find_teachers(method, task, objective, first)
        try_objective(task, method, objective, first.message | models)
    server = rehearse_server(watched, task, init_server(watched, task.initial, task.buffers), first)
    deploy(watched, server)
    if all_finite((server, first.state)):  # what is made of no gradient may be no number, and break the next round
        second = rehearse_client(watched, task, broadcast(watched, server), first.state, again=True)
        check_alike(first.report, second.report, lambda slot: reporters(watched, slot))
        rehearse_server(watched, task, server, second)
    if method.final is not None:
        rehearse_client(watched.tuning, task, first.message, first.state)


def find_teachers(method: Method, task: Task, objective: Objective, client: Rehearsal) -> State:
    """Return the models that an objective compares with; refuse what no rule sends or keeps, or what is no model."""
    known = init_round(method, task.initial) | client.state | client.message
    for slot in objective.teachers:
        name = f"{type(objective).__name__} compares with the model {slot!r}"
        if slot not in known:
            raise MethodError(
                f"{name}, which no rule of {method.name!r} sends or keeps at a client.",
                f"add the rule whose broadcast sends {slot!r}, or that keeps it in client_slots",
            )
        if not isinstance(known[slot], Tree) or known[slot].layout != task.initial.layout:
            raise MethodError(f"{name}, which is no whole model.", f"keep it as one: {{{slot!r}: params}}")
    return {slot: known[slot] for slot in objective.teachers}


def rehearse_client(
    method: Method, task: Task, message: State | None = None, state: State | None = None, *, again: bool = False
) -> Rehearsal:
    """Run a client's round of one step in each phase, without its data: of the largest client.

    Or, `again`, one of two steps of the smallest, so that what differs between clients and rounds does so here.
    """
    if message is None:
        message = broadcast(method, init_server(method, task.initial, task.buffers))
    if state is None:
        state = init_client(method, task.initial, task.buffers)
    lr = torch.ones((), dtype=task.dtype, device=task.device)
    nothing, steps, sizes = torch.zeros((), dtype=torch.int64, device=task.device), 1 + again, task.clients.sizes
    inputs = [StepInput(None, nothing + step, nothing) for step in range(steps)]
    work = [PhaseWork(inputs, torch.ones(steps).to(lr) / steps) for _ in method.phases]
    chosen = np.where(sizes > 0, sizes, sizes.max() + 1).argmin() if again else sizes.argmax()
    facts = client_facts(task, int(chosen), steps, lr)
    report, after = local_round(method, _zero_gradient, message, state, work, lr, facts)
    return Rehearsal(message, report, after)


def rehearse_server(watched: Method, task: Task, server: State, client: Rehearsal) -> State:
    """Run the server's half of a round in which one client reported."""
    reports = stack([client.report])
    reports["population"] = reports["lr"].new_ones(())
    if watched.server_phase is not None:
        start = watched.weights.begin(reports, server)
        server_work = Method(watched.name, (watched.server_phase,), watched.weights).map_rules(watch)
        reports["learned"] = rehearse_client(server_work, task, client.message, start).state
    return server_round(watched, server, reports)


def reporters(watched: Method, slot: str) -> Sequence[Rule]:
    """The rule that gave a slot of the reports, as far as one did."""
    return [rule for rule in watched.local_rules if isinstance(rule, Watched) and slot in rule.told][-1:]


def expected_messages(method: Method, task: Task) -> Rehearsal:
    """Return the form of what nodes may send, known in advance, so that no node can make the server reserve memory."""
    message, report, _ = rehearse_client(method, task)
    return Rehearsal(sent(method, message), report, init_client(method, task.initial, task.buffers))


def _zero_gradient(params: Tree, batch: Any, objective: Objective, message: State, buffers: Tree | None) -> Gradient:
    return Gradient(params.zeros(), params.scalar(), buffers)


# ---- rules under watch ---------------------------------------------------------------------------------------------
def watch(rule: Rule, looks: bool = False) -> Rule:
    if isinstance(rule, Watched):
        return rule
    return WatchedWeighting(rule, looks) if isinstance(rule, Weighting) else Watched(rule, looks)


RETURNS: dict[str, tuple[tuple[type, ...], str]] = {
    "broadcast": ((dict,), "the message"),
    "start": ((Tree, dict), "params, client"),
    "step": ((Tree, dict), "tree, client"),
    "finish": ((dict, dict), "report, client"),
    "server_step": ((Tree, dict), "update, server"),
    "remember": ((dict,), "the server's state"),
    "deploy": ((dict,), "the model"),
    "begin": ((dict,), "the state that the server's own phase starts from"),
}
"""By stage: the types that it returns, and how a rule writes them."""


class UnaskedUse(Exception):
    """Raised where a rule uses a key that engines do not make for it."""


class UnaskedKey(Tensor):
    """The key of a step, for a rule that has not said that it draws."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise UnaskedUse


@dataclass(frozen=True)
class Watched(Rule):
    """A rule whose every stage is checked against the contract of rules."""

    stands_for: Rule
    looks: bool = False  # for draws from generators
    told: set[str] = field(default_factory=set, compare=False, repr=False)  # slots of reports that it has given

    def __post_init__(self) -> None:
        for trait in ("needs_gradient", "random", "asks", "reads", "stages"):
            object.__setattr__(self, trait, getattr(self.stands_for, trait))

    def server_slots(self, params: Tree) -> State:
        return self.refuse_draws("server_slots", [params.buffer], lambda: self.stands_for.server_slots(params))

    def client_slots(self, params: Tree) -> State:
        return self.refuse_draws("client_slots", [params.buffer], lambda: self.stands_for.client_slots(params))

    def round_slots(self, params: Tree) -> State:
        return self.refuse_draws("round_slots", [params.buffer], lambda: self.stands_for.round_slots(params))

    def start(self, params: Tree, client: State, message: State) -> tuple[Tree, State]:
        started, after = self.call("start", params, client, message)
        check_same_layout(self, "start", "params", params, started)
        return started, after

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        stepped, after = self.call("step", tree, client, at)
        check_same_layout(self, "step", "tree", tree, stepped)
        return stepped, after

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        reported, after = self.call("finish", report, client, at)
        check_kept_slots(self, "finish", "report", report, reported)
        self.told.update(name for name, value in reported.items() if value is not report.get(name))
        for name in reported:
            if name in FACTS and name not in report:
                raise MethodError(
                    f"{name_of(self)}.finish reports {name!r}, which is the name of something else.",
                    f'call it otherwise: "own_{name}"',
                )
        return reported, after

    def call(self, stage: str, *given: Any) -> Any:
        """Call a stage; refuse one that reads missing slots, writes into its arguments or returns the wrong types."""
        place = f"{name_of(self)}.{stage}" if stage != "__call__" else name_of(self)
        slots = tensors(given)
        before = _versions(slots)
        try:
            result = self.refuse_draws(stage, slots, lambda: getattr(self.stands_for, stage)(*self.hide_key(given)))
        except UnaskedUse as error:
            raise MethodError(
                f"{place} uses at.key, which is 0 in every step.", "random: ClassVar[bool] = True"
            ) from error
        except KeyError as error:
            slot, parts = error.args[0] if error.args else None, [part for part in given if isinstance(part, dict)]
            if not isinstance(slot, str) or (parts and all(slot in part for part in parts)):
                raise
            raise MethodError(
                f"{place} reads {slot!r}, which no rule of this method keeps, sends or reports there.",
                f"report {slot!r} in finish; some rules do so only in a phase that uploads"
                if stage == "server_step" and slot in given[1]
                else f"add the rule that does, or keep {slot!r} in client_slots or server_slots",
            ) from error
        after = tensors(given)  # may be anything, where a rule has put it there
        kept = len(after) == len(slots) and all(a is b for a, b in zip(slots, after, strict=True))
        if not kept or before != _versions(after):
            raise MethodError(
                f"{place} writes into what it was given.", "make new ones: return 0.5 * tree, client | {…}"
            )
        if stage in RETURNS:
            kinds, written = RETURNS[stage]
            results = result if len(kinds) > 1 else (result,)
            if not (isinstance(results, tuple) and len(results) == len(kinds) and all(map(isinstance, results, kinds))):
                raise MethodError(f"{place} must return {written}, not {type(result).__name__}.", f"return {written}")
            for state in (one for one in results if isinstance(one, dict)):
                for name, value in state.items():
                    if not isinstance(value, Tensor | Tree):
                        line = f"{place} gives {name!r} as {type(value).__name__}, not as a tensor or a tree."
                        raise MethodError(line, "params.scalar(0.5) makes a tensor of a number")
        if stage in LOCAL_STAGES:  # these take the client's slots second, and return them second
            check_same_slots(self, stage, "client", given[1], result[1])
        return result

    def refuse_draws(self, stage: str, slots: list[Any], call: Callable[[], Any]) -> Any:
        """Call a function of the rule; refuse one that draws from a generator, which nobody could repeat."""
        if not self.looks:
            return call()
        devices = {slot.device for slot in slots if slot is not None and slot.is_cuda}
        for _ in range(2):  # another thread may have drawn meanwhile
            before = read_generators(devices)
            result = call()
            if before == read_generators(devices):
                return result
        raise MethodError(
            f"{name_of(self)}.{stage} draws from a generator of PyTorch, numpy or Python: no run could be repeated.",
            "`step` and `finish` have a key if the rule has random = True: fedkeel.randomness.keyed_normals(at.key, n)",
        )

    def hide_key(self, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Put a key that refuses to be used in the place of one that engines do not make for this rule."""
        if self.random:
            return given
        hidden = torch.zeros((), dtype=torch.int64).as_subclass(UnaskedKey)
        return tuple(one._replace(key=hidden) if isinstance(one, Local) else one for one in given)


for stage in RETURNS.keys() - vars(Watched).keys():  # no more is checked of these than `call` does
    setattr(Watched, stage, partialmethod(Watched.call, stage))


def _versions(slots: list[Any]) -> list[int]:
    """Return how often each tensor was written to."""
    return [-1 if slot is None else slot._version for slot in slots]


@dataclass(frozen=True)
class WatchedWeighting(Watched, Weighting):
    """A weighting whose every stage is checked in the same way."""

    def __call__(self, reports: State, server: State) -> Tensor:
        return self.call("__call__", reports, server)
