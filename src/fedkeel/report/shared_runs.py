"""What runs have in common: seeds, rounds, and how much their models have learnt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from fedkeel.papers import spectra
from fedkeel.papers.figures import Panel
from fedkeel.report.source import Group, Source


@dataclass(frozen=True)
class Accuracy:
    """The mean accuracy of runs, in %, and the round that it is of; None: the best round of each."""

    percent: float
    round: int | None

    def __str__(self) -> str:
        return f"{self.percent:.1f} % at {'best' if self.round is None else f'round {self.round}'}"


def read_accuracy(runs: Sequence[Source]) -> Accuracy | None:
    """The mean over all runs at the last round that all know it of, or else of the best that each had."""
    known = [{r.round: r.accuracy for r in run.records if r.accuracy is not None} for run in runs]
    common = set.intersection(*(set(one) for one in known)) if known else set()
    if common:
        last = max(common)
        return Accuracy(100 * fmean(one[last] for one in known), last)
    bests = [best for run in runs if (best := run.result.get("best")) is not None]
    return Accuracy(100 * fmean(bests), None) if bests and len(bests) == len(runs) else None


def is_at_chance(runs: Sequence[Source]) -> bool:
    """Whether models are no better than guessing, as far as their accuracy is known."""
    found = read_accuracy(runs)
    return found is not None and spectra.is_at_chance(found.percent, runs[0].experiment["dataset"])


def keep_common_seeds(groups: Sequence[Group]) -> list[Group]:
    """The groups with the seeds that all have, where there are any."""
    common = set.intersection(*({run.seed for run in group.runs} for group in groups)) if groups else set()
    return [replace(one, runs=[run for run in one.runs if run.seed in common]) if common else one for one in groups]


def keep_common_rounds(groups: Sequence[Group], panel: Panel) -> list[Group]:
    """The groups with the rounds in which all of their runs have what a panel shows; runs that never have it stay."""
    measured = [find_rounds(run, panel) for group in groups for run in group.runs]
    common = set.intersection(*found) if (found := [one for one in measured if one]) else set()

    def cut(run: Source) -> Source:
        kept = [record for record in run.records if record.round in common]
        return replace(run, records=kept) if find_rounds(run, panel) else run

    return [replace(group, runs=[cut(run) for run in group.runs]) for group in groups]


def find_rounds(run: Source, panel: Panel) -> set[int]:
    """The rounds in which a run has what a panel shows: a measure, or what was tracked."""
    if panel.kind == "curves":
        return {record.round for record in run.records if record.measure(panel.measure) is not None}
    names = tuple(f"{chart}/" for chart in panel.charts)
    return {record.round for record in run.records if any(name.startswith(names) for name in record.extra)}
