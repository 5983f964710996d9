"""Ranges of numbers, written beside their types: `rho: NonNegative`, `ratio: Share`, `top: Whole`.

A value is held against them wherever it is held against its type (see values.py): when a rule, a method, a phase or an
experiment is made, from Python as from a file. Every number must be finite, with a range or without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

MOST = 10**9
"""More than any count here can be: of rounds, clients, steps, samples."""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; `above` and `below` leave the ends out."""

    low: float = -inf
    high: float = inf
    above: bool = False
    below: bool = False

    def __contains__(self, value: float) -> bool:
        return not (self.is_under(value) or self.is_over(value))

    def is_under(self, value: float) -> bool:
        return value <= self.low if self.above else value < self.low

    def is_over(self, value: float) -> bool:
        return value >= self.high if self.below else value > self.high

    def describe_for(self, value: float) -> str:
        """What a value outside must do."""
        if -inf < self.low and self.high < MOST:
            return f"must lie in {'(' if self.above else '['}{self.low}, {self.high}{')' if self.below else ']'}"
        if self.is_under(value):
            return f"must be {'above' if self.above else 'at least'} {self.low}"
        return f"must be {'below' if self.below else 'at most'} {self.high}"


AnyFinite = Annotated[float, Range()]
Positive = Annotated[float, Range(0, above=True)]
NonNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
PositiveShare = Annotated[float, Range(0, 1, above=True)]  # (0, 1]
ShareBelowOne = Annotated[float, Range(0, 1, below=True)]  # [0, 1)
OpenShare = Annotated[float, Range(0, 1, above=True, below=True)]  # (0, 1)
Passes = Annotated[float, Range(0, MOST, above=True)]  # over data: half of one is 0.5
Whole = Annotated[int, Range(0, MOST)]
Count = Annotated[int, Range(1, MOST)]


def find_fault(value: Any, wanted: Any) -> str:
    """What is wrong with a value's numbers, in words, for an annotation that its type fits; empty: nothing."""
    kind = get_origin(wanted)
    if kind in (Union, UnionType):
        faults = [find_fault(value, one) for one in get_args(wanted) if _sort_of(one) == _sort_of(type(value))]
        return min(faults, key=bool, default="")
    if isinstance(value, list | tuple):
        items = get_args(_bare(wanted))
        each = items if len(items) == len(value) and ... not in items else items[:1] * len(value)
        return next(filter(None, map(find_fault, value, each)), "")
    if isinstance(value, Mapping):
        items = get_args(_bare(wanted))[1:]
        return next(filter(None, (find_fault(item, items[0]) for item in value.values())), "") if items else ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if not _is_finite(value):
        return "must be finite"
    ranges = [one for one in get_args(wanted)[1:] if isinstance(one, Range)] if kind is Annotated else []
    return next((one.describe_for(value) for one in ranges if value not in one), "")


def has_range(wanted: Any) -> bool:
    """Whether every number that an annotation lets in has its range written beside it."""
    if get_origin(wanted) is Annotated:
        return any(isinstance(one, Range) for one in get_args(wanted)[1:])
    return wanted not in (int, float) and all(has_range(one) for one in get_args(wanted) if one is not ...)


def _bare(wanted: Any) -> Any:
    return get_args(wanted)[0] if get_origin(wanted) is Annotated else wanted


def _sort_of(wanted: Any) -> str:
    """Which of a union's types a value can be of, as far as numbers go."""
    kind = get_origin(_bare(wanted)) or _bare(wanted)
    if kind is bool or not isinstance(kind, type):
        return "other"
    sorts = {"number": int | float, "list": Sequence, "table": Mapping}
    return next((name for name, of in sorts.items() if issubclass(kind, of) and not issubclass(kind, str)), "other")


def _is_finite(value: float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # a whole number too large for a float
        return False
