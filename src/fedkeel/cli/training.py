"""Runs one after another, each into its folder: shown when it is finished there, resumed when it is not."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedkeel.cli.console import complain
from fedkeel.cli.progress import Display
from fedkeel.cli.tracking import Tracking
from fedkeel.engines.choose import check_name
from fedkeel.engines.machine import PRECISIONS, check_device, check_workers, device_of
from fedkeel.errors import FolderError, RequestError, RunError, nearest
from fedkeel.runs.checksums import read_sums
from fedkeel.runs.environment import edited, leaks
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.finished_run import Run, load_run
from fedkeel.runs.folder import EXPERIMENT, RESULT, folder_name, read_experiment, read_json
from fedkeel.runs.loop import Progress
from fedkeel.runs.shared_engine import Asked, choose_for_all
from fedkeel.runs.start import run
from fedkeel.runs.together import alike, run_together

log = logging.getLogger("fedkeel")


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
    chosen: bool = False  # `auto` was asked for, and `engine` is what it came to

    def __post_init__(self) -> None:
        check_name(self.engine)
        check_device(self.device)
        check_workers(self.workers)
        if self.precision not in PRECISIONS:
            raise RequestError(
                f"unknown precision: {self.precision}", nearest(self.precision, PRECISIONS, "precisions")
            )

    @property
    def stacks(self) -> bool:
        """Whether several runs may be made at once."""
        if self.tracking.mlflow or self.tracking.wandb:  # their libraries follow one run at a time
            return False
        return self.engine == "stacked" or (self.engine == "auto" and device_of(self.device).type == "cuda")

    def engine_of(self, plan: Plan) -> str:
        """A run that was begun otherwise goes on with an engine of the same bits."""
        return "auto" if self.chosen and not asked_in(plan).takes(self.engine) else self.engine


@dataclass(frozen=True)
class Outcome:
    """What became of a plan: a run, made now or earlier, or none because it failed."""

    plan: Plan
    run: Run | None
    found: bool = False
    error: RunError | None = None

    @property
    def seconds(self) -> float:
        return sum(record.seconds for record in self.run.records) if self.run else 0.0


def folder_of(label: str, experiment: Experiment, out: Path | None, alone: bool) -> Path:
    """`out` itself for one run, else `out/METHOD/SEED`; without it `runs/METHOD-FINGERPRINT`."""
    name = folder_name(label)
    if out is None:
        return Path("runs") / f"{name}-{experiment.fingerprint()}"
    if not alone and (out / EXPERIMENT).exists():  # runs below a run are found by no other command
        raise FolderError(
            f"{out} is a run itself, so several runs cannot stand in it.", "choose another folder with --out"
        )
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


def asked_in(plan: Plan) -> Asked:
    return Asked(plan.experiment, plan.folder)


def settle_engine(
    plans: Sequence[Plan], machine: Machine, choose: Callable[[Sequence[Plan], Machine], str] | None = None
) -> Machine:
    """The machine with one engine for all plans, where `auto` was asked for; `choose` finds it, or this machine."""
    if machine.engine != "auto" or all((plan.folder / "result.json").exists() for plan in plans):
        return machine
    return replace(machine, engine=(choose or choose_here)(plans, machine), chosen=True)


def choose_here(plans: Sequence[Plan], machine: Machine) -> str:
    """The engine that suits all plans on this machine."""
    stacked = any(len(group) > 1 for group in stacks(plans, machine))
    place = device_of(machine.device), PRECISIONS[machine.precision], machine.workers
    return choose_for_all([asked_in(plan) for plan in plans], *place, stacks=stacked)


def titles(plans: Sequence[Plan]) -> list[str]:
    """How runs are told apart while they go on: by method, and by seed where there are several."""
    several = len({plan.experiment.seed for plan in plans}) > 1
    return [f"{plan.label} seed {plan.experiment.seed}" if several else plan.label for plan in plans]


def finished(plan: Plan) -> Run | None:
    """The run of exactly this experiment, if its folder holds it complete."""
    if not (plan.folder / RESULT).exists() or read_experiment(plan.folder) != plan.experiment.save():
        return None
    read_sums(plan.folder)
    try:
        read_json(plan.folder / RESULT)
    except FolderError as error:
        log.warning("%s; it is made again", error.message.rstrip("."))
        return None
    if leaks(plan.folder, plan.experiment.plan):
        return None
    made = load_run(plan.folder)
    if len(made.records) != plan.experiment.plan.rounds:
        return None
    for name in edited(plan.folder, plan.experiment.plan.method.rules):
        log.warning("the module %s has been edited since %s was made: this is the old result", name, plan.folder)
    return made


def train(plans: Sequence[Plan], machine: Machine, display: Display) -> list[Outcome]:
    """All plans in turn, those that differ in seed, split or learning rate as one stack where the engine stacks.

    One that fails is told, and the others go on.
    """
    machine = settle_engine(plans, machine) if len(plans) > 1 else machine
    found = {id(plan): made for plan in plans if (made := finished(plan)) is not None}
    named = {id(plan): title for plan, title in zip(plans, titles(plans), strict=True)}
    outcomes = {of: Outcome(plan, found[of], found=True) for plan in plans if (of := id(plan)) in found}
    for group in stacks([plan for plan in plans if id(plan) not in found], machine):
        with contextlib.ExitStack() as closing:
            progress = [
                closing.enter_context(machine.tracking.followers(display.watch(title), title, plan.folder))
                for plan in group
                if (title := named[id(plan)])
            ]
            ended = run_group(group, machine, progress)
        for plan, run_or_error in zip(group, ended, strict=True):
            if isinstance(run_or_error, RunError):
                complain(f"{named[id(plan)]}: {run_or_error.message}", run_or_error.hint)
                outcomes[id(plan)] = Outcome(plan, None, error=run_or_error)
            else:
                outcomes[id(plan)] = Outcome(plan, run_or_error)
    return [outcomes[id(plan)] for plan in plans]


def stacks(plans: Sequence[Plan], machine: Machine) -> list[list[Plan]]:
    """Plans that run at once: only the stacked engine takes several."""
    if not machine.stacks:
        return [[plan] for plan in plans]
    groups: list[list[Plan]] = []
    for plan in plans:
        group = next((one for one in groups if alike(one[0].experiment, plan.experiment)), None)
        if group is None or machine.engine_of(plan) != machine.engine:
            groups.append([plan])
        else:
            group.append(plan)
    return groups


def run_group(plans: Sequence[Plan], machine: Machine, progress: Sequence[Progress]) -> Sequence[Run | RunError]:
    """One run on the engine asked for, or several as one stack."""
    dtype, track = PRECISIONS[machine.precision], machine.tracking.track
    if len(plans) > 1:
        return run_together(
            [plan.experiment for plan in plans],
            out=[plan.folder for plan in plans],
            device=machine.device,
            dtype=dtype,
            progress=progress,
            command=sys.argv,
            track=track,
        )
    try:
        made = run(
            plans[0].experiment,
            out=plans[0].folder,
            engine=machine.engine_of(plans[0]),
            workers=machine.workers,
            device=machine.device,
            dtype=dtype,
            progress=progress[0],
            command=sys.argv,
            track=track,
        )
    except RunError as error:
        return [error]
    return [made]
