"""Runs held against each other fairly: the same data, starts and participants; seeds paired; costs to a target."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from fedkeel.analysis.intervals import Interval, Seeds, list_differences, paired_interval
from fedkeel.errors import RequestError, explain_typos, require_known
from fedkeel.problems.metrics import lower_is_better
from fedkeel.runs.environment import keep_one_place
from fedkeel.runs.finished_run import Run, load_run
from fedkeel.runs.folder import folder_name
from fedkeel.runs.record import judged_on, make_frame
from fedkeel.studies import cost_to_target as cost
from fedkeel.studies.caveats import edited_between, place_of
from fedkeel.studies.run_groups import NUMBERS, RunGroup, by_measure, group_runs, measure_of
from fedkeel.typed_values import show_value
from fedkeel.written_values import check_accuracy, check_loss

if TYPE_CHECKING:
    import pandas

log = logging.getLogger("fedkeel")


@dataclass(frozen=True)
class MeanCost:
    """What it took to reach a target, on average over the seeds that did."""

    reached: int
    rounds: float
    megabytes: float
    seconds: float
    gradients: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """Methods held against each other, seeds paired, and what it took each to reach a target."""

    groups: Sequence[RunGroup]
    baseline: RunGroup
    target: float
    number: str = "best"

    @staticmethod
    def of(
        groups: Sequence[RunGroup], baseline: str | None = None, target: float | None = None, number: str = "best"
    ) -> Comparison:
        """Hold groups against the named one, or the first, at the target, or what every run reached."""
        labels = [group.label for group in groups]
        name = labels[0] if baseline is None else find_label(groups, baseline)
        aim = common_target(groups) if target is None else target
        return Comparison(groups, groups[labels.index(name)], aim, number)

    @property
    def compared_by(self) -> str:
        """The number that differences are of: the reported one where all runs have it, or `number`."""
        reported = all(group.values("reported").keys() == group.runs.keys() for group in self.groups)
        return "reported" if reported else self.number

    @property
    def is_even(self) -> bool:
        """Whether all methods have numbers of the same seeds, so that each seed is paired."""
        name, seeds = self.compared_by, self.baseline.values(self.compared_by).keys()
        return not self.gaps and all(group.values(name).keys() == seeds for group in self.groups)

    def difference(self, group: RunGroup) -> Interval | None:
        """Its mean difference to the baseline over seeds, with a Student interval; None where nothing is paired."""
        pairs = pair(group, self.baseline, self.compared_by)
        return paired_interval(pairs) if pairs else None

    @property
    def gaps(self) -> list[str]:
        """Say which means leave seeds out."""
        return [told for group in self.groups for told in group.gaps]

    def document(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "baseline": self.baseline.label,
            "judged_on": measure_of(self.groups),
            "difference_of": self.compared_by,
            "target": self.target,
            "edited": edited_between(self.groups),
            "gaps": self.gaps,
            "methods": [self._describe(group) for group in self.groups],
        }

    def _describe(self, group: RunGroup) -> dict[str, Any]:
        """A method's entry: mean and deviation of every number, its difference to the baseline, its cost."""
        spreads = {part: mean_and_std([*group.values(part).values()]) for part in NUMBERS}
        told = self.difference(group)
        spent = cost_to(group, self.target)
        return {
            "label": group.label,
            "seeds": list(group.runs),
            **{part: {"mean": mean, "std": std} for part, (mean, std) in spreads.items()},
            "difference": told and {"seeds": told.pairs, "mean": told.mean, "low": told.low, "high": told.high},
            "cost": spent and asdict(spent),
        }

    def to_pandas(self) -> pandas.DataFrame:
        """Make a DataFrame with a row for each method: `best_mean`, `difference_low`, `cost_rounds` …"""
        return make_frame([_flat(row) for row in self.document()["methods"]])

    def __repr__(self) -> str:
        name = self.compared_by
        means = [(group.label, mean_and_std([*group.values(name).values()])[0]) for group in self.groups]
        told = [label if mean is None else f"{label} {mean:.4g}" for label, mean in means]
        return f"Comparison({', '.join(told)}; {name}, to {self.baseline.label})"


