"""Runs by method and setting, one for each seed, and what they are judged on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedkeel.runs.environment import compared_as
from fedkeel.runs.finished_run import Run
from fedkeel.runs.record import judged_on
from fedkeel.typed_values import flatten


@dataclass(frozen=True)
class RunGroup:
    """The runs of one method with one setting, by seed."""

    label: str
    runs: dict[int, Run]

    def values(self, name: str) -> dict[int, float]:
        """Return a number of the result of each seed: best, last, mean_last or reported."""
        found = {seed: run.result.get(name) for seed, run in self.runs.items()}
        return {seed: float(value) for seed, value in found.items() if value is not None}


def group_runs(runs: Sequence[Run]) -> list[RunGroup]:
    """Group runs that differ in nothing but their seed; labels tell apart what shares a method's name.

    Of two runs of one experiment, seed and split the later one counts; one of another split goes into another group.
    """
    found: dict[str, dict[int, Run]] = {}
    for run in runs:
        known = found.get(identity := _identity(run), {}).get(run.plan.seed, run)
        if known.plan.partition_seed != run.plan.partition_seed:
            identity += f" split {run.plan.partition_seed}"
        found.setdefault(identity, {})[run.plan.seed] = run
    names = [next(iter(group.values())).plan.method.name for group in found.values()]
    labels = [
        name if names.count(name) == 1 else f"{name} ({_setting(next(iter(group.values())), name, runs)})"
        for name, group in zip(names, found.values(), strict=True)
    ]
    return [RunGroup(label, dict(sorted(group.items()))) for label, group in zip(labels, found.values(), strict=True)]


def _identity(run: Run) -> str:
    return repr(sorted((k, repr(v)) for k, v in settings_of(run).items() if k not in ("seed", "partition_seed")))


def settings_of(run: Run) -> dict[str, Any]:
    return compared_as(run.experiment, run.path)


def _setting(run: Run, name: str, runs: Sequence[Run]) -> str:
    """Say what sets a run apart from the others of its method."""
    mine = flatten(settings_of(run))
    others = [flatten(settings_of(other)) for other in runs if other.plan.method.name == name]
    told = [key for key in mine if key != "seed" and any(other.get(key) != mine[key] for other in others)]
    if told != ["partition_seed"]:
        told = [key for key in told if key != "partition_seed"]
    return ", ".join(f"{key.rsplit('.', 1)[-1]}={mine[key]}" for key in told) or "again"


def measures_of(groups: Sequence[RunGroup]) -> set[str]:
    """Find what runs are judged on; those that have nothing yet are judged on nothing."""
    found = {judged_on(run.records) for group in groups for run in group.runs.values() if run.records}
    return {name for name in found if name is not None}


def measure_of(groups: Sequence[RunGroup]) -> str | None:
    """Find what all runs are judged on; None where they differ in it, or have nothing yet."""
    found = measures_of(groups)
    return found.pop() if len(found) == 1 else None
