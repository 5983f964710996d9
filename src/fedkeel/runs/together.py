"""`fk.run_together`: several runs as one stack. What comes out is what each would have given alone."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedkeel.engines.engine import ClientOutcome, RoundRequest
from fedkeel.engines.machine import delay_signals, device_of, read_precision
from fedkeel.engines.stacked.engine import StackedEngine
from fedkeel.engines.stacked.joint import JointEngine, joinable
from fedkeel.errors import FedkeelError, RequestError, RunError, explain_typos
from fedkeel.problems.likeness import are_alike
from fedkeel.problems.metrics import Given as Metrics
from fedkeel.problems.metrics import find_metrics
from fedkeel.problems.problem import digest_of
from fedkeel.problems.try_out import is_of_device
from fedkeel.randomness import in_turn
from fedkeel.runs.disk_room import check_room, find_disk
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.finished_run import Run
from fedkeel.runs.following import Given, find_callbacks
from fedkeel.runs.loop import Progress
from fedkeel.runs.observers import Observer, as_list
from fedkeel.runs.progress_line import follow
from fedkeel.runs.save_clock import SaveClock, find_common_rounds
from fedkeel.runs.start import CHECKPOINT_SECONDS, Place, Started, require_experiment, session, start
from fedkeel.text import in_one_line

log = logging.getLogger("fedkeel")

FREE = ("seed", "partition", "partition_seed", "lr", "lr_decay", "participation", "rounds")
"""What may differ between experiments of one stack."""


def alike(one: Experiment, other: Experiment) -> bool:
    """Whether two experiments may share a stack: they differ in nothing that decides about a step but data and rate."""
    return not list_differences(one, other)


def list_differences(one: Experiment, other: Experiment) -> list[str]:
    """Name what two experiments differ in, and may not where they share a stack."""
    first, second = (experiment.save() | dict.fromkeys(FREE) for experiment in (one, other))
    if one.data is not None and other.data is not None:  # their problems are made of split and seed
        first |= {"problem": None, "data": True, "model": name_model(one)}
        second |= {"problem": None, "data": are_alike(one.data.given, other.data.given), "model": name_model(other)}
    found = sorted(key for key in {*first, *second} if first.get(key) != second.get(key))
    return found if one.problem is other.problem else [*found, "problem (give both the same object)"]


def name_model(experiment: Experiment) -> str | None:
    """The name of the network that is made for data of one's own, or the identity of the one that was given."""
    return digest_of(experiment.model) if isinstance(experiment.model, nn.Module) else experiment.model


@explain_typos("fk.run_together", precision="dtype")
def run_together(
    experiments: Sequence[Experiment],
    *,
    out: Sequence[str | PathLike[str]] | None = None,
    device: str = "auto",
    dtype: torch.dtype | str = torch.float32,
    keep_params: bool = False,
    progress: Sequence[Progress | bool | None] = (),
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    command: Sequence[str] | None = None,
    track: Sequence[str | Observer] | str | Observer = (),
    callbacks: Sequence[Given] | Given = (),
    metrics: Metrics = (),
) -> list[Run | Exception]:
    """Train experiments that differ in their seed, split or learning rate, the clients of all of them as one stack.

    A run that fails gives the error that it would raise alone, and the others go on. Each round's time is shared among
    the runs.
    """
    check_list(experiments, "experiments", "fk.run_together([experiment, experiment.with_(seed=1)])")
    for one in experiments:
        require_experiment(one)
    for other in experiments[1:]:
        if differences := list_differences(experiments[0], other):
            raise RequestError(
                f"these experiments cannot share a stack: they differ in {', '.join(differences)}.",
                f"they may differ in: {', '.join(FREE)}; schedules and averages of the last rounds have one length",
            )
    if out is not None:
        check_list(out, "folders", "out=[one for each]", len(experiments))
        check_apart(out)
    if progress:
        check_list(progress, "followers", "progress=[one for each]", len(experiments))
    nothing = [None] * len(experiments)
    watching = [None if one is None else follow(one) for one in progress or ()] or nothing
    followers = as_list(track), find_callbacks(callbacks), find_metrics(metrics)
    found, kind = device_of(device), read_precision(dtype)
    place = Place("stacked", found, kind, None, keep_params, checkpoint_seconds, command, *followers)
    with in_turn(), session(place.device) as closing:
        folders = out or nothing
        names = [Path(folder).name for folder in folders if isinstance(folder, str | PathLike)]
        places = [replace(place, stack=names, latest=round) for round in find_common_rounds(folders)]
        given = zip(experiments, folders, watching, places, strict=True)
        begun = refuse_without_room([start_alone(*one, closing) for one in given])
        started = [one for one in begun if isinstance(one, Started)]
        driven = iter(drive_together(started, closing) if started else [])
        return [next(driven) if isinstance(one, Started) else one for one in begun]


