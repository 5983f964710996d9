"""How sure a mean difference is: Student's interval over pairs, Welch's over groups, standard deviations pooled."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from scipy.special import stdtr, stdtrit  # scipy.stats takes a second to import

LEVEL = 0.95
MISSES = round(1 / (1 - LEVEL))  # one interval in so many does not hold the true difference
ROUNDING = 1e-9  # of numbers' size: a smaller deviation is none
Seeds = TypeVar("Seeds")
ONE_SEED, ALIKE = "one seed", "all seeds alike"


@dataclass(frozen=True)
class Interval:
    """A mean and the ends of its confidence interval, None where values cannot tell how far they vary, for a `reason`:
    there is one alone, or all are alike, as multiples of 1 / n often are. `pairs` is how many seeds all sides have in
    common, or 0 where the sides were not paired. It allows for so many `looks` (`difference_interval`)."""

    mean: float
    low: float | None
    high: float | None
    pairs: int = 0
    reason: str = ""
    looks: int = 1


@dataclass(frozen=True)
class Pooled:
    """The standard deviation within groups of repeated values, of how many values in how many groups."""

    std: float
    values: int
    groups: int


def add_signed(*numbers: float) -> float:
    """The sum of numbers of either sign; 0 where what is left is their rounding."""
    left = math.fsum(numbers)
    return 0.0 if abs(left) <= ROUNDING * max(map(abs, numbers)) else left


def list_differences(mine: Mapping[Seeds, float], other: Mapping[Seeds, float]) -> list[float]:
    """The differences over the seeds that both have."""
    return [add_signed(mine[seed], -other[seed]) for seed in mine if seed in other]


def paired_interval(differences: Sequence[float], looks: int = 1) -> Interval:
    """The mean of differences of pairs, with Student's interval."""
    mean, count = statistics.fmean(differences), len(differences)
    if count < 2:
        return Interval(mean, None, None, count, ONE_SEED, looks)
    if _are_alike(differences):
        return Interval(mean, None, None, count, ALIKE, looks)
    half = _quantile(count - 1, looks) * statistics.stdev(differences) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count, looks=looks)


def paired_p_value(differences: Sequence[float]) -> float | None:
    """How often Student's t would be as far from 0 if the pairs did not differ; None where there is no interval."""
    if len(differences) < 2 or _are_alike(differences):
        return None
    deviation, mean = statistics.stdev(differences), statistics.fmean(differences)
    return float(2 * stdtr(len(differences) - 1, -abs(mean) * math.sqrt(len(differences)) / deviation))


def welch_interval(sides: Sequence[tuple[float, Sequence[float]]], looks: int = 1) -> Interval:
    """The sum of groups' means, each with its sign, with Welch's interval: each group has a variance of its own."""
    mean = math.fsum(sign * statistics.fmean(values) for sign, values in sides)
    if min(len(values) for _, values in sides) < 2:
        return Interval(mean, None, None, reason=ONE_SEED, looks=looks)
    if all(_are_alike(values) for _, values in sides):
        return Interval(mean, None, None, reason=ALIKE, looks=looks)
    errors = [(statistics.variance(values) / len(values), len(values) - 1) for _, values in sides]
    total = math.fsum(error for error, _ in errors)
    freedom = total**2 / math.fsum(error**2 / degrees for error, degrees in errors)
    half = _quantile(freedom, looks) * math.sqrt(total)
    return Interval(mean, mean - half, mean + half, looks=looks)


def difference_interval(sides: Sequence[tuple[float, Mapping[int, float]]], looks: int = 1) -> Interval:
    """The sum of means by seed, each with its sign: paired where two seeds or more are common to all, else Welch's;
    where that is impossible too, over what seeds are common.

    Who adds seeds until an interval decides looks at it several times, and each look may err. After k `looks` it misses
    the true difference with the probability 0.05 / 2^(k−1), so all looks together, however many, in less than one case
    of ten (0.05 + 0.025 + …)."""
    common = sorted(set.intersection(*(set(values) for _, values in sides)))
    apart = min(len(values) for _, values in sides) > 1
    if len(common) > 1 or (common and not apart):
        return paired_interval([add_signed(*(sign * values[seed] for sign, values in sides)) for seed in common], looks)
    return welch_interval([(sign, list(values.values())) for sign, values in sides], looks)


def pooled_std(groups: Iterable[Sequence[float]]) -> Pooled | None:
    """The common standard deviation within groups; None where no group has two values."""
    repeated = [values for values in groups if len(values) > 1]
    if not repeated:
        return None
    squares = math.fsum(statistics.variance(values) * (len(values) - 1) for values in repeated)
    count = sum(len(values) for values in repeated)
    return Pooled(math.sqrt(squares / (count - len(repeated))), count, len(repeated))


def _are_alike(values: Sequence[float]) -> bool:
    """Whether values are equal up to rounding."""
    return statistics.stdev(values) <= ROUNDING * max(map(abs, values))


def _quantile(freedom: float, looks: int) -> float:
    return float(stdtrit(freedom, 1 - (1 - LEVEL) / 2**looks))
