"""The fair table: every method tuned with as many tries on validation data, then run on fresh seeds and splits.

A setting is an experiment without a method, with a grid, the rounds of a try and a target accuracy. What a method came
to in a setting is a line of a file, so the table goes on where it stopped; what was not run is left out of it.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedkeel import __version__
from fedkeel.core.method import Method
from fedkeel.data.storage.line_file import append_line, read_whole_lines
from fedkeel.errors import ExperimentError, FolderError, RequestError, RunError, explain_os_errors, require_known
from fedkeel.importing import Trust
from fedkeel.methods import METHODS, build
from fedkeel.methods.optimisers import find_optimiser
from fedkeel.ranges import Count, PositiveShare, Seed
from fedkeel.runs.environment import describe_place
from fedkeel.runs.experiment import Experiment, note_new_default
from fedkeel.runs.finished_run import NO_SAMPLE, RAISE_SHARE, Run
from fedkeel.runs.folder import read_environment
from fedkeel.runs.record import by_round, summarise
from fedkeel.studies.cost_to_target import cost_to, spent
from fedkeel.studies.grids import Setting, check_fresh_seeds
from fedkeel.studies.optimiser_grids import rates_of
from fedkeel.studies.sweep import Execute, Sweep, Tuned, attempt
from fedkeel.typed_values import check_keys, check_table, read_line, read_values, show_value, types_of

KEYS = ("settings", "tries", "seed", "seeds", "baseline", "methods", "order")


@dataclass(frozen=True)
class Arena:
    """One setting of the table."""

    name: str
    title: str
    target: PositiveShare
    tuning_rounds: Count
    grid: Mapping[str, Sequence[Any]]
    experiment: Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """What a method came to in a setting, `scores` by final run; without them every try or every final run failed.

    `reason` says why a method cannot be run there at all, `superseded` why the line no longer counts: it stays, and
    the method is run again. `place` tells device, engine and precision of the final runs; older lines do not have it.
    """

    setting: str
    identity: str
    method: str
    tries: int
    chosen: dict[str, Any]
    validation: float | None
    seeds: list[int] = field(default_factory=list)
    scores: list[dict[str, Any]] = field(default_factory=list)
    version: str = __version__
    reason: str = ""
    superseded: str = ""
    place: str = ""

    def values(self, name: str) -> dict[int, float]:
        """A number of each seed that has it."""
        found = {seed: score.get(name) for seed, score in zip(self.seeds, self.scores, strict=True)}
        return {seed: float(value) for seed, value in found.items() if value is not None}


@dataclass(frozen=True)
class Leaderboard:
    """The settings, how methods are tuned, which (none: all), and which of them are run first; `trust` is in what its
    file names, and names in `typed` come from a command line."""

    arenas: Sequence[Arena]
    tries: Count = 4
    seed: Seed = 0
    seeds: Sequence[Seed] = (101, 102, 103)
    baseline: str = "fedavg"
    methods: Sequence[str] = ()
    order: Sequence[str] = ()
    trust: Trust = Trust.INSTALLED
    typed: Collection[str] = ()

    @staticmethod
    def load(data: Mapping[str, Any] | None = None, *, trust: bool = False, typed: Collection[str] = ()) -> Leaderboard:
        """From a file's data; without it, the table that comes with the package."""
        if data is None:
            data = tomllib.loads((files("fedkeel.studies") / "leaderboard.toml").read_text(encoding="utf-8"))
        settings: Any = data.get("settings")
        tables = settings.values() if isinstance(settings, Mapping) else ()
        if not tables or not all(isinstance(one, Mapping) for one in tables):
            raise ExperimentError("a leaderboard names its settings.", "write [settings.NAME]")
        arenas = []
        for name, one in settings.items():
            check_table(Arena, {"name": name, **one}, ExperimentError, f"setting {name}", "key")
            arenas.append(Arena(**read_values({"name": name, **one}, types_of(Arena), ExperimentError)))
            if "evaluation" in arenas[-1].experiment:
                raise ExperimentError(
                    f"setting {name} has an evaluation, and the fair table judges the server's model alone.",
                    "leave evaluation out; `fedkeel sweep` compares methods by their clients' models",
                )
            if "problem" in arenas[-1].experiment:
                raise ExperimentError(
                    f"setting {name} has a problem, and every seed of the fair table divides a data set anew.",
                    "`fedkeel sweep` compares methods on a problem of your own",
                )
        check_keys(data, KEYS, ExperimentError, "a leaderboard", "key")
        given = {word: value for word, value in data.items() if word != "settings"}
        given = read_values(given, types_of(Leaderboard), ExperimentError)
        made = Leaderboard(arenas, **given, trust=Trust.given(trust))
        if made.methods and (others := [name for name in (made.baseline, *made.order) if name not in made.methods]):
            raise ExperimentError(
                f"baseline and order name what is none of the table's methods: {others[0]}.",
                f'methods = ["{others[0]}", …]',
            )
        for arena in arenas:
            check_fresh_seeds(made.seeds, made.seed, arena.experiment.get("partition_seed"))
            # also refuses code that the file names and nobody vouches for
            if (many := len(made.list_tries(arena, made.baseline))) < made.tries:
                raise ExperimentError(
                    f"tries = {made.tries}, and the grid of setting {arena.name} has {many}.",
                    f"tries = {many}, or more values in its grid",
                )
            note_new_default(arena.experiment)
        return replace(made, typed=frozenset(typed))

    def in_order(self) -> list[str]:
        """The methods, those of `order` first. All are those of the catalogue and of `order`: variants that follow a
        released code are left to the papers' tables."""
        rest = self.methods or sorted(name for name in METHODS if "@" not in name)
        return list(dict.fromkeys([*self.order, *rest]))

    def arena(self, name: str) -> Arena:
        found = {arena.name: arena for arena in self.arenas}
        return found[require_known(name, found, "unknown setting", "settings", ExperimentError)]

    def build(self, method: str, plugin: str = "") -> Method:
        """A method, with a plug-in such as `ema+`."""
        return build(plugin + method, trust=self._trust_in(method))

    def _trust_in(self, method: str) -> Trust:
        return Trust.TYPED if method in self.typed else self.trust

    def sweep(self, arena: Arena, method: str, plugin: str = "") -> Sweep:
        """One method in a setting, for as long as a try."""
        base, grid = {**arena.experiment, "rounds": arena.tuning_rounds}, dict(arena.grid)
        if (optimiser := find_optimiser(self.build(method, plugin))) is not None:  # rates of SGD are none for AdamW
            grid["lr"] = list(rates_of(optimiser))
        asked = base | {"methods": {plugin + method: {}}, "grid": grid, "budget": 10**6, "seeds": [self.seed]}
        return Sweep.load(asked, trust=self._trust_in(method), called=f"setting {arena.name}")

    def list_tries(self, arena: Arena, method: str) -> list[Setting]:
        """The tries of one method: the first settings of its grid; all, where it has fewer."""
        return self.sweep(arena, method).settings(method)[: self.tries]

    def identity(self, arena: Arena) -> str:
        """Of what a line depends on besides its method: a line of another setting is not this table's."""
        told = json.dumps([asdict(arena), self.tries, self.seed, list(self.seeds)], sort_keys=True, default=str)
        return hashlib.sha256(told.encode()).hexdigest()[:12]

    def missing(self, lines: Sequence[Line], methods: Sequence[str]) -> Iterator[tuple[Arena, str]]:
        """What is still to be run: methods in turn, each in every setting."""
        known = {(line.identity, line.method) for line in lines if not line.superseded}
        for method in methods:
            for arena in self.arenas:
                if (self.identity(arena), method) not in known:
                    yield arena, method

    def run(self, arena: Arena, method: str, execute: Execute) -> Line:
        """Tune the method, train the chosen setting on fresh seeds and splits, and score it on the test set once."""
        sweep, tuned = self.sweep(arena, method), Tuned(method)
        attempt(sweep, tuned, self.list_tries(arena, method), execute)
        line = self.failed(arena, method, len(tuned.scores))
        if NO_SAMPLE in tuned.reasons.values():  # of no method
            raise ExperimentError(f"setting {arena.name}: {NO_SAMPLE}.", RAISE_SHARE)
        if tuned.best is None:
            return line
        runs = [run for run in execute(self.finals(arena, method, tuned.best)) if run is not None]
        scores = [score_of(run, arena.target) for run in runs]
        seeds, score = [run.plan.seed for run in runs], tuned.scores[tuned.best]
        place = "; ".join(dict.fromkeys(describe_place(read_environment(run.path), {}) for run in runs if run.path))
        chosen = dict(tuned.best)
        return replace(line, chosen=chosen, validation=score, seeds=seeds, scores=scores, place=place)

    def failed(self, arena: Arena, method: str, tries: int = 0, reason: str = "") -> Line:
        """The line of a method without a score."""
        return Line(arena.name, self.identity(arena), method, tries, {}, None, reason=reason)

    def finals(self, arena: Arena, method: str, setting: Setting) -> list[tuple[str, Experiment]]:
        """The chosen setting for the whole run, with every fresh seed, on all data.

        The average of its models is scored beside the model that is trained, where the method allows it.
        """
        try:
            chosen = self.sweep(arena, method, "ema+").experiment(f"ema+{method}", setting, self.seed)
        except RequestError:
            chosen = self.sweep(arena, method).experiment(method, setting, self.seed)
        whole = chosen.with_(validation=0.0, partition_seed=None, rounds=arena.experiment.get("rounds"))
        return [(method, whole.with_(seed=seed)) for seed in self.seeds]


