"""Runs one after another, each into its folder: shown when it is finished there, resumed when it is not."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fedkeel.cli.console import complain
from fedkeel.cli.progress import Display
from fedkeel.cli.tracking import Tracking
from fedkeel.errors import FolderError, RequestError, RunError, nearest
from fedkeel.experiment import Experiment
from fedkeel.folder import EXPERIMENT, read_experiment
from fedkeel.run import run
from fedkeel.runs import Run, load_run

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass(frozen=True)
class Plan:
    """A run to be made, or found made, in a folder."""

    label: str
    experiment: Experiment
    folder: Path


@dataclass(frozen=True)
class Machine:
    """Where runs are made; none of it is part of what a result is."""

    engine: str = "auto"
    workers: int | None = None
    device: str = "auto"
    precision: str = "float32"
    tracking: Tracking = field(default_factory=Tracking)

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise RequestError(f"--workers must be at least 1: {self.workers}", "leave it out for one per core")
        if self.precision not in PRECISIONS:
            raise RequestError(
                f"unknown precision: {self.precision}", nearest(self.precision, PRECISIONS, "precisions")
            )


@dataclass(frozen=True)
class Outcome:
    """What became of a plan: a run, made now or earlier, or none because it failed."""

    plan: Plan
    run: Run | None
    found: bool = False

    @property
    def seconds(self) -> float:
        return sum(record.seconds for record in self.run.records) if self.run else 0.0


def folder_of(label: str, experiment: Experiment, out: Path | None, alone: bool) -> Path:
    """`out` itself for one run, else `out/METHOD/SEED`; without it `runs/METHOD-FINGERPRINT`."""
    name = re.sub(r"[^\w.+@=-]+", "-", label)
    if out is None:
        return Path("runs") / f"{name}-{experiment.fingerprint()}"
    return out if alone else out / name / str(experiment.seed)


def runs_in(folder: Path) -> list[Path]:
    """The run folder itself, or those below it: `folder/METHOD/SEED`, `folder/SEED`."""
    if (folder / EXPERIMENT).exists():
        return [folder]
    found = sorted({path.parent for pattern in ("*", "*/*") for path in folder.glob(f"{pattern}/{EXPERIMENT}")})
    if not found:
        what = "is not a run, and holds none" if folder.is_dir() else "does not exist"
        raise FolderError(f"{folder} {what}.", "give the folder that `fedkeel run` printed")
    return found


def titles(plans: Sequence[Plan]) -> list[str]:
    """How runs are told apart while they go on: by method, and by seed where there are several."""
    several = len({plan.experiment.seed for plan in plans}) > 1
    return [f"{plan.label} seed {plan.experiment.seed}" if several else plan.label for plan in plans]


def finished(plan: Plan) -> Run | None:
    """The run of exactly this experiment, if its folder holds it complete."""
    if not (plan.folder / "result.json").exists() or read_experiment(plan.folder) != plan.experiment.save():
        return None
    made = load_run(plan.folder)
    return made if len(made.records) == plan.experiment.rounds else None


def train(plans: Sequence[Plan], machine: Machine, display: Display) -> list[Outcome]:
    """All plans in turn. One that fails is told, and the others go on."""
    outcomes = []
    for plan, title in zip(plans, titles(plans), strict=True):
        made = finished(plan)
        if made is not None:
            outcomes.append(Outcome(plan, made, found=True))
            continue
        try:
            with machine.tracking.followers(display.watch(title), title, plan.folder) as progress:
                made = run(
                    plan.experiment,
                    out=plan.folder,
                    engine=machine.engine,
                    workers=machine.workers,
                    device=machine.device,
                    dtype=PRECISIONS[machine.precision],
                    progress=progress,
                    command=sys.argv,
                    track=machine.tracking.track,
                )
        except RunError as error:
            complain(f"{title}: {error.message}", error.hint)
        outcomes.append(Outcome(plan, made))
    return outcomes
