"""Seconds by part of the work."""

from __future__ import annotations

from collections.abc import Mapping


class Clock(dict[str, float]):
    """Adds up seconds: `clock.add("data", 0.1)`; parts never added are zero."""

    def __missing__(self, part: str) -> float:
        return 0.0

    def add(self, part: str, seconds: float) -> None:
        self[part] = self[part] + seconds

    def merge(self, other: Mapping[str, float]) -> None:
        for part, seconds in other.items():
            self.add(part, seconds)

    def take(self) -> dict[str, float]:
        """Return what was counted since the last call, and start anew."""
        counted = dict(self)
        self.clear()
        return counted
