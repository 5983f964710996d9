"""Learning rates of a sweep in which optimisers differ: a grid of SGD's rates is none for AdamW or Muon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedkeel.core.rule import Rule
from fedkeel.errors import ExperimentError
from fedkeel.importing import Trust
from fedkeel.methods.optimisers import find_optimiser, name_optimiser, read_optimiser
from fedkeel.methods.registry import build
from fedkeel.rules.optimisers import Optimiser

Grids = Mapping[str, Mapping[str, tuple[Any, ...]]]
"""For each method, the values of each key."""

SGD_RATES = (0.01, 0.03, 0.1, 0.3)


def split_by_optimiser(grids: Grids) -> Grids:
    """Make a method of each optimiser in a grid: `adamw+fedavg` has a grid, and a row, of its own."""
    split: dict[str, Mapping[str, tuple[Any, ...]]] = {}
    for method, grid in grids.items():
        rest = {word: values for word, values in grid.items() if word != "optimizer"}
        for given in grid.get("optimizer", (None,)):
            rule = read_optimiser(given, Trust.NOTHING)
            name = method if rule is None else f"{name_optimiser(rule)}+{method}"
            if name in split:
                raise ExperimentError(
                    f"{name} is swept twice.", f'vary what differs: [methods."{name}"] with "method.moments" = […]'
                )
            fixed = {word: value for word, value in given.items() if word != "name"} if isinstance(given, dict) else {}
            split[name] = rest | {f"method.{word}": (value,) for word, value in fixed.items()}
    return split


def give_own_rates(grids: Grids, base: Mapping[str, Any], trust: Trust) -> Grids:
    """Where no `lr` is given and clients step with other optimisers than SGD, tune each on its own learning rates."""
    if "lr" in base:
        return grids
    shared = read_optimiser(base.get("optimizer"), trust)
    optimisers = {name: shared or find_optimiser(build(name, trust=trust)) for name in grids}
    if not any(optimisers.values()):
        return grids
    return {name: {"lr": rates_of(optimisers[name]), **grid} for name, grid in grids.items()}


def rates_of(rule: Rule | None) -> tuple[float, ...]:
    """The learning rates that an optimiser is tuned on; None is SGD."""
    return rule.rates if isinstance(rule, Optimiser) else SGD_RATES


def describe_grid(grid: Mapping[str, Sequence[Any]]) -> str:
    """The values that are tried of each key, in words."""
    tried = {word.removeprefix("method."): values for word, values in grid.items() if len(values) > 1}
    return "; ".join(f"{word} {', '.join(map(_write, values))}" for word, values in tried.items())


def _write(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
