"""Curves over seeds, costs and spectra of groups of runs, as plain numbers for charts and tables."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from statistics import fmean, stdev
from typing import Any

import numpy as np

from fedkeel.report.source import Group
from fedkeel.studies.cost_to_target import Spending, cost_to, spent

POINTS = 300  # of a curve in the page: more than its pixels show
SPECTRA = 40  # rounds of a spectrum over time
PROBED = ("gradient", "perturbation")  # whose spectra are tracked at a few moments
MAPS = (
    "spectrum/",
    "critical/",
    "gradient-divergence/",
    *(f"{kind}-spectrum/" for kind in PROBED),
)  # many names each, drawn as maps


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (of the sample) over seeds, of those that have the value."""

    mean: float
    deviation: float
    count: int

    @staticmethod
    def of(values: Iterable[float | None]) -> Spread | None:
        found = [value for value in values if value is not None and math.isfinite(value)]
        if not found:
            return None
        return Spread(fmean(found), stdev(found) if len(found) > 1 else 0.0, len(found))


@dataclass(frozen=True, eq=False)
class Curve:
    """A measure over rounds: its mean over the seeds that have the round, and their standard deviation."""

    rounds: list[int]
    mean: list[float]
    deviation: list[float]


def curve(group: Group, measure: str, points: int = POINTS) -> Curve | None:
    """None where no run has the measure."""
    values = by_round(group, measure)
    if not values:
        return None
    rounds = thinned(sorted(values), points)
    spreads = [Spread.of(values[number]) for number in rounds]
    kept = [(number, spread) for number, spread in zip(rounds, spreads, strict=True) if spread is not None]
    return Curve([n for n, _ in kept], [s.mean for _, s in kept], [s.deviation for _, s in kept])


@lru_cache(maxsize=512)  # a report asks for the same curves several times
def by_round(group: Group, measure: str) -> Mapping[int, Sequence[float]]:
    """What the runs of a group have measured after each round."""
    values: dict[int, list[float]] = {}
    for run in group.runs:
        for record in run.records:
            if (value := record.measure(measure)) is not None:
                values.setdefault(record.round, []).append(value)
    return values


def thinned(rounds: Sequence[int], points: int) -> list[int]:
    """At most so many of them, evenly spread, the first and the last among them."""
    if len(rounds) <= points:
        return list(rounds)
    return [rounds[i] for i in np.linspace(0, len(rounds) - 1, points).round().astype(int)]


def spent_by(group: Group, part: str, rounds: Sequence[int]) -> list[float]:
    """Bytes both ways used up to each of the rounds, the mean over the runs that got there; or seconds, of those on one
    machine and engine."""
    totals = []
    for run in group.timed if part == "seconds" else group.runs:
        each = [record.seconds if part == "seconds" else record.bytes_up + record.bytes_down for record in run.records]
        totals.append(list(accumulate(each)))
    there = ([total[n - 1] for total in totals if len(total) >= n] for n in rounds)
    return [math.fsum(found) / len(found) for found in there]


def measures(groups: Sequence[Group]) -> list[str]:
    """Every measure that a chart can show, the common ones first; spectra and critical layers have their own."""
    found: dict[str, None] = {}
    for group in groups:
        for run in group.runs:
            for record in (*run.records[:6], *run.records[-6:]):
                found |= dict.fromkeys(name for name in record.extra if not name.startswith(MAPS))
    records = [record for group in groups for run in group.runs for record in run.records]
    common = ("accuracy", "test_loss", "loss", "drift")
    first = [name for name in common if any(record.measure(name) is not None for record in records)]
    return [*first, *(name for name in sorted(found) if name not in first)]


# ---- the table -----------------------------------------------------------------------------------------------------
RESULTS = ("best", "last", "mean_last", "reported")
"""Of the evaluated rounds; the last only where an evaluation policy reports it of clients' models."""


@dataclass(frozen=True, eq=False)
class Row:
    """A line of the summary, over seeds: each of RESULTS, and costs in total."""

    group: Group
    results: Mapping[str, Spread | None]
    totals: Sequence[Spending]
    to_target: Sequence[Spending | None]


def row(group: Group, target: float | None) -> Row:
    measure = group.measure or "loss"
    found = [run.summarise(measure) | {"reported": run.reported} for run in group.runs]
    return Row(
        group,
        {name: Spread.of(one.get(name) for one in found) for name in RESULTS},
        [spent(run.records) for run in group.runs],
        [None if target is None else cost_to(run.records, target, measure, run.every) for run in group.runs],
    )


