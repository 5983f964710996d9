"""Learning rates of a sweep in which optimisers differ: a grid of SGD's rates is none for AdamW or Muon."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

from fedkeel.core.rule import Rule
from fedkeel.errors import ExperimentError, nearest
from fedkeel.importing import Trust
from fedkeel.methods.optimisers import RATES, explain_rate, find_optimiser, name_optimiser, read_optimiser
from fedkeel.methods.registry import build
from fedkeel.rules.optimisers import Optimiser
from fedkeel.text import write_value

Grids = Mapping[str, Mapping[str, tuple[Any, ...]]]
"""For each method, the values of each key."""

PREFIX = "optimizer."  # of the fields of an optimiser in a grid
SGD_RATES = (0.01, 0.03, 0.1, 0.3)


def split_by_optimiser(grids: Grids) -> Grids:
    """Make a method of each optimiser in a grid: `adamw+fedavg` has a grid, and a row, of its own.

    Fields such as `optimizer.beta2` go to the optimisers that have them.
    """
    split: dict[str, Mapping[str, tuple[Any, ...]]] = {}
    for method, grid in grids.items():
        optimisers = grid.get("optimizer", grid.get(f"{PREFIX}name"))
        if optimisers is None:  # fields are those of the experiment's own
            split[method] = grid
            continue
        rest = {word: values for word, values in grid.items() if word.partition(".")[0] != "optimizer"}
        swept = {
            word.removeprefix(PREFIX): values
            for word, values in grid.items()
            if word.startswith(PREFIX) and word != f"{PREFIX}name"
        }
        rules = [read_optimiser(given, Trust.NOTHING) for given in optimisers]
        check_fields(swept, rules)
        for given, rule in zip(optimisers, rules, strict=True):
            name = method if rule is None else f"{name_optimiser(rule)}+{method}"
            if name in split:
                raise ExperimentError(
                    f"{name} is swept twice.", f'vary what differs: [methods."{name}"] with "method.moments" = […]'
                )
            fixed = {word: (value,) for word, value in given.items()} if isinstance(given, dict) else {}
            own = {word: values for word, values in (swept | fixed).items() if word in fields_of(rule)}
            split[name] = rest | {f"method.{word}": values for word, values in own.items()}
    return split


def split_composed(
    name: str, grid: Mapping[str, tuple[Any, ...]], given: Any, rated: bool, trust: Trust
) -> dict[str, dict[str, tuple[Any, ...]]]:
    """The grid of compositions by optimiser, as `split_by_optimiser` does it for methods: each has its own fields.

    `given` is the experiment's optimiser, where the grid names none. Where the others are `rated`, and the grid has no
    `lr`, each is tuned on its own learning rates too.
    """
    several = grid.get("optimizer", grid.get(f"{PREFIX}name"))
    split: dict[str, dict[str, tuple[Any, ...]]] = {}
    for one in (given,) if several is None else several:
        rule = read_optimiser(one, trust)
        own = dict(grid)
        if several is not None:
            fixed = {f"{PREFIX}{word}": (value,) for word, value in one.items()} if isinstance(one, dict) else {}
            called = fixed.pop(f"{PREFIX}name", (one,))
            known = {f"{PREFIX}{word}" for word in fields_of(rule)}
            rest = {word: values for word, values in grid.items() if word.partition(".")[0] != "optimizer"}
            swept = {word: values for word, values in grid.items() if word in known}
            own = rest | {"optimizer": called} | swept | fixed
        label = name if several is None or rule is None else f"{name_optimiser(rule)}+{name}"
        split[label] = own if "lr" in own or not rated else {"lr": rates_of(rule), **own}
    return split


def check_fields(swept: Collection[str], rules: Sequence[Rule | None]) -> None:
    """Refuse a field that none of the optimisers has."""
    known = {word for rule in rules for word in fields_of(rule)}
    for word in (word for word in swept if word not in known):
        hint = nearest(word, known, "fields") if known else "SGD has none"
        hint = explain_rate(word) if word in RATES else hint
        raise ExperimentError(f"none of these optimizers has a field: {word}", hint)


def fields_of(rule: Rule | None) -> list[str]:
    return [] if rule is None else [one.name for one in fields(cast(Any, rule))]


def give_own_rates(grids: Grids, base: Mapping[str, Any], trust: Trust) -> Grids:
    """Where no `lr` is given and clients step with other optimisers than SGD, tune each on its own learning rates."""
    if "lr" in base:
        return grids
    optimisers = {name: optimiser_of(name, grid, base, trust) for name, grid in grids.items()}
    if not any(optimisers.values()):
        return grids
    return {name: {"lr": rates_of(optimisers[name]), **grid} for name, grid in grids.items()}


def optimiser_of(method: str, grid: Mapping[str, Sequence[Any]], base: Mapping[str, Any], trust: Trust) -> Rule | None:
    """The optimiser of a method in a sweep, with those of its fields that are not varied."""
    fixed = {word: values[0] for word, values in grid.items() if len(values) == 1}
    mine = {word.removeprefix(PREFIX): value for word, value in fixed.items() if word.startswith(PREFIX)}
    given = base.get("optimizer")
    if isinstance(given, str) and mine:
        given = {"name": given}
    shared = read_optimiser({**given, **mine} if isinstance(given, Mapping) else given, trust)
    own = {word.removeprefix("method."): value for word, value in fixed.items() if word.startswith("method.")}
    return shared or find_optimiser(build(method, own, trust))


def rates_of(rule: Rule | None) -> tuple[float, ...]:
    """The learning rates that an optimiser is tuned on; None is SGD, whose rates those without any have, too."""
    return rule.rates if isinstance(rule, Optimiser) and rule.rates else SGD_RATES


def describe_grid(grid: Mapping[str, Sequence[Any]]) -> str:
    """The values that are tried of each key, in words."""
    tried = {word.removeprefix("method."): values for word, values in grid.items() if len(values) > 1}
    return "; ".join(f"{word} {', '.join(map(write_value, values))}" for word, values in tried.items())
