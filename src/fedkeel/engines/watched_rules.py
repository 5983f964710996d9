"""Rules whose every stage is checked against the contract of rules, for a rehearsal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partialmethod
from typing import Any

import torch
from torch import Tensor

from fedkeel.core.contract import FACTS, check_kept_slots, check_same_slots, name_of
from fedkeel.core.results import check_model, check_part, check_same_layout, check_scale, check_whole_trees
from fedkeel.core.rule import LOCAL_STAGES, Local, Rule, State, Weighting
from fedkeel.core.trees import Tree, tensors
from fedkeel.errors import MethodError
from fedkeel.randomness import read_generators


def watch(rule: Rule, looks: bool = False) -> Rule:
    if isinstance(rule, Watched):
        return rule
    return WatchedWeighting(rule, looks) if isinstance(rule, Weighting) else Watched(rule, looks)


RETURNS: dict[str, tuple[tuple[type, ...], str]] = {
    "broadcast": ((dict,), "the message"),
    "travels": ((Tree,), "params"),
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
        check_same_layout(self, "start", "params", params, started, exact=True)
        return started, after

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        stepped, after = self.call("step", tree, client, at)
        check_same_layout(self, "step", "tree", tree, stepped)
        return stepped, after

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        reported, after = self.call("finish", report, client, at)
        check_kept_slots(self, "finish", "report", report, reported)
        if "delta" in report:
            check_part(self, "finish", "delta", report["delta"], reported["delta"])
        if self.stands_for.adds and "delta" in report and "moved" not in reported:
            line = f"{name_of(self)}.finish adds to the delta, and does not report how long it was before."
            raise MethodError(line, 'return report | {"delta": …, "moved": report["delta"].norm()}, client | {…}')
        self.told.update(name for name, value in reported.items() if value is not report.get(name))
        for name in reported:
            if name in FACTS and name not in report:
                raise MethodError(
                    f"{name_of(self)}.finish reports {name!r}, which is the name of something else.",
                    f'call it otherwise: "own_{name}"',
                )
        return reported, after

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        changed, after = self.call("server_step", update, server, reports)
        # a rule may send its update in slots of its own, and leave "delta" empty
        check_part(self, "server_step", "update", server.get("params", update), changed)
        return changed, after

    def broadcast(self, message: State, server: State) -> State:
        return self.call_on_model("broadcast", "message", message, server)

    def deploy(self, model: State, server: State) -> State:
        return self.call_on_model("deploy", "model", model, server)

    def remember(self, server: State) -> State:
        return self.call_on_model("remember", "server", server)

    def travels(self, params: Tree) -> Tree:
        part: Tree = self.call("travels", params)
        check_part(self, "travels", "params", params, part)
        return part

    def scale_rate(self, round: int, done: float) -> float:
        factor: float = self.stands_for.scale_rate(round, done)
        check_scale(self, factor)
        return factor

    def call_on_model(self, stage: str, what: str, given: State, *others: State) -> State:
        """Call a stage that is given the model in a state, and returns that state."""
        after: State = self.call(stage, given, *others)
        check_kept_slots(self, stage, what, given, after)
        check_model(self, stage, what, given, after)
        return after

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
            check_whole_trees(self, stage, results)
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
