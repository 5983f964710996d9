"""Ranges of numbers, written beside their types: `rho: NonNegative`, `ratio: Share`, `top: Whole`.

`typed_values` checks them with the types: when a rule, a method, a phase or an experiment is made, from Python as from
a file. Every number must be finite, with a range or without.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Annotated

MOST = 10**9
"""No count of rounds, clients, steps or samples is larger."""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; `above` and `below` leave the ends out."""

    low: float = -inf
    high: float = inf
    above: bool = False
    below: bool = False

    def find_fault(self, value: float | None) -> str:
        """Say what a number outside must be. Empty: it lies inside."""
        if value is None:
            return ""
        is_under = value <= self.low if self.above else value < self.low
        is_over = value >= self.high if self.below else value > self.high
        if (is_under or is_over) and -inf < self.low and self.high < MOST:
            return f"must lie in {'(' if self.above else '['}{self.low}, {self.high}{')' if self.below else ']'}"
        if is_under:
            return f"must be {'above' if self.above else 'at least'} {self.low}"
        return f"must be {'below' if self.below else 'at most'} {self.high}" if is_over else ""


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
Amount = Annotated[int, Range(0, 2**63, below=True)]  # of bytes, of backward passes
Seed = Annotated[int, Range(-(2**63), 2**63, above=True, below=True)]  # randomness would take larger ones for smaller
