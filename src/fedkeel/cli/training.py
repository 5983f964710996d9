"""Runs one after another, each into its folder: shown when it is finished there, resumed when it is not."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedkeel.cli.console import complain
from fedkeel.cli.progress import Display
from fedkeel.cli.tracking import Tracking
from fedkeel.core.states import write_text
from fedkeel.engines.choose import check_name
from fedkeel.engines.machine import PRECISIONS, check_device, check_workers, device_of
from fedkeel.errors import FolderError, RunError, require_known, writing
from fedkeel.problems.metrics import Metric
from fedkeel.runs.callbacks import Callback
from fedkeel.runs.environment import changed_functions, changed_start, check_same_data, leaks, names_before
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.finished_run import Run, load_run
from fedkeel.runs.folder import EXPERIMENT, PLANNED, RESULT, folder_name, read_experiment, read_json, read_sums
from fedkeel.runs.following import name_callbacks, warn_of_unmade
from fedkeel.runs.loop import Progress
from fedkeel.runs.own_code import warn_of_edits
from fedkeel.runs.run_folder import RunFolder
from fedkeel.runs.shared_engine import Asked, choose_for_all
from fedkeel.runs.start import run
from fedkeel.runs.together import alike, run_together

log = logging.getLogger("fedkeel")


@dataclass(frozen=True)
class Target(Asked):
    """A run to be made, or found made, in a folder; `label` tells its method from the others."""

    label: str


@dataclass(frozen=True)
class Machine:
    """Where runs are made; none of it is part of what a result is."""

    engine: str = "auto"
    workers: int | None = None
    device: str = "auto"
    precision: str = "float32"
    tracking: Tracking = field(default_factory=Tracking)
    callbacks: Sequence[Callback] = ()
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    chosen: bool = False  # `auto` was asked for, and `engine` is what it came to
    newest_only: bool = False  # a finished run keeps one checkpoint: the next ones need the disk

    def __post_init__(self) -> None:
        check_name(self.engine)
        check_device(self.device)
        check_workers(self.workers)
        require_known(self.precision, PRECISIONS, "unknown precision", "precisions")

    @property
    def stacks(self) -> bool:
        """Whether several runs may be made at once."""
        if self.tracking.mlflow or self.tracking.wandb:  # their libraries follow one run at a time
            return False
        return self.engine == "stacked" or (self.engine == "auto" and device_of(self.device).type == "cuda")

    def engine_of(self, target: Target) -> str:
        """A run that was begun otherwise goes on with an engine of the same bits."""
        return "auto" if self.chosen and not target.takes(self.engine) else self.engine


@dataclass(frozen=True)
class Outcome:
    """What became of a target: a run, made now or earlier, or none because it failed."""

    target: Target
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
        if deeper := next(folder.glob(f"*/*/*/{EXPERIMENT}"), None):
            above = deeper.parents[2]
            raise FolderError(
                f"{folder} holds runs in folders of its folders, such as {above}.", f"give these: {folder}/*"
            )
        what = "is not a run, and holds none" if folder.is_dir() else "does not exist"
        raise FolderError(f"{folder} {what}.", "give the folder that `fedkeel run` printed")
    return found


def read_planned(folder: Path) -> dict[Path, dict[str, Any]]:
    """Read the experiments of the runs below a folder that have not begun, by their own folders."""
    planned = read_json(folder / PLANNED)
    for name, data in planned.items():
        if Path(name).is_absolute() or ".." in Path(name).parts or not isinstance(data, dict):
            raise FolderError(f"{folder / PLANNED} is damaged: {name}", "remove it, and give the `fedkeel run` again")
    return {folder / name: data for name, data in planned.items() if not (folder / name / EXPERIMENT).exists()}


def note_planned(folder: Path, targets: Sequence[Target] = ()) -> None:
    """Write down which runs below a folder have not begun, these targets too, so that `fedkeel resume` makes them."""
    planned = read_planned(folder)
    planned |= {one.folder: one.experiment.save() for one in targets if not (one.folder / EXPERIMENT).exists()}
    with writing(folder, "choose another folder with --out"):
        if planned:
            folder.mkdir(parents=True, exist_ok=True)
            data = {path.relative_to(folder).as_posix(): data for path, data in planned.items()}
            write_text(folder / PLANNED, json.dumps(data, indent=2) + "\n")
        elif (folder / PLANNED).exists():
            (folder / PLANNED).unlink()


def settle_engine(targets: Sequence[Target], machine: Machine, choose: Callable[[], str] | None = None) -> Machine:
    """The machine with one engine for all targets, where `auto` was asked for; `choose` finds it, or this machine."""
    if machine.engine != "auto" or all((target.folder / RESULT).exists() for target in targets):
        return machine
    return replace(machine, engine=choose() if choose else choose_here(targets, machine), chosen=True)


def choose_here(targets: Sequence[Target], machine: Machine) -> str:
    """The engine that suits all targets on this machine."""
    stacked = any(len(group) > 1 for group in group_stacks(targets, machine))
    place = device_of(machine.device), PRECISIONS[machine.precision], machine.workers
    return choose_for_all(targets, *place, stacks=stacked)


def name_runs(targets: Sequence[Target]) -> list[str]:
    """How runs are told apart while they go on: by method, and by seed where there are several."""
    several = len({target.experiment.seed for target in targets}) > 1
    return [f"{target.label} seed {target.experiment.seed}" if several else target.label for target in targets]


def find_finished(
    target: Target, callbacks: Sequence[Callback] = (), track: Sequence[str] = (), metrics: Iterable[str] = ()
) -> Run | None:
    """The run of exactly this experiment, if its folder holds it complete, or stopped by one of these callbacks."""
    if not (target.folder / RESULT).exists() or read_experiment(target.folder) != target.experiment.save():
        return None
    read_sums(target.folder)
    try:
        read_json(target.folder / RESULT)
    except FolderError as error:
        log.warning("%s; it is made again", error.message.rstrip("."))
        return None
    made = read_unchanged(target)
    if made is None:
        return None
    stopped = made.result.get("stopped", {}).get("by") in name_callbacks(callbacks)
    if len(made.records) != target.experiment.plan.rounds and not stopped:
        return None
    warn_of_unmade(target.folder, made.records, made.kept, callbacks, metrics)
    before = {name.partition("@")[0] for name in names_before(target.folder, "track")}
    for name in track:
        if name.partition("@")[0] not in before:
            log.warning("%s was made without tracking %s: what shows it needs another --out", target.folder, name)
    warn_of_edits(target.folder, target.experiment.plan.parts)
    return made


def read_unchanged(target: Target) -> Run | None:
    """The run in a target's folder, as far as it has come; None where its data were set aside otherwise, or its
    functions or start weights are others now. Other data are refused."""
    folder, plan = target.folder, target.experiment.plan
    if leaks(folder, plan) or changed_functions(folder, plan) or changed_start(folder, plan):
        return None
    check_same_data(folder, plan)
    return load_run(folder)


def train(targets: Sequence[Target], machine: Machine, display: Display) -> list[Outcome]:
    """All targets in turn, those that differ in seed, split or learning rate as one stack where the engine stacks.

    One that fails is reported, and the others go on.
    """
    machine = settle_engine(targets, machine) if len(targets) > 1 else machine
    watched = machine.callbacks, machine.tracking.track, machine.metrics
    named = {id(target): title for target, title in zip(targets, name_runs(targets), strict=True)}
    outcomes: dict[int, Outcome] = {}
    for target in targets:
        if (made := find_finished(target, *watched)) is not None:
            outcomes[id(target)] = Outcome(target, made, found=True)
    for group in group_stacks([target for target in targets if id(target) not in outcomes], machine):
        with contextlib.ExitStack() as closing:
            progress = [
                closing.enter_context(machine.tracking.followers(display.watch(title), title, target.folder))
                for target in group
                if (title := named[id(target)])
            ]
            ended = run_group(group, machine, progress)
        for target, run_or_error in zip(group, ended, strict=True):
            if isinstance(run_or_error, RunError):
                complain(f"{named[id(target)]}: {run_or_error.message}", run_or_error.hint)
                outcomes[id(target)] = Outcome(target, None, error=run_or_error)
            else:
                outcomes[id(target)] = Outcome(target, run_or_error)
                if machine.newest_only:
                    RunFolder(target.folder).keep_newest()
    return [outcomes[id(target)] for target in targets]


def group_stacks(targets: Sequence[Target], machine: Machine) -> list[list[Target]]:
    """Plans that run at once: only the stacked engine takes several."""
    if not machine.stacks:
        return [[target] for target in targets]
    groups: list[list[Target]] = []
    for target in targets:
        group = next((one for one in groups if alike(one[0].experiment, target.experiment)), None)
        if group is None or machine.engine_of(target) != machine.engine:
            groups.append([target])
        else:
            group.append(target)
    return groups


def run_group(targets: Sequence[Target], machine: Machine, progress: Sequence[Progress]) -> Sequence[Run | RunError]:
    """One run on the engine asked for, or several as one stack."""
    shared: dict[str, Any] = {
        "device": machine.device,
        "dtype": PRECISIONS[machine.precision],
        "command": sys.argv,
        "track": machine.tracking.track,
        "callbacks": machine.callbacks,
        "metrics": machine.metrics,
    }
    if len(targets) > 1:
        experiments, folders = [one.experiment for one in targets], [one.folder for one in targets]
        ended: list[Run | RunError] = []
        for one in run_together(experiments, out=folders, progress=progress, **shared):
            if isinstance(one, Exception) and not isinstance(one, RunError):
                raise one  # as of a run alone
            ended.append(one)
        return ended
    (target,), engine = targets, machine.engine_of(targets[0])
    shared |= {"engine": engine, "workers": machine.workers, "progress": progress[0]}
    try:
        return [run(target.experiment, out=target.folder, **shared)]
    except RunError as error:
        return [error]
