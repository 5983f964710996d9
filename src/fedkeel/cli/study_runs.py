"""The runs of a sweep, a search or a leaderboard: made here, or on the workers of a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedkeel.cli.on_ray import settle_on_ray, train_on_ray
from fedkeel.cli.progress import display
from fedkeel.cli.training import Machine, Target, settle_engine, train
from fedkeel.errors import RunError
from fedkeel.runs.finished_run import Run

if TYPE_CHECKING:
    from fedkeel.engines.ray_crew import RayCrew


class StudyRuns:
    """Makes runs, None for one that failed; the engine is chosen once, for what is asked later too."""

    def __init__(self, machine: Machine, progress: bool, crew: RayCrew | None = None):
        self.machine, self.progress, self.crew = machine, progress, crew
        self.errors: dict[str, RunError] = {}  # of runs that broke off here, by label

    def __call__(self, targets: Sequence[Target]) -> list[Run | None]:
        with display(self.progress, [target.label for target in targets]) as shown:
            if self.crew is not None:
                self.machine = settle_on_ray(targets, self.machine, self.crew)
                return train_on_ray(targets, self.machine, self.crew)
            self.machine = settle_engine(targets, self.machine)
            outcomes = train(targets, self.machine, shown)
        self.errors |= {one.target.label: one.error for one in outcomes if one.error is not None}
        return [one.run for one in outcomes]