def check_list(given: object, what: str, hint: str, count: int | None = None) -> None:
    """Refuse what is no list, such as a single one or a generator, and a list that is not of so many."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise RequestError(f"fk.run_together takes a list of {what}, not {type(given).__name__}.", hint)
    if count is not None and len(given) != count:
        raise RequestError(f"{len(given)} {what} were given for {count} experiments.", hint)


def check_apart(folders: Sequence[str | PathLike[str] | None]) -> None:
    """Refuse a folder that is given to two runs."""
    places = [Path(folder).expanduser().resolve() for folder in folders if isinstance(folder, str | PathLike)]
    for place in places:
        if places.count(place) > 1:
            raise RequestError(f"two experiments were given the folder {place}.", "out=[one for each]")


def start_alone(
    experiment: Experiment,
    out: str | PathLike[str] | None,
    progress: Progress | None,
    place: Place,
    closing: contextlib.ExitStack,
) -> Started | RunError:
    try:
        return start(experiment, out, place, progress, closing)
    except RunError as error:
        return error


def refuse_without_room(begun: Sequence[Started | RunError]) -> list[Started | RunError]:
    """Put an error in the place of every run whose disk has no room for it and the others that are written there."""
    found = list(begun)
    disks: dict[int | None, list[int]] = {}
    for run, one in enumerate(begun):
        if isinstance(one, Started):
            disks.setdefault(find_disk(one.loop), []).append(run)
    for runs in disks.values():
        try:
            check_room([one.loop for one in (begun[run] for run in runs) if isinstance(one, Started)])
        except RunError as error:
            for run in runs:
                found[run] = error
    return found


def drive_alone(one: Started) -> Run | Exception:
    try:
        return one.drive()
    except Exception as error:
        return keep_error(error)


def keep_error(error: Exception) -> Exception:
    """Return what stands in the place of a run that failed; what stops the device ends all runs."""
    if isinstance(error, FedkeelError):
        return error
    if is_of_device(error):
        raise error
    log.warning("a run failed: %s: %s", type(error).__name__, in_one_line(error))
    return error


def drive_together(started: Sequence[Started], closing: contextlib.ExitStack) -> list[Run | Exception]:
    """Drive runs side by side, those that are behind first."""
    engines = [one.engine for one in started if isinstance(one.engine, StackedEngine)]
    if not joinable(engines):
        log.info("the runs are made one after another: their models or the preparation of their data differ")
        return [drive_alone(one) for one in started]
    joint = JointEngine(engines)
    captured = set[int]().union(*(one.loop.captured for one in started))
    for engine in (joint.stacked, *engines):
        engine.captured = captured
    for one in started:
        one.loop.captured = captured
    results: list[Run | Exception | None] = [None] * len(started)
    asking: dict[int, RoundRequest] = {}
    ended: list[int] = []
    clock = SaveClock()

    def advance(run: int, answer: Any) -> None:
        asking.pop(run, None)
        rounds = started[run].rounds
        try:
            asking[run] = rounds.throw(answer) if isinstance(answer, Exception) else rounds.send(answer)
        except StopIteration:
            ended.append(run)
        except Exception as error:
            results[run] = keep_error(error)
        for one in asking:
            started[one].loop.together = len(asking)

    def conclude() -> None:
        """Write the results of runs that ended, after a checkpoint of all others: who has a result is not trained
        again, and the others never need it in their stack."""
        for run in ended:
            for other in asking:
                if started[other].loop.done == started[run].loop.done:
                    with contextlib.suppress(Exception):  # its own next checkpoint tells
                        started[other].loop.save()
        while ended:
            run = ended.pop(0)
            try:
                results[run] = started[run].conclude()
            except Exception as error:
                results[run] = keep_error(error)

    for run, one in enumerate(started):
        closing.callback(one.rounds.close)
        one.loop.together, one.loop.clock = len(started), clock
        advance(run, None)
    conclude()
    while asking:
        behind = min(request.round for request in asking.values())
        now = {run: request for run, request in asking.items() if request.round == behind}
        answers = train_round(joint, now)
        with delay_signals(once=True):  # all runs of the stack end the round
            for run, answer in answers.items():
                advance(run, answer)
        conclude()
    return [result for result in results if result is not None]


def train_round(
    joint: JointEngine, requests: Mapping[int, RoundRequest]
) -> Mapping[int, list[ClientOutcome] | Exception]:
    """Train one round of several runs as one stack; where that fails, each by its own engine, and with its own error.

    A stack changes nothing before it is done.
    """
    try:
        return joint.train(requests)
    except Exception as error:
        if is_of_device(error):
            raise
        (round,) = {request.round + 1 for request in requests.values()}
        log.info("round %d: the runs train one after another, since their stack failed: %s", round, in_one_line(error))
    answers: dict[int, list[ClientOutcome] | Exception] = {}
    for run, request in requests.items():
        try:
            answers[run] = joint.engines[run].train(*request)
        except Exception as error:
            answers[run] = error
    return answers
