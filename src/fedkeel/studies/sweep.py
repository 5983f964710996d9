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

A grid of `optimizer` makes a method of each: adamw+fedavg, muon+fedavg … Without an `lr`, each has its own rates.
Fields are written as in `--set`: "optimizer.beta2" = [0.99, 0.999], "schedule.warmup" = [1, 5].
With sampler = "optuna", values between the ends of each grid are proposed instead (`pip install 'fedkeel[sweep]'`).
When the best setting lies on the edge of a grid, the next value there is tried, as long as the budget lasts and an
experiment takes the value. Then methods with smaller grids try values between those around their best one, until all
have tried equally many. Where an experiment judges clients' models (`evaluation`), these are what settings are
chosen by, each on its client's validation share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from fedkeel.errors import ExperimentError, RequestError, nearest
from fedkeel.importing import Trust
from fedkeel.methods import settings_of as hyperparameters_of
from fedkeel.ranges import Count, Seed
from fedkeel.runs.experiment import TABLES, Experiment
from fedkeel.runs.finished_run import Run, unscored, validation_score
from fedkeel.studies.grids import Setting, check_seeds, grid_of, label_of, settings_of, with_setting
from fedkeel.studies.optimiser_grids import Grids, give_own_rates, split_by_optimiser
from fedkeel.typed_values import check_keys, read_values, types_of

KEYS = ("seeds", "budget", "sampler", "grid", "methods")
SHARED = tuple(field.name for field in fields(Experiment) if field.name not in ("method", "seed", "data"))
"""Keys of an experiment that a sweep gives or varies; methods and seeds are lists of their own, `data` no text."""
SAME = (
    "dataset", "problem", "partition", "partition_seed", "validation", "evaluation", "model", "init",
    "participation", "participants", "unavailable", "rounds", "evaluate_every",
)  # fmt: skip
"""What every method gets alike, so no grid varies it."""
FAILED = "the run failed"
MOST = 100_000  # settings of a grid
Execute = Callable[[Sequence[tuple[str, Experiment]]], Sequence[Run | None]]
"""Makes runs, in any order, and returns them in the order asked for; None for one that failed."""


@dataclass(frozen=True)
class Sweep:
    """What is swept. `grids` holds, for each method, the values of each key."""

    base: Mapping[str, Any]
    grids: Grids
    seeds: Sequence[Seed] = (0,)
    budget: Count = 12
    trust: Trust = Trust.TYPED
    sampler: Literal["grid", "optuna"] = "grid"

    @staticmethod
    def load(data: Mapping[str, Any], *, trust: bool | Trust = False, called: str = "a sweep") -> Sweep:
        """From a TOML file's data, `called` so in errors; code that it names is imported with `trust` only."""
        base = {word: value for word, value in data.items() if word not in KEYS}
        check_keys(data, [*KEYS, *SHARED], ExperimentError, called, "key")
        methods = data.get("methods")
        if not isinstance(methods, Mapping) or not methods:
            raise ExperimentError("a sweep names its methods.", "write [methods.fedavg], [methods.fedsam] …")
        if not base.get("validation"):
            raise ExperimentError(f"{called} chooses on validation data, and there are none.", "set validation = 0.1")
        shared = grid_of(data.get("grid", {}))
        split = split_by_optimiser({name: {**shared, **grid_of(own)} for name, own in methods.items()})
        grids = give_own_rates(split, base, Trust.given(trust))
        given = {word: data[word] for word in ("seeds", "budget", "sampler") if word in data}
        given = read_values(given, types_of(Sweep), ExperimentError, examples={"seeds": [0, 1, 2]})
        sweep = Sweep(base, grids, **given, trust=Trust.given(trust))
        check_seeds(sweep.seeds)
        for name, grid in grids.items():
            if (many := math.prod(map(len, grid.values()))) > MOST:
                raise ExperimentError(f"the grid of {name} has {many} settings.", f"{MOST} are the most")
            tries = sweep.settings(name)  # refuses what no experiment takes
            if len(tries) > sweep.budget and sweep.sampler == "grid":
                raise ExperimentError(
                    f"the grid of {name} has {len(tries)} settings, more than the budget of {sweep.budget}.",
                    f"set budget = {len(tries)} or more, so that there is room beyond its edges",
                )
        return sweep

    def experiment(self, method: str, setting: Setting, seed: int) -> Experiment:
        """Make the experiment of one method with one setting."""
        for word, _ in setting:
            part, dot, _ = word.partition(".")
            if part in SAME:
                raise ExperimentError(f"every method gets the same {part}: no grid varies it.", "give it once, above")
            if not (word in SHARED or (dot and part in ("method", *TABLES))):
                own = [f"method.{name}" for name in hyperparameters_of(method, self.trust)]
                meant = f"method.{word}" if f"method.{word}" in own else word
                known = [*own, *(name for name in SHARED if name not in SAME)]
                raise ExperimentError(f"a grid has no key: {word}", nearest(meant, known, "keys"))
        data = dict(self.base) | {"seed": seed, "method": {"name": method}}
        return Experiment.read(with_setting(data, setting), trust=self.trust)

    def settings(self, method: str) -> list[Setting]:
        """List the settings of a method's grid; of those that are one experiment, the first."""
        found: dict[str, Setting] = {}
        for setting in settings_of(self.grids[method]):
            found.setdefault(self.experiment(method, setting, self.seeds[0]).fingerprint(), setting)
        return list(found.values())

    @property
    def tuned(self) -> set[str]:
        """Keys whose values every method could choose: where methods differ in them, it is by their choice."""
        return set.intersection(*({k for k, values in grid.items() if len(values) > 1} for grid in self.grids.values()))


