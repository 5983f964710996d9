"""`fk.run`: from an experiment to a trained model, in memory or in a folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import torch

from fedkeel.engines.choose import make_engine
from fedkeel.engines.engine import Engine, Training
from fedkeel.environment import environment
from fedkeel.errors import FolderError
from fedkeel.experiment import Experiment
from fedkeel.folder import RunFolder
from fedkeel.loop import Loop, Progress
from fedkeel.machine import device_of, steady
from fedkeel.runs import Run
from fedkeel.setup import method_of, problem_of, task_maker
from fedkeel.tracking import Observer, observers

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
    track: Sequence[str | Observer] = (),
) -> Run:
    """Train. With a folder `out`, a run that stands there already goes on from its last checkpoint, bit for bit.

    `track` names what is measured in every round besides: "drift", "spectrum", "state", or functions of one's own.
    """
    where = device_of(device)
    folder = None if out is None else RunFolder(Path(out))
    with steady(), contextlib.ExitStack() as closing:
        if folder is not None:
            folder.open()
            closing.callback(folder.close)
            claim(folder, experiment)
        began = time.perf_counter()
        maker = task_maker(experiment, where, dtype)
        task = maker(problem_of(experiment))
        method = method_of(experiment, task)
        assert experiment.epochs is not None
        assert experiment.batch_size is not None
        training = Training(experiment.seed, experiment.epochs, experiment.batch_size)
        loop = Loop(experiment, task, method, folder, keep_params, checkpoint_seconds, observers(track))
        closing.callback(loop.store.close)
        loop.restore()
        made = make_engine(engine, task, method, training, maker, workers, loop.trainings_left())
        closing.callback(made.close)
        loop.seconds.add("setup", time.perf_counter() - began)
        if folder is not None:
            folder.write_json("environment.json", environment(where, dtype, made.name, command))
        if progress is not None:
            progress.started(experiment, loop.done, made.name)

        def tuner() -> Engine:
            tuning = method_of(experiment, task).tuning
            engine_there = make_engine(engine, maker(task.problem), tuning, training, maker, workers, 0)
            closing.callback(engine_there.close)
            return engine_there

        finished = loop.go(made, training, progress, tuner)
        if progress is not None:
            progress.finished(finished)
        return finished


def claim(folder: RunFolder, experiment: Experiment) -> None:
    """Take a folder for an experiment: an empty one, or one that holds this experiment already."""
    there = folder.read_experiment()
    if there is not None:
        data = experiment.save()
        mine = {name: value for name, value in data.items() if name != "rounds"}
        other = {name: value for name, value in there.items() if name != "rounds"}
        if mine != other:
            keys = sorted(k for k in {*mine, *other} if mine.get(k) != other.get(k))
            raise FolderError(
                f"{folder.path} holds another experiment (it differs in: {', '.join(keys)}).",
                "choose another folder with --out, or `fedkeel resume` that one",
            )
