"""The grids and seeds of a study: what its file gives, checked, and each setting as words."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from fedkeel.errors import ExperimentError
from fedkeel.runs.experiment import with_field
from fedkeel.text import write_value
from fedkeel.typed_values import flatten, show_value

Setting = tuple[tuple[str, Any], ...]
"""Keys of an experiment, each with its value."""


def grid_of(given: Any) -> dict[str, tuple[Any, ...]]:
    """The values of each key, each once, from a table of a file; a value alone is a list of one."""
    if not isinstance(given, Mapping):
        raise ExperimentError(f"a grid gives keys their values: {show_value(given)}", "lr = [0.01, 0.1]")
    flat = flatten(given, lists=False)
    found = {word: drop_repeats(values if isinstance(values, list) else [values]) for word, values in flat.items()}
    for word, values in found.items():
        if not values:
            raise ExperimentError(f"the grid of {word} is empty.", f"{word} = [0.01, 0.1], or leave it out")
        if nested := [value for value in values if isinstance(value, list | Mapping) and word != "optimizer"]:
            raise ExperimentError(
                f"a grid lists single values, and {word} has: {show_value(nested[0])}",
                f'vary a field alone, such as "schedule.end" = [0, 0.1], or give {word} once, above',
            )
    return found


def drop_repeats(values: Sequence[Any]) -> tuple[Any, ...]:
    """Each value once; 1 and 1.0 are one number, and true is none."""
    found: dict[Any, Any] = {}
    for value in values:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        found.setdefault(value if number else repr(value), value)
    return tuple(found.values())


def with_setting(data: Mapping[str, Any], setting: Setting) -> dict[str, Any]:
    """The data of an experiment with the values of a setting; fields enter into what the keys give."""
    made = dict(data) | {word: value for word, value in setting if "." not in word}
    for word, value in setting:
        key, dot, name = word.partition(".")
        made = with_field(made, key, name, value) if dot else made
    return made


def settings_of(grid: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """List every combination of a grid's values."""
    return [tuple(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def label_of(method: str, setting: Setting) -> str:
    return f"{method} {describe(setting)}".strip()


def describe(setting: Setting) -> str:
    return " ".join(f"{word.removeprefix('method.')}={write_value(value)}" for word, value in setting)


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse seeds of which there are none, or one twice."""
    if not seeds:
        raise ExperimentError("seeds must name at least one.", "seeds = [0, 1, 2]")
    if len(set(seeds)) < len(seeds):
        raise ExperimentError(f"a seed is given twice: {show_value(seeds)}", "every seed is one run of each method")


def check_fresh_seeds(seeds: Sequence[int], own: int, split: Any = None) -> None:
    """Refuse them also if the study's `own` seed is among them, or the `split` of its tries: these chose by both, and a
    final run divides the data by its own seed."""
    check_seeds(seeds)
    for used, what in ((own, "seed"), (split, "partition_seed")):
        if used in seeds:
            fresh = [seed for seed in seeds if seed not in (own, split)] or [max(own, used) + 1]
            raise ExperimentError(
                f"{what} {used} is that of the tries: final runs take fresh ones.", f"for example seeds = {fresh}"
            )