def score_of(run: Run, target: float) -> dict[str, float | None]:
    """The numbers of a final run: of the model that is trained, and of the average where there is one.

    Costs until the target are None where it was never reached.
    """
    plain, every = by_round(run.records, "plain_accuracy"), run.plan.evaluate_every
    measure = "plain_accuracy" if plain else "accuracy"
    found = summarise(run.records, every, measure)
    all_rounds, to_target = spent(run.records), cost_to(run.records, target, measure, every)
    return {
        **{name: found.get(name) for name in ("best", "last", "mean_last")},
        "averaged": run.result["last"] if plain else None,
        "rounds_to_target": None if to_target is None else to_target.rounds,
        "gradients_to_target": None if to_target is None else to_target.backward_passes,
        "megabytes": round(all_rounds.bytes / 1e6, 3),
        "gradients": all_rounds.backward_passes,
    }


# ---- the file of lines ---------------------------------------------------------------------------------------------
def read_lines(file: Path) -> list[Line]:
    """All lines of a file; none where there is no file. A later line of a method replaces an earlier one."""
    found: dict[tuple[str, str], Line] = {}
    lines = read_whole_lines(file, read_one) if file.exists() else []
    for number, written in enumerate(lines, 1):
        if not written.strip():
            continue
        try:
            line = read_one(written)
            found[line.identity, line.method] = line
        except (ValueError, TypeError, RecursionError) as error:
            raise FolderError(
                f"line {number} of {file} is none of a leaderboard: {error}", "mend or delete it"
            ) from None
    return list(found.values())


def read_one(written: bytes) -> Line:
    """Read a line; a ValueError says what is wrong with it."""
    line = Line(**read_line(Line, json.loads(written)))
    if len(line.seeds) != len(line.scores):
        raise ValueError(f"it has {len(line.seeds)} seeds and {len(line.scores)} scores")
    for name, value in (pair for score in line.scores for pair in score.items()):
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise ValueError(f"{name} must be a number: {show_value(value)}")
    return line


def append_to(file: Path, line: Line) -> None:
    """Add what a method came to."""
    hint = "its runs are kept: the same command again adds its line"
    with explain_os_errors(f"cannot write {file}", hint, RunError):
        append_line(file, json.dumps(asdict(line), allow_nan=False), read_one)


def mean(values: Mapping[int, float]) -> float | None:
    return statistics.fmean(values.values()) if values else None
