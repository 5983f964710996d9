"""Runs logged to a tracker of the user's choice, through its own library: TensorBoard, MLflow, Weights & Biases.

Each is a `Progress` of `fk.run`; `Several` joins them with the progress display.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from importlib import import_module
from os import PathLike
from typing import Any

from fedkeel.errors import RequestError
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.finished_run import Run
from fedkeel.runs.loop import Progress
from fedkeel.runs.record import COLUMNS, RoundRecord
from fedkeel.typed_values import flatten

PROJECT = "fedkeel"  # what runs are filed under


def numbers(record: RoundRecord) -> dict[str, float]:
    """Return every number of a round by name, without those that are missing."""
    found = {name: record.measure(name) for name in (*COLUMNS, *record.extra)}
    return {name: float(value) for name, value in found.items() if value is not None}


def settings(experiment: Experiment) -> dict[str, str]:
    """Return nested settings under dotted names."""
    return {name: str(value) for name, value in flatten(experiment.save()).items()}


def library(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise RequestError(
            f"logging to {extra} needs its library, which is not installed.", f"pip install {extra}"
        ) from error


class TensorBoard:
    """Scalars of every round as event files in a folder: `tensorboard --logdir FOLDER`."""

    def __init__(self, folder: str | PathLike[str]):
        self.folder = folder
        self.writer: Any = None
        self.make = library("torch.utils.tensorboard", "tensorboard").SummaryWriter

    def started(self, experiment: Experiment, done: int, engine: str) -> None:
        # rounds of an interrupted session that are trained again hide their first version
        self.writer = self.make(log_dir=str(self.folder), purge_step=done + 1, flush_secs=10)
        lines = [f"    {name} = {value}" for name, value in settings(experiment).items()]
        self.writer.add_text("experiment", "\n".join(lines), done)

    def round(self, record: RoundRecord) -> None:
        for name, value in numbers(record).items():
            self.writer.add_scalar(name, value, record.round)

    def finished(self, run: Run) -> None:
        self.close()

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


class MLflow:
    """Settings as parameters, numbers of every round as metrics; `uri` is that of a server or of a local folder."""

    def __init__(self, name: str, uri: str | None = None):
        self.name = name
        self.run_id: str | None = None
        self.library = library("mlflow", "mlflow")
        self.client = self.library.MlflowClient(tracking_uri=uri)

    def started(self, experiment: Experiment, done: int, engine: str) -> None:
        known = self.client.get_experiment_by_name(PROJECT)
        home = known.experiment_id if known is not None else self.client.create_experiment(PROJECT)
        tags = {"mlflow.runName": self.name, "fingerprint": experiment.fingerprint(), "engine": engine}
        self.run_id = self.client.create_run(home, tags=tags, run_name=self.name).info.run_id
        kinds = self.library.entities
        params = [kinds.Param(name, value[:500]) for name, value in settings(experiment).items()]
        for first in range(0, len(params), 100):  # as many as one request may carry
            self.client.log_batch(self.run_id, params=params[first : first + 100])

    def round(self, record: RoundRecord) -> None:
        kinds, now = self.library.entities, int(self.library.utils.time.get_current_time_millis())
        found = [kinds.Metric(name, value, now, record.round) for name, value in numbers(record).items()]
        self.client.log_batch(self.run_id, metrics=found)

    def finished(self, run: Run) -> None:
        self.close("FINISHED")

    def close(self, status: str = "FAILED") -> None:
        """End the run; without `finished` before it, it failed or was interrupted."""
        if self.run_id is not None:
            self.client.set_terminated(self.run_id, status)
            self.run_id = None


class Wandb:
    """A run of Weights & Biases; its own variables (WANDB_MODE, WANDB_PROJECT, …) say where it goes."""

    def __init__(self, name: str):
        self.name = name
        self.library = library("wandb", "wandb")
        self.run: Any = None

    def started(self, experiment: Experiment, done: int, engine: str) -> None:
        self.run = self.library.init(project=PROJECT, name=self.name, config=settings(experiment))

    def round(self, record: RoundRecord) -> None:
        self.run.log(numbers(record), step=record.round)

    def finished(self, run: Run) -> None:
        self.close(0)

    def close(self, exit_code: int = 1) -> None:
        """End the run; without `finished` before it, it failed or was interrupted."""
        if self.run is not None:
            self.run.finish(exit_code=exit_code)
            self.run = None


class Several:
    """One `Progress` that calls several, in order."""

    def __init__(self, members: Iterable[Progress | None]):
        self.members: Sequence[Progress] = [member for member in members if member is not None]

    def started(self, experiment: Experiment, done: int, engine: str) -> None:
        for member in self.members:
            member.started(experiment, done, engine)

    def round(self, record: RoundRecord) -> None:
        for member in self.members:
            member.round(record)

    def finished(self, run: Run) -> None:
        for member in self.members:
            member.finished(run)

    def __enter__(self) -> Several:
        return self

    def __exit__(self, *failure: object) -> None:
        """Close what has to be closed, whether the run came to its end or not."""
        with contextlib.ExitStack() as closing:
            for member in self.members:
                if hasattr(member, "close"):
                    closing.callback(member.close)
