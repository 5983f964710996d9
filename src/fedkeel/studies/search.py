"""Searches: compositions of rules and published methods get the same tries, are halved by rounds on validation data,
and their winners are judged once on the test set, on fresh seeds and splits.

    dataset = "digits"            # keys of an experiment, shared by all
    validation = 0.2              # the share of each client's data that candidates are judged on
    rounds = 45                   # of the last rung and of the final runs
    candidates = 27               # tries of the compositions, and as many of the published methods
    keep = 3                      # one of three goes on to the next rung, which is three times as long
    first = 5                     # rounds of the first rung
    seeds = [11, 12, 13]          # of the final runs; none is the seed of the search

    [grid]                        # values of an experiment's keys, for both sides
    lr = [0.03, 0.1, 0.3]

    [parts.filter]                # see search_space
    none = []
    highpass = [{rule = "HighPass", ratio = [0.01, 0.05]}]

    [published.feddyn]            # a method, with a grid of its own
    "method.lam" = [0.01, 0.1]

Candidates are drawn by the search's seed alone, so a search that was stopped goes on where it stood.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch

from fedkeel.errors import ExperimentError, RequestError
from fedkeel.methods import METHODS
from fedkeel.problems.task import Task
from fedkeel.randomness import key, uniforms
from fedkeel.ranges import Count, Seed
from fedkeel.runs.experiment import Experiment, note_new_default
from fedkeel.runs.finished_run import Run, unscored, validation_score
from fedkeel.runs.plan import Plan
from fedkeel.runs.prepare import method_of, problem_of, task_maker
from fedkeel.runs.record import counted, list_scored
from fedkeel.studies.grids import Setting, check_fresh_seeds, describe, grid_of, settings_of, with_setting
from fedkeel.studies.optimiser_grids import split_composed
from fedkeel.studies.search_space import Part, compose, read_parts, warn_of_left_out
from fedkeel.studies.sweep import FAILED, MOST, SHARED, Execute, Sweep
from fedkeel.text import plural
from fedkeel.typed_values import check_keys, read_values, types_of

KEYS = ("name", "candidates", "sampler", "first", "keep", "seeds", "grid", "parts", "published")
EXAMPLES = {
    "name": "mine", "candidates": 27, "sampler": "random", "first": 5, "keep": 3, "seeds": [1, 2, 3],
}  # fmt: skip
"""A value of each key that is the search's own, to show how it is written."""
COMPOSED, PUBLISHED = "composed", "published"
NOTHING = "none"
"""The option that leaves a part out, by its usual name: labels leave it out too."""
LATE = 5
"""A candidate's score is the mean of the last fifth of its evaluated rounds, so that one lucky round decides less; of
fewer than ten it is the last one."""
DRAWS = 100
"""How many draws of one candidate may be refused or repeat an earlier one before the space counts as spent."""


@dataclass(frozen=True)
class Candidate:
    """One try: a composition or a published method with a setting. Those that are one experiment are one try."""

    side: str
    method: str = field(compare=False)
    setting: Setting = field(compare=False)
    experiment: Experiment = field(compare=False)
    identity: tuple[str, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "identity", (self.experiment.plan.method.name, self.experiment.fingerprint()))

    @property
    def label(self) -> str:
        """As tables show it: what a composition is made of, or the method and its values."""
        if self.side == PUBLISHED:
            return f"{self.method} {describe(self.setting)}".strip()
        keys = vars(self.experiment).keys()
        values = tuple(pair for pair in self.setting if pair[0].partition(".")[0] in keys)
        options = [str(pair[1]) for pair in self.setting if pair not in values and pair[1] != NOTHING]
        return ", ".join(part for part in [*options, describe(values)] if part)

    def name_try(self, rounds: int) -> str:
        """What its run of so many rounds is called."""
        return f"{self.label} ({plural(rounds, 'round')})"


@dataclass(frozen=True)
class Rung:
    """So many rounds, and what each candidate that was trained for as long has scored; None: it failed, for one of
    `reasons`. `passes` are the clients' backward passes in the rounds that this rung added, without those of candidates
    that broke off."""

    rounds: int
    scores: Mapping[Candidate, float | None]
    passes: int = 0
    reasons: Mapping[Candidate, str] = field(default_factory=dict)

    @property
    def broken(self) -> int:
        """How many candidates broke off, as those that diverge do."""
        return sum(reason == FAILED for reason in self.reasons.values())

    @property
    def ranked(self) -> list[Candidate]:
        """The candidates that have a score, best first; equal ones in the order in which they were drawn."""
        known = {one: score for one, score in self.scores.items() if score is not None}
        return sorted(known, key=lambda one: -known[one])


