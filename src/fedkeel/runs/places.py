"""On what a run's seconds were measured: seconds of one place are averaged, those of several are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

NOT_AVERAGED = "none are averaged across them"


def describe_place(environment: Mapping[str, Any], timing: Mapping[str, Any]) -> str:
    """Device, engines, precision and machine of a run, in words; empty where nothing is known of them."""
    if not environment:
        return ""
    engine, machine = engines_of(environment), environment.get("machine")
    words = " ".join(str(word) for word in (environment.get("device"), engine, environment.get("precision")) if word)
    words += f" on {machine}" if isinstance(machine, str) and environment.get("device") == "cpu" else ""
    return f"{words}, several at once" if timing.get("shared") else words


def engines_of(environment: Mapping[str, Any]) -> str:
    """Name the engine, or all that took part where a run went on with another."""
    given = environment.get("engines")
    listed = [one.get("engine") for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
    return " and ".join(dict.fromkeys(str(name) for name in (*listed, environment.get("engine"))))


def keep_one_place(items: Sequence[T], place_of: Callable[[T], str]) -> list[T]:
    """Keep the items of the place that most of them share; of two such places, those of the first."""
    groups: dict[str, list[T]] = {}
    for item in items:
        groups.setdefault(place_of(item), []).append(item)
    return max(groups.values(), key=len, default=[])