@dataclass
class Tuned:
    """How a method was tuned: each setting's score on validation data, or the reason why it has none, and the best one.
    `edge` names a key at whose edge the best value still lay when the budget was spent."""

    method: str
    scores: dict[Setting, float | None] = field(default_factory=dict)
    reasons: dict[Setting, str] = field(default_factory=dict)
    widened: list[str] = field(default_factory=list)
    refined: int = 0
    edge: str = ""

    @property
    def best(self) -> Setting | None:
        known = {setting: score for setting, score in self.scores.items() if score is not None}
        return max(known, key=lambda setting: known[setting]) if known else None

    def save(self) -> dict[str, Any]:
        """Return plain data: what was chosen, and every setting that was tried, with its score."""
        return {
            "method": self.method,
            "chosen": None if self.best is None else dict(self.best),
            "tries": len(self.scores),
            "tried": [{"setting": dict(setting), "score": score} for setting, score in self.scores.items()],
            "widened": self.widened,
            "refined": self.refined,
            "on_edge": self.edge or None,
        }


def tune(sweep: Sweep, method: str, execute: Execute) -> Tuned:
    """Try the grid with the first seed; go beyond the edge on which the optimum lies, within the budget."""
    grid = {word: list(values) for word, values in sweep.grids[method].items()}
    tuned = Tuned(method)
    attempt(sweep, tuned, sweep.settings(method)[: sweep.budget], execute)
    while tuned.best is not None and (further := _beyond(sweep, method, grid, tuned.best)) is not None:
        tuned.edge, value = further
        if len(tuned.scores) >= sweep.budget:
            return tuned
        grid[tuned.edge].append(value)
        tuned.widened.append(f"{tuned.edge} = {value:g}")
        attempt(sweep, tuned, [with_value(tuned.best, tuned.edge, value)], execute)
    tuned.edge = ""
    return tuned


def attempt(sweep: Sweep, tuned: Tuned, settings: Sequence[Setting], execute: Execute) -> None:
    """Run settings with the first seed, and keep their scores."""
    named = [label_of(tuned.method, setting) for setting in settings]
    asked = [sweep.experiment(tuned.method, setting, sweep.seeds[0]) for setting in settings]
    for setting, run in zip(settings, execute(list(zip(named, asked, strict=True))), strict=True):
        tuned.scores[setting] = None if run is None else validation_score(run)
        if tuned.scores[setting] is None:
            tuned.reasons[setting] = FAILED if run is None else unscored(run)


