"""Sweeps: every method gets the same data, starts, participants and tuning budget, and is chosen on validation data.

    dataset = "digits"            # keys of an experiment, shared by all
    validation = 0.1              # settings are chosen on this share of each client's data, never on the test set
    seeds = [0, 1, 2]             # of the final runs; tuning uses the first
    budget = 12                   # the most settings tried for each method

    [grid]                        # tried for every method
    lr = [0.01, 0.05, 0.1]

    [methods.fedavg]
    [methods.fedprox]             # a method's own grid
    "method.mu" = [0.001, 0.01, 0.1]

With sampler = "optuna", values between the ends of each grid are proposed instead (`pip install 'fedkeel[sweep]'`).
When the best setting lies on the edge of a grid, the grid grows there by one value, as long as the budget lasts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedkeel.errors import ExperimentError, nearest
from fedkeel.experiment import Experiment
from fedkeel.runs import Run

KEYS = ("seeds", "budget", "sampler", "grid", "methods")
Setting = tuple[tuple[str, Any], ...]
Execute = Callable[[Sequence[tuple[str, Experiment]]], Sequence[Run | None]]
"""Makes runs, in any order, and returns them in the order asked for; None for one that failed."""


@dataclass(frozen=True)
class Sweep:
    """What is swept. `grids` holds, for each method, the values of each key."""

    base: Mapping[str, Any]
    grids: Mapping[str, Mapping[str, tuple[Any, ...]]]
    seeds: tuple[int, ...] = (0,)
    budget: int = 12

    @staticmethod
    def load(data: Mapping[str, Any]) -> Sweep:
        """From a TOML file's data."""
        base = {word: value for word, value in data.items() if word not in KEYS}
        methods = data.get("methods")
        if not isinstance(methods, Mapping) or not methods:
            raise ExperimentError("a sweep names its methods.", "write [methods.fedavg], [methods.fedsam] …")
        if not base.get("validation"):
            raise ExperimentError("a sweep chooses on validation data, and there are none.", "set validation = 0.1")
        seeds = data.get("seeds", [0])
        budget = data.get("budget", 12)
        if not isinstance(seeds, list) or not seeds or not all(isinstance(seed, int) for seed in seeds):
            raise ExperimentError(f"seeds must be a list of whole numbers: {seeds}", "seeds = [0, 1, 2]")
        if not isinstance(budget, int) or budget < 1:
            raise ExperimentError(f"budget must be a whole number of at least 1: {budget}")
        shared = _grid(data.get("grid", {}))
        grids = {name: {**shared, **_grid(own)} for name, own in methods.items()}
        sweep = Sweep(base, grids, tuple(seeds), budget)
        for name, grid in grids.items():
            sweep.experiment(name, next(iter(settings_of(grid))), seeds[0])  # refuses what no experiment takes
        return sweep

    def experiment(self, method: str, setting: Setting, seed: int) -> Experiment:
        """One method with one setting."""
        data: dict[str, Any] = dict(self.base) | {"seed": seed, "method": {"name": method}}
        for word, value in setting:
            part, dot, rest = word.partition(".")
            if not dot:
                data[part] = value
            elif part in ("method", "partition"):
                data[part] = dict(data.get(part) or {}) | {rest: value}
            else:
                raise ExperimentError(f"a sweep has no key: {word}", nearest(part, ["method", "partition"], "parts"))
        return Experiment.load(data)


def _grid(given: Any) -> dict[str, tuple[Any, ...]]:
    if not isinstance(given, Mapping):
        raise ExperimentError(f"a grid gives keys their values: {given}", "lr = [0.01, 0.1]")
    return {word: tuple(values) if isinstance(values, list) else (values,) for word, values in _flat(given).items()}


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word, value in data.items():
        found |= _flat(value, f"{prefix}{word}.") if isinstance(value, Mapping) else {prefix + word: value}
    return found


def settings_of(grid: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """Every combination of a grid's values."""
    return [tuple(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


@dataclass
class Tuned:
    """How a method was tuned: each setting's score on validation data, and the best one."""

    method: str
    scores: dict[Setting, float | None] = field(default_factory=dict)
    widened: list[str] = field(default_factory=list)

    @property
    def best(self) -> Setting | None:
        known = {setting: score for setting, score in self.scores.items() if score is not None}
        return max(known, key=lambda setting: known[setting]) if known else None


def tune(sweep: Sweep, method: str, execute: Execute) -> Tuned:
    """Try the grid with the first seed; grow it where the optimum lies on its edge, within the budget."""
    grid = {word: list(values) for word, values in sweep.grids[method].items()}
    tuned = Tuned(method)
    while True:
        fresh = [setting for setting in settings_of(grid) if setting not in tuned.scores]
        fresh = fresh[: sweep.budget - len(tuned.scores)]
        if fresh:
            asked = [(f"{method} {describe(s)}".strip(), sweep.experiment(method, s, sweep.seeds[0])) for s in fresh]
            for setting, run in zip(fresh, execute(asked), strict=True):
                tuned.scores[setting] = None if run is None else validation_score(run)
        if tuned.best is None or len(tuned.scores) >= sweep.budget or not _widen(grid, tuned):
            return tuned


def _widen(grid: dict[str, list[Any]], tuned: Tuned) -> bool:
    """Add a value beyond the edge on which the best setting lies. Only ordered positive numbers have edges."""
    assert tuned.best is not None
    for word, value in tuned.best:
        values = sorted(v for v in grid[word] if isinstance(v, int | float) and not isinstance(v, bool) and v > 0)
        if len(values) < 2 or len(values) != len(grid[word]) or value not in (values[0], values[-1]):
            continue
        inner = values[1] if value == values[0] else values[-2]
        beyond = float(f"{value * value / inner:.6g}")
        if beyond not in grid[word]:
            grid[word].append(beyond)
            tuned.widened.append(f"{word} = {beyond:g}")
            return True
    return False


def validation_score(run: Run) -> float | None:
    """The best round on validation data."""
    accuracies = run.curve("validation_accuracy")
    if accuracies:
        return max(accuracies)
    losses = [value for value in run.curve("validation_loss") if math.isfinite(value)]
    return -min(losses) if losses else None


def finals(sweep: Sweep, tuned: Tuned) -> list[tuple[str, Experiment]]:
    """The chosen setting with every seed."""
    if tuned.best is None:
        return []
    label = f"{tuned.method} {describe(tuned.best)}".strip()
    return [(f"{label} seed={seed}", sweep.experiment(tuned.method, tuned.best, seed)) for seed in sweep.seeds]


def describe(setting: Setting) -> str:
    words = ((word.removeprefix("method."), value) for word, value in setting)
    return " ".join(f"{word}={value:g}" if isinstance(value, float) else f"{word}={value}" for word, value in words)
