"""The callbacks of a run: found by name, called in order, and brought back from a checkpoint."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedkeel.core.rule import State
from fedkeel.engines.machine import delay_signals
from fedkeel.errors import FedkeelError, RequestError, RunError, nearest
from fedkeel.importing import Kind, Trust, look_up
from fedkeel.plugins import find_plugin
from fedkeel.runs.callbacks import Callback, EarlyStop, KeepBest, Moment
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.kept import Followed, write_kept
from fedkeel.runs.record import RoundRecord
from fedkeel.text import in_one_line
from fedkeel.typed_values import check_keys, list_given
from fedkeel.written_values import parse_fields

if TYPE_CHECKING:
    from fedkeel.runs.finished_run import Run

log = logging.getLogger("fedkeel")


@dataclass(frozen=True)
class EveryRound(Callback):
    """A function of a moment as a callback."""

    function: Callable[[Moment], str | None]

    def round(self, at: Moment) -> str | None:
        return self.function(at)


CALLBACKS: dict[str, type[Callback]] = {"KeepBest": KeepBest, "EarlyStop": EarlyStop}
Given = Callback | Callable[[Moment], str | None] | str
OWN = Kind("callback", Callback, objects=True, classes=True, functions=True, hint="a class of fk.Callback")


def find_callbacks(given: Iterable[Given] | Given, trust: Trust = Trust.TYPED) -> list[Callback]:
    """Find callbacks by name; objects of the caller's own stay as they are."""
    several = list_given(given, "callbacks", (str, Callback))
    found = [find_callback(one, trust) for one in several]
    names = [describe(one) for one in found if type(one) in CALLBACKS.values()]
    for name in names:
        if names.count(name) > 1:
            raise RequestError(f"a callback is given twice: {name}", "give each once")
    return found


def find_callback(given: Any, trust: Trust) -> Callback:
    """Find one callback: `KeepBest`, `EarlyStop:patience=20`, `module:name`, an object or a function."""
    if isinstance(given, str):
        name, _, rest = given.partition(":")
        if name in CALLBACKS:
            return CALLBACKS[name](**read_fields(name, rest))
        if ":" not in given and (plugin := find_plugin("callbacks", given)) is not None:
            given, trust = plugin.value, min(trust, Trust.INSTALLED)
        if ":" not in given:
            raise RequestError(f"no callback is called: {given}", nearest(given, CALLBACKS, "callbacks"))
        target = look_up(given, OWN, trust)
        given = make_callback(given, target) if isinstance(target, type) else target
    if isinstance(given, Callback):
        return given
    if callable(given) and not isinstance(given, type):
        return EveryRound(given)
    raise RequestError(f"a callback is an object of fk.Callback or a function, not {given!r}.", "fk.KeepBest()")


def make_callback(name: str, kind: type) -> Any:
    """Make a callback of a class that a name leads to."""
    try:
        return kind()
    except TypeError as error:
        raise RequestError(
            f"the callback {name} cannot be made without arguments: {error}",
            f"make it in its module, ready = {kind.__name__}(…), and name that",
        ) from error


def read_fields(name: str, text: str) -> dict[str, Any]:
    """Read `patience=20,on=validation` as the fields of a callback of ours."""
    settings = parse_fields(text, f"a field of {name} needs a value", "EarlyStop:patience=20,on=validation")
    kind: Any = CALLBACKS[name]
    check_keys(settings, [field.name for field in fields(kind)], RequestError, name)
    return settings


def describe(callback: Callback) -> str:
    """Write what `find_callback` reads: the name, and settings other than the defaults; own ones by their place."""
    if isinstance(callback, EveryRound):
        return f"{callback.function.__module__}:{getattr(callback.function, '__qualname__', 'function')}"
    kind: Any = type(callback)
    if kind not in CALLBACKS.values():
        return f"{kind.__module__}:{kind.__qualname__}"
    changed = {field.name: value for field in fields(kind) if (value := getattr(callback, field.name)) != field.default}
    return kind.__name__ + ":" * bool(changed) + ",".join(f"{name}={value}" for name, value in changed.items())


def memory_of(name: str) -> str:
    """What the memory of a callback is called: not by the patience of an EarlyStop, which says when to stop, and
    nothing of what was best. Up to version 1.0.0 it was called as the callback is."""
    return re.sub("patience=[0-9]+,?", "", name).rstrip(":,") if name.startswith("EarlyStop:") else name


def name_callbacks(callbacks: Iterable[Callback]) -> dict[str, Callback]:
    """Name each callback; those that share a name are numbered."""
    found: dict[str, Callback] = {}
    for one in callbacks:
        name, number = describe(one), 1
        while name in found:
            number += 1
            name = f"{describe(one)} ({number})"
        found[name] = one
    return found


def list_callbacks(callbacks: Iterable[Callback]) -> list[str]:
    """List the callbacks that a name brings back: not those of a script or inside a function."""
    return [name for name in map(describe, callbacks) if "<" not in name and not name.startswith("__main__:")]


