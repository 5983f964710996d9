"""Runs by method and setting, one for each seed, and what they are judged on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedkeel.errors import require_known
from fedkeel.problems.policy import POLICY, leave_out_defaults
from fedkeel.runs.environment import compared_as
from fedkeel.runs.finished_run import Run
from fedkeel.runs.record import RoundRecord, judged_on, summarise
from fedkeel.text import write_settings
from fedkeel.typed_values import flatten, name_keys

NUMBERS = {"best": "Best", "last": "Last", "mean_last": "Mean of last", "reported": "Reported"}
"""Numbers of a result and their titles; the last one where an evaluation policy judges clients' models."""


@dataclass(frozen=True)
class RunGroup:
    """The runs of one method with one setting, by seed; runs with other seeds that were `asked` for have failed. They
    are compared by a `measure`, or by what they are judged on."""

    label: str
    runs: dict[int, Run]
    asked: Sequence[int] = ()
    measure: str | None = None

    @property
    def seeds(self) -> list[int]:
        return sorted({*self.runs, *self.asked})

    def values(self, name: str) -> dict[int, float]:
        """Return a number of the result of each seed: best, last, mean_last or reported."""
        found = {seed: result.get(name) for seed, result in self.results.items()}
        return {seed: float(value) for seed, value in found.items() if value is not None}

    @property
    def gaps(self) -> list[str]:
        """Say which of its means leave seeds out."""
        known = self.results
        return name_gaps(self.label, [(seed, known.get(seed, {})) for seed in self.seeds])

    @property
    def results(self) -> dict[int, Mapping[str, Any]]:
        """The result of each seed, of the measure by which runs are compared."""
        if self.measure is None:
            return {seed: run.result for seed, run in self.runs.items()}
        return {s: summarise(run.records, run.plan.evaluate_every, self.measure) for s, run in self.runs.items()}


def name_gaps(label: str, results: Sequence[tuple[int, Mapping[str, Any]]]) -> list[str]:
    """Say which means over results by seed leave seeds out: their number is not finite, or their run failed."""
    gaps: dict[tuple[int, ...], list[str]] = {}
    for part, title in NUMBERS.items():
        without = tuple(seed for seed, result in results if result.get(part) is None)
        if 0 < len(without) < len(results):
            gaps.setdefault(without, []).append(title.lower())
    return [
        f"{label}: {', '.join(titles)} over {len(results) - len(seeds)} of {len(results)} seeds, "
        f"since {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))} gave no number"
        for seeds, titles in gaps.items()
    ]


def group_runs(runs: Sequence[Run], asked: Sequence[int] = ()) -> list[RunGroup]:
    """Group runs that differ in nothing but their seed; labels tell apart what shares a method's name.

    Of two runs of one experiment, seed and split the later one counts. Runs on one split for several seeds and runs
    whose seeds have splits of their own are different groups, in whatever order they come. `asked` are the seeds of
    which each group should have a run.
    """
    alike: dict[str, list[Run]] = {}
    for run in runs:
        alike.setdefault(_identity(run), []).append(run)
    found: dict[tuple[str, int | None], dict[int, Run]] = {}
    for identity, same in alike.items():
        own = _find_own_splits(same)
        for run in same:
            seed, split = run.plan.seed, run.plan.partition_seed
            found.setdefault((identity, None if (seed, split) in own else split), {})[seed] = run
    names = [next(iter(group.values())).plan.method.name for group in found.values()]
    labels = []
    for name, (identity, _), group in zip(names, found, found.values(), strict=True):
        words = _setting(next(iter(group.values())), name, runs)
        if sum(other == identity for other, _ in found) > 1:
            splits = {run.plan.partition_seed for run in group.values()}
            words.append(f"partition_seed={splits.pop()}" if len(splits) == 1 else "a split for each seed")
        labels.append(name if names.count(name) == 1 else f"{name} ({', '.join(words) or 'again'})")
    made = zip(labels, found.values(), strict=True)
    return [RunGroup(label, dict(sorted(group.items())), asked) for label, group in made]


def _identity(run: Run) -> str:
    return repr(sorted((k, repr(v)) for k, v in settings_of(run).items() if k not in ("seed", "partition_seed")))


def _find_own_splits(runs: Sequence[Run]) -> set[tuple[int, int]]:
    """Find seeds with a split that no other seed has; of several, a seed's own is the one with its number, or none."""
    pairs = {(run.plan.seed, run.plan.partition_seed) for run in runs}
    sharing = Counter(split for _, split in pairs)
    lone = [(seed, split) for seed, split in pairs if sharing[split] == 1]
    having = Counter(seed for seed, _ in lone)
    return {(seed, split) for seed, split in lone if seed == split or having[seed] == 1}


def settings_of(run: Run) -> dict[str, Any]:
    return compared_as(run.experiment, run.path)


def _setting(run: Run, name: str, runs: Sequence[Run]) -> list[str]:
    """Say what sets a run apart from the others of its method."""
    whole = flatten(settings_of(run))
    others = [flatten(settings_of(other)) for other in runs if other.plan.method.name == name]
    mine = leave_out_defaults(whole, others)
    varied = [key for key in mine if any(other.get(key) != mine[key] for other in others)]
    words = write_settings({key: mine[key] for key in varied if key not in ("seed", "partition_seed")})
    judged = any(key.startswith(POLICY) for other in others for key in other)
    if judged and run.plan.evaluation is None:
        return ["the server's model", *words]
    lacking = name_keys(key for other in others for key in other if key not in whole)
    return words or [f"default {key}" for key in lacking]


def measures_of(groups: Sequence[RunGroup]) -> set[str]:
    """Find what runs are judged on; those that have nothing yet are judged on nothing."""
    found = {group.measure or judged_on(run.records) for group in groups for run in group.runs.values() if run.records}
    return {name for name in found if name is not None}


def by_measure(groups: Sequence[RunGroup], measure: str | None) -> list[RunGroup]:
    """The same groups, compared by another measure of their runs; by what they are judged on without one.

    "loss" is the test loss where runs have one, as in callbacks, and "training_loss" the clients' own.
    """
    if measure is None:
        return [replace(group, measure=None) for group in groups]
    records = [record for group in groups for run in group.runs.values() for record in run.records]
    named = dict.fromkeys(name for record in records for name in ("accuracy", "loss", *record.extra))
    known = {name: name for name in named if is_measured(records, name)}
    if "loss" in known:
        known = {"training_loss": "loss"} | known
    if "test_loss" in known:
        known["loss"] = "test_loss"
    found = known[require_known(measure, known, "no run has the measure", "measures")]
    return [replace(group, measure=found) for group in groups]


def describe_measure(measure: str) -> str:
    """Write a measure in words; what records call "loss" is of the clients' training."""
    return "training loss" if measure == "loss" else measure.replace("_", " ")


def is_measured(records: Sequence[RoundRecord], measure: str) -> bool:
    return any(record.measure(measure) is not None for record in records)


def measure_of(groups: Sequence[RunGroup]) -> str | None:
    """Find what all runs are judged on; None where they differ in it, or have nothing yet."""
    found = measures_of(groups)
    return found.pop() if len(found) == 1 else None