@dataclass(frozen=True)
class Search:
    """What is searched, read from a file; `sweep` holds the published methods with their grids."""

    base: Mapping[str, Any]
    parts: Sequence[Part]
    grid: Mapping[str, tuple[Any, ...]]
    sweep: Sweep
    name: str = COMPOSED
    candidates: Count = 27
    sampler: Literal["random", "every", "optuna"] = "random"
    first: Count | None = None
    keep: Count = 3
    seeds: Sequence[Seed] = (1, 2, 3)

    @staticmethod
    def load(data: Mapping[str, Any], *, trust: bool = False) -> Search:
        """From a TOML file's data; code that it names is imported with `trust` only."""
        check_keys(data, [*KEYS, "seed", *SHARED], ExperimentError, "a search", "key")
        parts, published = data.get("parts"), data.get("published")
        if not isinstance(parts, Mapping) or not parts:
            raise ExperimentError("a search names the parts of its methods.", "write [parts.filter] none = [] …")
        if not isinstance(published, Mapping) or not published:
            raise ExperimentError("a search is held against published methods.", "write [published.feddyn]")
        base = {word: value for word, value in data.items() if word not in (*KEYS, "seed")}
        named = {word: data[word] for word in (*EXAMPLES, "seed") if word in data}
        given = read_values(named, types_of(Search) | {"seed": Seed}, ExperimentError, examples=EXAMPLES)
        both = {"grid": data.get("grid", {}), "budget": MOST, "seeds": [given.pop("seed", 0)]}
        sweep = Sweep.load(base | both | {"methods": published}, trust=trust, called="a search")
        grid = grid_of(both["grid"])
        made = Search(base, read_parts(parts, [*grid, *SHARED], sweep.trust), grid, sweep, **given)
        made._check()
        note_new_default(base)
        return made

    def _check(self) -> None:
        if self.name in METHODS or self.name in self.sweep.grids:
            raise ExperimentError(f"{self.name} is a method already.", 'name = "mine"')
        if self.keep < 2:
            raise ExperimentError("keep must be at least 2: one of so many goes on.", "keep = 3")
        check_fresh_seeds(self.seeds, self.seed, self.base.get("partition_seed"))
        if self.first is not None and self.first > self.rounds:
            raise ExperimentError(
                f"the first rung has {self.first} rounds, and the whole run {self.rounds}.", f"first = {self.rungs[0]}"
            )

    @property
    def seed(self) -> int:
        """The seed that candidates are drawn and trained with."""
        return self.sweep.seeds[0]

    @cached_property
    def plan(self) -> Plan:
        """The plan of one candidate: what all have in common, they share with it."""
        method = next(iter(self.sweep.grids))
        return self.sweep.experiment(method, settings_of(self.sweep.grids[method])[0], self.seed).plan

    @property
    def rounds(self) -> int:
        """The length of the last rung and of the final runs."""
        return self.plan.rounds

    @cached_property
    def task(self) -> Task:
        """The data and the network of all candidates, to rehearse methods on."""
        return task_maker(self.plan, torch.device("cpu"), torch.float32)(problem_of(self.plan))

    @property
    def rungs(self) -> list[int]:
        """Rounds of each rung: `keep` times as many as of the one before, the whole run at last."""
        rungs = [min(self.first or max(1, self.rounds // self.keep**2), self.rounds)]
        while rungs[-1] < self.rounds:
            rungs.append(min(rungs[-1] * self.keep, self.rounds))
        return rungs

    # ---- candidates ------------------------------------------------------------------------------------------------
    def grids(self, side: str) -> Mapping[str, Mapping[str, Sequence[Any]]]:
        """The values to draw from, by method; compositions are one."""
        if side == PUBLISHED:
            return self.sweep.grids
        rated = any("lr" in grid for grid in self.sweep.grids.values()) and "lr" not in self.base
        split = split_composed(self.name, self.grid, self.base.get("optimizer"), rated, self.sweep.trust)
        return {name: {part.name: tuple(part.chains) for part in self.parts} | grid for name, grid in split.items()}

    def candidate(self, side: str, method: str, setting: Setting) -> Candidate:
        """The try of that setting; a RequestError where rules do not fit together, or not to the network."""
        if side == PUBLISHED:
            made = self.sweep.experiment(method, setting, self.seed)
        else:
            named = {part.name for part in self.parts}
            keys = tuple(pair for pair in setting if pair[0] not in named)
            data = dict(self.base) | {"seed": self.seed, "method": compose(self.parts, setting, self.name)}
            made = Experiment.read(with_setting(data, keys), trust=self.sweep.trust)
        method_of(made.plan, self.task)
        return Candidate(side, method, setting, made)

    def draw(self, side: str) -> list[Candidate]:
        """So many different candidates that fit together, methods in turn; all of them where there are fewer."""
        grids = self.grids(side)
        total = sum(math.prod(map(len, grid.values())) for grid in grids.values())
        if total <= self.candidates:
            whole = [(method, setting) for method, grid in grids.items() for setting in settings_of(grid)]
            return self._that_fit(side, iter(whole), total)
        if self.sampler == "every":
            raise ExperimentError(
                f'sampler = "every", and the {side} side has {total} settings.',
                f"set candidates = {total}, or draw some",
            )
        return self._that_fit(side, self._drawn(side, grids), self.candidates)

    def _drawn(self, side: str, grids: Mapping[str, Mapping[str, Sequence[Any]]]) -> Iterator[tuple[str, Setting]]:
        for number in range(self.candidates * DRAWS):
            method = list(grids)[number % len(grids)]
            grid = grids[method]
            at = uniforms(key(self.seed, f"search {side}", number), len(grid))
            yield method, tuple((word, grid[word][int(u * len(grid[word]))]) for word, u in zip(grid, at, strict=True))

    def _that_fit(self, side: str, tries: Iterator[tuple[str, Setting]], count: int) -> list[Candidate]:
        found: dict[Candidate, None] = {}
        refused: list[tuple[Setting, RequestError]] = []
        for method, setting in tries:
            try:
                found.setdefault(self.candidate(side, method, setting))
            except RequestError as error:
                refused.append((setting, error))
            if len(found) == count:
                break
        if not found:
            raise refused[0][1] if refused else ExperimentError(f"the {side} side has no candidate.")
        warn_of_left_out([one.setting for one in found], refused)
        return list(found)

    def finals(self, winner: Candidate) -> list[tuple[str, Experiment]]:
        """The winner on fresh seeds and splits, trained on all data of the clients and scored on the test set."""
        fresh = winner.experiment.with_(partition_seed=None, validation=0.0)
        return [(winner.label, fresh.with_(seed=seed)) for seed in self.seeds]


# ---- halving -------------------------------------------------------------------------------------------------------
def halve(search: Search, drawn: Sequence[Candidate], execute: Execute) -> list[Rung]:
    """Train all for the first rung, the better ones of each rung for the next, the last ones for the whole run."""
    going, done = list(drawn), list[Rung]()
    for rounds in search.rungs:
        asked = [one.experiment.with_(rounds=rounds) for one in going]
        runs = execute([(one.name_try(rounds), each) for one, each in zip(going, asked, strict=True)])
        scores = [None if run is None else late_score(run) for run in runs]
        passes = 0
        for run, each in zip(runs, asked, strict=True):
            before = done[-1].rounds if done and goes_on(each, done[-1].rounds) else 0
            passes += sum(record.backward_passes for record in (run.records if run else ()) if record.round > before)
        judged = zip(going, runs, scores, strict=True)
        reasons = {one: FAILED if run is None else unscored(run) for one, run, score in judged if score is None}
        done.append(Rung(rounds, dict(zip(going, scores, strict=True)), passes, reasons))
        going = done[-1].ranked[: math.ceil(len(going) / search.keep)]
        if not going:
            break
    return done


def goes_on(experiment: Experiment, before: int) -> bool:
    """Whether a run goes on where a shorter one ended; with a schedule as long as the run it begins anew."""
    return experiment.fingerprint() == experiment.with_(rounds=before).fingerprint()


def late_score(run: Run) -> float | None:
    """The mean over the last fifth of the rounds that were scored on validation data; losses are negative.

    None where one of these is not finite. Where clients' models are judged, it is what the evaluation policy reports
    of them.
    """
    if run.plan.evaluation is not None:
        return validation_score(run)
    judged = counted(run.records, run.plan.evaluate_every)
    accuracies, losses = (list_scored(judged, f"validation_{name}") for name in ("accuracy", "loss"))
    values = accuracies or [None if loss is None else -loss for loss in losses]
    late = [math.nan if value is None else value for value in values[-max(1, len(values) // LATE) :]]
    mean = sum(late) / len(late) if late else math.nan
    return mean if math.isfinite(mean) else None
