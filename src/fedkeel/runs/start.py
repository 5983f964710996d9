"""`fk.run`: from an experiment to a trained model, in memory or in a folder."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fedkeel.engines.choose import check_name, choose_engine
from fedkeel.engines.engine import Engine
from fedkeel.engines.machine import PRECISIONS, check_workers, device_of, steady
from fedkeel.engines.measure import Job, RemainingWork
from fedkeel.engines.memory import explain_out_of_memory
from fedkeel.errors import FolderError, RequestError
from fedkeel.methods import composition
from fedkeel.problems.separability import try_out
from fedkeel.problems.sound_data import check_data
from fedkeel.ranges import NonNegative
from fedkeel.runs import checkpoint
from fedkeel.runs.environment import edited, engines_before, environment, leaks, precision_before
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.finished_run import Run
from fedkeel.runs.folder import RunFolder, rounds_in
from fedkeel.runs.loop import Going, Loop, Progress, driven
from fedkeel.runs.observers import Observer, listed, observers
from fedkeel.runs.prepare import describe_task, method_of, problem_of, task_maker
from fedkeel.typed_values import read_values, types_of

log = logging.getLogger("fedkeel")

CHECKPOINT_SECONDS = 30.0


def run(
    experiment: Experiment,
    *,
    out: str | PathLike[str] | None = None,
    engine: str = "auto",
    device: str = "auto",
    dtype: torch.dtype = torch.float32,
    keep_params: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    command: Sequence[str] | None = None,
    track: Sequence[str | Observer] | str | Observer = (),
) -> Run:
    """Train. With a folder `out`, a run that stands there already goes on from its last checkpoint, bit for bit.

    `track` names what is measured in every round besides: "drift", "spectrum", "state", or functions of one's own.
    """
    on = Place(engine, device_of(device), dtype, workers, keep_params, checkpoint_seconds, command, listed(track))
    with steady(), explain_out_of_memory(on.device), contextlib.ExitStack() as closing:
        started = start(experiment, out, on, progress, closing)
        return driven(started.going, lambda request: started.engine.train(*request))


@dataclass(frozen=True)
class Place:
    """Where and how a run is made; none of it is part of what a result is."""

    engine: str
    device: torch.device
    dtype: torch.dtype
    workers: int | None
    keep_params: bool
    checkpoint_seconds: NonNegative
    command: Sequence[str] | None
    track: Sequence[str | Observer]

    def __post_init__(self) -> None:
        check_name(self.engine)
        check_workers(self.workers)
        read_values({"checkpoint_seconds": self.checkpoint_seconds}, types_of(Place), RequestError)
        if self.dtype not in PRECISIONS.values():
            known = " or ".join(map(str, PRECISIONS.values()))
            raise RequestError(f"dtype is a type of torch, not {self.dtype!r}.", known)


class Started(NamedTuple):
    """A run that has been prepared, and resumed where it stood."""

    loop: Loop
    engine: Engine
    going: Going


def start(
    experiment: Experiment,
    out: str | PathLike[str] | None,
    on: Place,
    progress: Progress | None,
    closing: contextlib.ExitStack,
) -> Started:
    """Everything that comes before the first round; what must be closed afterwards goes to `closing`."""
    if not isinstance(experiment, Experiment):
        raise RequestError(f"an Experiment is run, not {experiment!r}.", 'fk.run(fk.Experiment(dataset="digits"))')
    folder = None if out is None else RunFolder(Path(out))
    if folder is not None:
        folder.open()
        closing.callback(folder.close)
        claim(folder, experiment)
    began = time.perf_counter()
    plan = experiment.plan
    maker = task_maker(plan, on.device, on.dtype)
    task = maker(problem_of(plan))
    try_out(task)
    check_data(task)
    log.info("%s", describe_task(task))
    method = method_of(plan, task)
    loop = Loop(experiment, task, method, folder, on.keep_params, on.checkpoint_seconds, observers(on.track))
    closing.callback(loop.store.close)
    loop.restore()
    engines = [] if folder is None else engines_before(folder.path, loop.done)
    if folder is not None and loop.done:
        notice(folder.path, experiment, on.dtype)
    job = Job(task, method, plan.training, maker, on.workers, loop.left())
    made, choice = choose_engine(on.engine, job, before=engines[-1]["engine"] if engines else None)
    closing.callback(made.close)
    loop.seconds.add("setup", time.perf_counter() - began)
    if folder is not None:
        engines.append(choice.record(loop.done))
        made_with = environment(on.device, on.dtype, made.name, on.command, engines, method.rules, on.track)
        folder.write_json("environment.json", made_with)
    if progress is not None:
        progress.started(experiment, loop.done, made.name)

    def tuner() -> Engine:
        everyone = RemainingWork(1, [int(client) for client in np.flatnonzero(task.clients.sizes > 0)])
        tuning = Job(maker(task.problem), method_of(plan, task).tuning, plan.training, maker, on.workers, everyone)
        engine_there, _ = choose_engine(on.engine, tuning, before=made.name)
        closing.callback(engine_there.close)
        return engine_there

    return Started(loop, made, loop.going(made, plan.training, progress, tuner))


def notice(folder: Path, experiment: Experiment, dtype: torch.dtype) -> None:
    """Rounds reckoned otherwise than those before them are told: the result is that of neither."""
    before, now = precision_before(folder), str(dtype).removeprefix("torch.")
    if before is not None and before != now:
        log.warning("this run was begun in %s and goes on in %s", before, now)
    for name in edited(folder, experiment.plan.method.rules):
        log.warning("the module %s has been edited since this run was begun; its first rounds are the old rule's", name)


def claim(folder: RunFolder, experiment: Experiment) -> None:
    """Take a folder for an experiment: an empty one, one that holds this experiment already, or one of which no round
    was ever made."""
    there = folder.read_experiment()
    if there is not None:
        data = experiment.save()
        mine = {name: value for name, value in data.items() if name != "rounds"}
        other = {name: value for name, value in there.items() if name != "rounds"}
        if isinstance(there.get("method"), Mapping):
            other["method"] = composition.rewrite(there["method"])
        made, saved = rounds_in(folder.path), checkpoint.names(folder.checkpoints)
        begun = made.lines or made.problem or any(map(checkpoint.round_of, saved))
        if mine != other and not begun and folder.read_json("environment.json"):
            for path in saved:
                checkpoint.remove(path)
        elif mine != other:
            keys = sorted(k for k in {*mine, *other} if mine.get(k) != other.get(k))
            raise FolderError(
                f"{folder.path} holds another experiment (it differs in: {', '.join(keys)}).",
                "choose another folder with --out, or `fedkeel resume` that one",
            )
        if begun and leaks(folder.path, experiment.plan):
            raise FolderError(
                f"{folder.path} was begun when copies of validation or test samples were trained on: "
                "its scores are too high.",
                "choose another folder with --out, and compare no scores with this run's",
            )