def find_label(groups: Sequence[RunGroup], name: str) -> str:
    """The label of a group: itself, or the `module:name` that its runs were made under, of which folders are named."""
    labels = [group.label for group in groups]
    if name not in labels and ":" in str(name):
        folder = folder_name(str(name))
        paths = {group.label: [run.path for run in group.runs.values() if run.path is not None] for group in groups}
        under = [
            label
            for label, found in paths.items()
            if any(folder in (path.parent.name, path.name.rpartition("-")[0]) for path in found)
        ]
        if len(under) == 1:
            return under[0]
    return require_known(name, labels, "no run is of", "methods")


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A method's entry with one level of names."""
    parts = {key: value for key, value in row.items() if isinstance(value, Mapping)}
    plain = {key: value for key, value in row.items() if key not in parts and value is not None}
    return plain | {f"{key}_{name}": value for key, part in parts.items() for name, value in part.items()}


LIST = "fk.compare([run, another]), or their folders"


@explain_typos("fk.compare")
def compare(
    runs: Sequence[Run | str | PathLike[str]],
    *,
    baseline: str | None = None,
    target: float | None = None,
    measure: str | None = None,
) -> Comparison:
    """Hold runs, or folders of runs, against each other; the baseline is the first method unless one is named.

    They are compared by what they are judged on, accuracy or loss, or by another `measure` of theirs, such as "f1".

    The log names code of one's own that was edited between runs, and means that leave seeds out; the document has them
    under `edited` and `gaps`.
    """
    if not isinstance(runs, Iterable) or isinstance(runs, str | PathLike | Mapping):
        raise RequestError(f"fk.compare takes a list of runs, not {type(runs).__name__}.", LIST)
    given = list(runs)
    if not given:
        raise RequestError("there is nothing to compare.", LIST)
    for run in given:
        if not isinstance(run, Run | str | PathLike):
            raise RequestError(f"runs and folders of runs are compared, not {show_value(run)}.", LIST)
    found = [run if isinstance(run, Run) else load_run(run) for run in given]
    groups = by_measure(group_runs(found), measure)
    made = Comparison.of(groups, baseline, check_target(target, groups))
    for told in (*edited_between(made.groups), *made.gaps):
        log.warning("%s", told)
    return made


def check_target(target: Any, groups: Sequence[RunGroup]) -> float | None:
    """Return a target that runs can be held to, or None; an accuracy is a share, a loss any number."""
    return (check_accuracy if measure_of(groups) in ("accuracy", None) else check_loss)(target)


def mean_and_std(values: Sequence[float]) -> tuple[float | None, float | None]:
    if not values:
        return None, None
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def cost_to(group: RunGroup, target: float) -> MeanCost | None:
    """Rounds, bytes, seconds and clients' gradient evaluations until an accuracy, or a loss, was first reached.

    Seconds are those of the runs on one machine and engine, of which there are most.
    """
    runs = group.runs.values()
    names = [group.measure or judged_on(run.records) or "accuracy" for run in runs]
    costs = [cost.cost_to(r.records, target, name, r.plan.evaluate_every) for r, name in zip(runs, names, strict=True)]
    found = [(run, one) for run, one in zip(runs, costs, strict=True) if one is not None]
    if not found:
        return None
    each = [(c.rounds, c.bytes / 1e6, c.backward_passes) for _, c in found]
    rounds, megabytes, gradients = (statistics.fmean(column) for column in zip(*each, strict=True))
    timed = keep_one_place(found, lambda pair: place_of(pair[0]))
    return MeanCost(len(found), rounds, megabytes, statistics.fmean(c.seconds for _, c in timed), gradients)


def write_rounds(mean: float) -> str:
    """A mean of rounds, with a digit behind the point where it is not whole."""
    return f"{mean:.1f}".removesuffix(".0")


def common_target(groups: Sequence[RunGroup]) -> float:
    """Find what every run reached: the lowest of their best accuracies, or the highest of their best losses."""
    worst = max if lower_is_better(measure_of(groups) or "accuracy") else min
    return worst((value for group in groups for value in group.values("best").values()), default=0.0)


def pair(group: RunGroup, baseline: RunGroup, name: str) -> list[float]:
    """Differences of a number over the seeds both have; an accuracy and a loss have none."""
    if group is baseline or measure_of([group, baseline]) is None:
        return []
    return list_differences(group.values(name), baseline.values(name))


def paired_differences(mine: Mapping[Seeds, float], other: Mapping[Seeds, float]) -> Interval | None:
    """Compute the mean difference over the seeds both have, with a Student interval; None where they share no seed."""
    differences = list_differences(mine, other)
    return paired_interval(differences) if differences else None


def describe_difference(found: Interval | None, scale: float, form: str) -> tuple[str, str]:
    """Write a difference and its interval; nothing where there is none."""
    if found is None:
        return "", ""
    mean, *ends = (f"{scale * end:+{form}}" for end in (found.mean, found.low, found.high) if end is not None)
    return mean, " … ".join(ends)