def _beyond(
    sweep: Sweep, method: str, grid: Mapping[str, Sequence[Any]], best: Setting
) -> tuple[str, int | float] | None:
    """Find a key at whose edge the best setting lies, and the next value there. Only ordered positive numbers have
    edges; where no experiment takes the next value, the grid ends."""
    for word, value in best:
        values = sorted(v for v in grid[word] if is_positive(v))
        if len(values) < 2 or len(values) != len(grid[word]) or value not in (values[0], values[-1]):
            continue
        inner = values[1] if value == values[0] else values[-2]
        further = round_like(values, value * value / inner)
        if further not in values and is_taken(sweep, method, with_value(best, word, further)):
            return word, further
    return None


def is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def round_like(values: Iterable[Any], number: float) -> int | float:
    """Round a number to a few digits; to a whole one where all others are."""
    return round(number) if all(isinstance(value, int) for value in values) else float(f"{number:.6g}")


def with_value(setting: Setting, word: str, value: Any) -> Setting:
    return tuple((key, value if key == word else old) for key, old in setting)


def is_taken(sweep: Sweep, method: str, setting: Setting) -> bool:
    try:
        sweep.experiment(method, setting, sweep.seeds[0])
    except RequestError:
        return False
    return True


def tune_all(sweep: Sweep, execute: Execute, find: Callable[[Sweep, str, Execute], Tuned] = tune) -> list[Tuned]:
    """Tune every method, then give those that tried fewer settings as many tries as the others had."""
    tuned = [find(sweep, method, execute) for method in sweep.grids]
    most = max(len(one.scores) for one in tuned)
    for one in tuned:
        refine(sweep, one, most, execute)
    return tuned


def unequal(tuned: Sequence[Tuned]) -> list[str]:
    """List in words each method that tried fewer settings than others: nothing was left between its grid's values."""
    most = max(len(one.scores) for one in tuned)
    fewer = [one for one in tuned if one.best is not None and len(one.scores) < most]
    return [f"{one.method} was tuned with {len(one.scores)} of {most} tries" for one in fewer]


def refine(sweep: Sweep, tuned: Tuned, tries: int, execute: Execute) -> None:
    """Try geometric means of the best setting's numbers and their neighbours, until there were so many tries."""
    while tuned.best is not None and len(tuned.scores) < tries:
        near = dict.fromkeys(s for word, value in tuned.best for s in _between(tuned, word, value))
        fresh = [s for s in near if s not in tuned.scores and is_taken(sweep, tuned.method, s)]
        fresh = fresh[: tries - len(tuned.scores)]
        if not fresh:
            return  # between those that were tried there is no number that an experiment takes
        attempt(sweep, tuned, fresh, execute)
        tuned.refined += len(fresh)


def _between(tuned: Tuned, word: str, value: Any) -> list[Setting]:
    """List the best setting with one number replaced by what lies halfway to the next one that was tried."""
    assert tuned.best is not None
    tried = {other for setting in tuned.scores for key, other in setting if key == word}
    if not all(is_positive(v) for v in tried):
        return []
    neighbours = [
        max((v for v in tried if v < value), default=None),
        min((v for v in tried if v > value), default=None),
    ]
    means = [math.sqrt(value * other) for other in neighbours if other is not None]
    return [with_value(tuned.best, word, round_like(tried, float(f"{mean:.4g}"))) for mean in means]


def finals(sweep: Sweep, tuned: Tuned) -> list[tuple[str, Experiment]]:
    """List the chosen setting with every seed."""
    if tuned.best is None:
        return []
    label = label_of(tuned.method, tuned.best)
    return [(label, sweep.experiment(tuned.method, tuned.best, seed)) for seed in sweep.seeds]