def common_target(groups: Sequence[Group]) -> float | None:
    """The hardest target that every run reaches, in two digits: what costs are compared at when none is given."""
    if not groups or any(group.measure != "accuracy" for group in groups):
        return None
    bests = [run.summarise("accuracy").get("best", 0.0) for group in groups for run in group.runs]
    lowest = min(bests)
    shares = [share / 100 for share in range(1, 101)]  # floor(100 * 0.57) is 56
    return max((share for share in shares if share <= lowest), default=None)


# ---- spectra -------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=512)
def spectra(group: Group, kind: str = "distance", of: str = "spectrum") -> dict[str, Any] | None:
    """Dist(m) or Std(m) over rounds, `values` [rounds, bands], as tracked; the mean over seeds."""
    prefix = f"{of}/{kind}/"
    records = [record for run in group.runs for record in run.records]
    found = ([name for name in record.extra if name.startswith(prefix)] for record in records)
    names = sorted(next(filter(None, found), ()), key=lambda name: int(name.removeprefix(prefix)))
    return map_of(group, lambda extra: names[0] in extra, names) if names else None


@lru_cache(maxsize=64)
def probed(group: Group, kind: str) -> dict[str, Any] | None:
    """What was tracked of gradients or perturbations, as `fedkeel analyse` has it of the last model: Dist(m), Std(m),
    the variance, Dist(m) by layer and how far each client is; means over the tracked `rounds` and seeds."""
    name_of = re.compile(r"(distance|deviation|variance|(?:layer|client)/.+)/(\d{1,3})")
    values: dict[str, dict[int, list[float]]] = {}
    rounds: set[int] = set()
    for number, name, value in tracked(group, f"{kind}-spectrum/"):
        if found := name_of.fullmatch(name):
            values.setdefault(found[1], {}).setdefault(int(found[2]), []).append(value)
            rounds.add(number)
    if "distance" not in values:
        return None
    bands = range(1, max(max(row) for row in values.values()) + 1)
    rows = {name: [float(np.mean(row.get(m, [np.nan]))) for m in bands] for name, row in values.items()}
    parts = {part: {name.partition("/")[2]: row for name, row in rows.items() if name.startswith(part)}
             for part in ("layer/", "client/")}  # fmt: skip
    plain = {name: row for name, row in rows.items() if "/" not in name}
    return plain | {"layers": parts["layer/"], "clients": parts["client/"], "rounds": sorted(rounds)}


def tracked(group: Group, prefix: str) -> Iterator[tuple[int, str, float]]:
    """The numbers of each round whose names begin so, with the rest of their names."""
    for record in (record for run in group.runs for record in run.records):
        for name, value in record.extra.items():
            if value is not None and name.startswith(prefix):
                yield record.round, name.removeprefix(prefix), value


def diverged(group: Group) -> dict[str, Any] | None:
    """How far clients' gradients are from their mean by layer, before and after a filter, as tracked; the mean over
    rounds and seeds."""
    values: dict[str, dict[str, list[float]]] = {"before": {}, "after": {}}
    rounds: set[int] = set()
    for number, name, value in tracked(group, "gradient-divergence/"):
        when, _, layer = name.partition("/")
        if when in values and layer:
            values[when].setdefault(layer, []).append(value)
            rounds.add(number)
    layers = [layer for layer in values["before"] if layer in values["after"]]
    means = {when: {layer: float(np.mean(rows[layer])) for layer in layers} for when, rows in values.items()}
    return {"divergence": means, "rounds": sorted(rounds)} if layers else None


def critical(group: Group) -> dict[str, Any] | None:
    """The share of clients that marked each layer, `values` [rounds, layers], as tracked; the mean over seeds."""
    layers = next((named for run in group.runs for r in run.records if (named := marked(r.extra))), None)
    if layers is None:
        return None
    names = [f"critical/{name}" for name in layers]
    return {"layers": layers} | map_of(group, lambda extra: marked(extra) == layers, names)


def map_of(group: Group, has: Callable[[Mapping[str, Any]], bool], names: Sequence[str]) -> dict[str, Any]:
    """The named numbers over some of the rounds that have them, the mean over the seeds that have it: `values` [rounds,
    names], NaN where none has."""
    rows: dict[int, list[Mapping[str, Any]]] = {}
    for record in (record for run in group.runs for record in run.records if has(record.extra)):
        rows.setdefault(record.round, []).append(record.extra)
    rounds = thinned(sorted(rows), SPECTRA)
    means = [[Spread.of(extra.get(name) for extra in rows[number]) for name in names] for number in rounds]
    return {"rounds": rounds, "values": [[math.nan if one is None else one.mean for one in row] for row in means]}


def marked(extra: Mapping[str, Any]) -> list[str]:
    return [name.removeprefix("critical/") for name in extra if name.startswith("critical/")]
