"""The runs of a sweep, a search or a leaderboard: made here, or on the workers of a Ray cluster (`--on ray`)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from fedkeel.cli.progress import display
from fedkeel.cli.training import Machine, Target, name_runs, settle_engine, train
from fedkeel.engines.choose import settle_device
from fedkeel.errors import RequestError, RunError
from fedkeel.papers.reproduce import place_of
from fedkeel.runs.environment import check_same_data
from fedkeel.runs.experiment import given_from_python
from fedkeel.runs.finished_run import Run
from fedkeel.studies.sweep import Execute

if TYPE_CHECKING:
    from fedkeel.engines.ray_crew import RayCrew
    from fedkeel.studies.ray_cluster import RunRequest


class StudyRuns:
    """Makes runs, None for one that failed; the engine is chosen once, for what is asked later too."""

    def __init__(self, machine: Machine, progress: bool, crew: RayCrew | None = None):
        self.machine, self.progress, self.crew = replace(machine, newest_only=True), progress, crew
        self.errors: dict[str, RunError] = {}  # of runs that broke off here, by label

    def __call__(self, targets: Sequence[Target]) -> list[Run | None]:
        with display(self.progress, name_runs(targets)) as shown:
            if self.crew is not None:
                return self._make_on_ray(targets, self.crew)
            self.machine = settle_engine(targets, self.machine)
            outcomes = train(targets, self.machine, shown)
        self.errors |= {one.target.label: one.error for one in outcomes if one.error is not None}
        if any(isinstance(error.__cause__, OSError | SafetensorError) for error in self.errors.values()):
            raise RunError(
                "the study stops, since a disk that fails says nothing about a method.",
                "let it be written again (see above), then give the same command again",
            )
        return [one.run for one in outcomes]

    def into(self, out: Path) -> Execute:
        """What a study calls with labels and experiments: each is run in a folder of its own below `out`."""
        return lambda asked: self([Target(one, out / place_of(one), label) for label, one in asked])

    def _make_on_ray(self, targets: Sequence[Target], crew: RayCrew) -> list[Run | None]:
        """The same on workers, of which one chooses the engine."""
        from fedkeel.studies.ray_cluster import choose_on_ray, runs_on_ray

        if any(given_from_python(one.experiment) for one in targets):
            raise RequestError("a problem or network of your own is not sent to other machines.", "leave --on out")
        for one in targets:  # a worker's refusal would count as a failure of the method
            check_same_data(one.folder, one.experiment.plan)
        self.machine = settle_engine(targets, self.machine, lambda: choose_on_ray(self._requests(targets), crew))
        return runs_on_ray([*zip(name_runs(targets), self._requests(targets), strict=True)], crew)

    def _requests(self, targets: Sequence[Target]) -> list[RunRequest]:
        """Targets as they are handed to workers."""
        from fedkeel.studies.ray_cluster import RunRequest

        place = self.machine.device, self.machine.precision, self.machine.workers
        return [
            RunRequest(one.experiment.save(), str(one.folder.absolute()), self.machine.engine_of(one), *place)
            for one in targets
        ]


def open_cluster(on: str, machine: Machine) -> contextlib.AbstractContextManager[RayCrew | None]:
    """Open workers once for all that is asked of them; none where runs are made here."""
    if on not in ("here", "ray"):
        raise RequestError(f"runs are made here or on ray, not on: {on}", "leave --on out, or write --on ray")
    if on == "here":
        return contextlib.nullcontext()
    from fedkeel.studies.ray_cluster import ALONE, hire

    if machine.metrics:
        raise RequestError("--metrics are measured here, and not by runs on ray.", "leave --on or --metrics out")
    if machine.engine in ALONE:
        raise RequestError(
            f"--on ray gives each run one worker, and --engine {machine.engine} spreads a run over many.",
            f"--engine {ALONE[machine.engine]}",
        )
    return hire(settle_device(machine.engine, machine.device), machine.workers)