def warn_of_unmade(
    folder: Path,
    records: Sequence[RoundRecord],
    kept: Iterable[str],
    callbacks: Iterable[Callback],
    metrics: Iterable[str],
) -> None:
    """Warn of what is asked of a run that has no rounds to come, and that its rounds did not keep or measure."""
    for one in callbacks:
        if isinstance(one, KeepBest) and one.name not in kept:
            log.warning("%s was made without keeping its %s model: give another --out", folder, one.name)
    measured = {name for record in records for name in record.extra} | {"accuracy"}
    for metric in metrics:
        if not measured & {metric, f"validation_{metric}", f"client_{metric}"}:
            log.warning("%s was made without measuring %s: give another --out", folder, metric)


def warn_of_stop(folder: Path, stopped: Mapping[str, Any] | None, rounds: int) -> None:
    """Say that a run trains no round because a callback has stopped it, and what continues it."""
    if stopped is not None and stopped["round"] < rounds:
        by = str(stopped["by"])
        log.warning(
            "%s was stopped early, in round %d of %d, by %s, so no round is trained: %s without that callback",
            folder, stopped["round"], rounds, by,
            "--patience 0 goes on, or in Python a run" if by.startswith("EarlyStop") else "in Python, go on",
        )  # fmt: skip


@contextlib.contextmanager
def explain(name: str, when: str) -> Iterator[None]:
    """Turn what a callback of someone's own raises into one line."""
    try:
        yield
    except FedkeelError:
        raise
    except Exception as error:
        raise RunError(
            f"the callback {name} failed {when}: {type(error).__name__}: {in_one_line(error)}",
            "the rounds so far are kept; its memory takes numbers, texts, lists and dicts of them",
        ) from error


class Callbacks:
    """The callbacks of one run, and what they have come to: changed as a whole after each round, or not at all."""

    def __init__(self, callbacks: Sequence[Callback], folder: Path | None):
        self.named: Mapping[str, Callback] = name_callbacks(callbacks)
        self.folder, self.state = folder, Followed()
        self.models: dict[str, State] = {}  # kept, and not yet written

    @property
    def stopped(self) -> Mapping[str, Any] | None:
        """Why the run was stopped, and by whom; not where that callback is no longer asked for."""
        found = self.state.stopped
        return found if found is not None and found.get("by") in self.named else None

    def restore(self, state: Followed | None, done: int) -> None:
        """Go back to what a checkpoint says; of a run that had none, callbacks see the rounds that come."""
        state = Followed(seen=done) if state is None else state
        self.state = replace(state, memory={memory_of(name): values for name, values in state.memory.items()})

    def save(self, folder: Path, fingerprint: str) -> Followed | None:
        """Write the models that are kept since the last checkpoint; return what the next one holds, if anything."""
        for name, model in self.models.items():
            write_kept(folder, self.state.kept[name], model, fingerprint)
        self.models.clear()
        return self.state if self.named or self.state.kept else None

    def result(self) -> dict[str, Any]:
        return replace(self.state, stopped=self.stopped).result()

    def see_round(self, experiment: Experiment, records: Sequence[RoundRecord], model: State) -> None:
        """Tell all callbacks of the last round."""
        memory, kept, stopped = copy.deepcopy(dict(self.state.memory)), dict(self.state.kept), None
        for name, callback in self.named.items():
            own = memory_of(name)
            at = Moment(experiment, records, model, self.folder, memory.setdefault(own, {}), kept)
            with explain(name, f"in round {at.record.round}"):
                reason = callback.round(at)
                # as it would be after a pause
                memory[own] = json.loads(json.dumps(at.memory, allow_nan=False))
            if reason is not None and not isinstance(reason, str):
                raise RequestError(f"the callback {name} returned {reason!r}.", "a text stops the run, None does not")
            if reason and stopped is None:
                stopped = {"round": at.record.round, "reason": reason, "by": name}
        now = records[-1].round
        remembered = {name: values for name, values in memory.items() if values}
        with delay_signals():  # a file must not get the model of another round
            self.models |= {name: model for name, one in kept.items() if one.round == now}
            self.state = Followed(now, remembered, kept, stopped)

    def see_checkpoint(self, experiment: Experiment, records: Sequence[RoundRecord], model: State) -> None:
        """Tell all callbacks that a checkpoint was written; what they change of the copies they get is lost."""
        for name, callback in self.named.items():
            memory, kept = copy.deepcopy(dict(self.state.memory.get(memory_of(name), {}))), dict(self.state.kept)
            with explain(name, "at a checkpoint"):
                callback.checkpoint(Moment(experiment, records, model, self.folder, memory, kept))

    def see_end(self, run: Run) -> None:
        for name, callback in self.named.items():
            with explain(name, "at the end"):
                callback.end(run)
