"""Reported against measured: the number that the ledger gives for a cell, and what it says about the paper's."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedkeel.papers import Cell, Table
from fedkeel.papers.ledger import Entry, follows_length, longest
from fedkeel.papers.ledger_line import measured
from fedkeel.papers.noise import SHARE, TIMES, UNREPEATED, Noise, NoiseOfLedger
from fedkeel.papers.reproduce import runs_of, runs_of_any_length, settings_of
from fedkeel.runs.environment import keep_one_place
from fedkeel.text import plural

ENOUGH = 3  # seeds of one cell from which its own noise is taken
EARLY = 0.2  # of the paper's rounds: before, rows have not found their order yet, and none is judged
WITHIN, ORDERED, DIFFERS, ONE_SEED = "within seed noise", "ordering holds", "differs", "one seed"


@dataclass(frozen=True)
class Judgement:
    """One cell: its runs, one for each seed, what each measured, and what that says about the paper's number.

    A value is None where a run never reached the target, or cannot tell; the others are averaged. Where there are none,
    `apart` are the rounds of a run with another length, whose schedule makes it another experiment.
    """

    cell: Cell
    entries: tuple[Entry, ...]
    values: tuple[float | None, ...]
    verdict: str = "not run"
    repeated: Noise = UNREPEATED
    apart: int = 0

    @property
    def words(self) -> str:
        """The verdict, and the setting that it rests on where the paper does not print it."""
        return f"{self.verdict}; {self.cell.assumed} assumed" if self.cell.assumed and self.entries else self.verdict

    @property
    def known(self) -> list[float]:
        return [value for value in self.values if value is not None]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.known) if self.known else None

    @property
    def std(self) -> float | None:
        return statistics.stdev(self.known) if len(self.known) > 1 else None

    @property
    def difference(self) -> float | None:
        if self.mean is None or self.cell.reported is None:
            return None
        return self.mean - self.cell.reported

    @property
    def shortened(self) -> bool:
        return bool(self.entries) and self.entries[0].rounds < int(self.cell.experiment["rounds"])

    @property
    def rounds(self) -> int:
        return self.entries[0].rounds if self.entries else 0

    @property
    def noise(self) -> float:
        """By how much two measurements of this number may differ: as its own seeds say where they are enough, else as
        repeated runs like it do, and no less than the paper's ±."""
        return self._noise_of(self.cell.reported or 0.0)

    def _noise_of(self, number: float) -> float:
        least = self.repeated.std * (1.0 if self.cell.kind == "accuracy" else abs(number))
        own = self.std or 0.0
        return max(own if len(self.known) >= ENOUGH else max(own, least), self.cell.spread or 0.0)

    @property
    def near(self) -> bool:
        """Whether every run of full length gave a number, and their mean is as near to the paper's as noise allows."""
        if self.difference is None or self.shortened or self.cell.kind in TIMES or None in self.values:
            return False
        return abs(self.difference) <= 2 * self.noise_here

    @property
    def noise_here(self) -> float:
        """The same for two runs of ours: what varies by a share of itself does so by that of our number, if that is
        larger; seconds of this machine always do."""
        if self.cell.kind not in TIMES or self.mean is None:
            return max(self.noise, self._noise_of(self.mean or 0.0))
        return max(SHARE * abs(self.mean), self.std or 0.0)

    def at(self, round: int) -> Judgement:
        """Return it as it was at a round, before any final tuning, with the seeds for which the ledger says so."""
        last = self.cell.evaluation == "last"
        reached = [entry for entry in self.entries if entry.rounds >= round]
        found = [(entry, entry.at_round(round) if last else entry.best_by(round)) for entry in reached]
        return self.only([(entry, value) for entry, value in found if value is not None])

    def only(self, found: Sequence[tuple[Entry, float | None]]) -> Judgement:
        """Return the same cell with these runs and values alone."""
        return replace(self, entries=tuple(entry for entry, _ in found), values=tuple(value for _, value in found))


def judge(
    cells: Sequence[Cell], entries: Sequence[Entry], among: Sequence[Cell] = (), noise: NoiseOfLedger | None = None
) -> list[Judgement]:
    """Judge cells by the ledger. Only runs of full length are held against a reported number; orderings are judged
    among rows of one column, these and those in `among`, at a round that both have reached. `noise` is that of a ledger
    with more lines than `entries`."""
    noise = NoiseOfLedger(entries) if noise is None else noise
    judged = [replace(_gather_runs(cell, entries), repeated=noise.of(cell)) for cell in cells]
    rows = [*judged, *(replace(_gather_runs(cell, entries), repeated=noise.of(cell)) for cell in among)]
    return [replace(one, verdict=_verdict(one, rows)) for one in judged]


def _gather_runs(cell: Cell, entries: Sequence[Entry]) -> Judgement:
    known = runs_of(cell, entries)
    if cell.target is not None and cell.kind != "seconds per round":
        known = [entry for entry in known if entry.bests]  # other lines do not tell when a target was reached
    if cell.kind in TIMES:
        known = [entry for entry in known if entry.timed]
    found = longest(known)
    if cell.kind in TIMES:
        found = keep_one_place(found, lambda entry: entry.place)
    own = _find_own_method(cell, entries) if cell.kind == "extra seconds per round" else []
    others = runs_of_any_length(cell, entries) if follows_length(cell.experiment) and not found else []
    apart = max((entry.rounds for entry in others), default=0)
    return Judgement(cell, tuple(found), tuple(measured(cell, entry, own) for entry in found), apart=apart)


def _find_own_method(cell: Cell, entries: Sequence[Entry]) -> list[Entry]:
    """Find runs of the paper's own method that differ from the cell's in nothing else, and have seconds of their own.

    They may be of any place: `measured` takes those of the run's.
    """
    alike = settings_of(cell) | {"method": None}
    named = [e for e in entries if e.settings.get("method", {}).get("name") == cell.paper]
    return [e for e in named if e.settings | {"method": None} == alike and e.timed]


def _verdict(mine: Judgement, judged: Sequence[Judgement]) -> str:
    cell = mine.cell
    if cell.unmeasured:
        return "not measured"
    if not mine.entries:
        return f"other schedule ({plural(mine.apart, 'round')})" if mine.apart else "not run"
    if mine.mean is None:
        return "not reached so far" if mine.shortened else "not reached"
    if len(mine.known) < len(mine.entries):
        return f"reached by {len(mine.known)} of {len(mine.entries)} seeds" + " so far" * mine.shortened
    if cell.uncertain or cell.reported is None:
        return "not judged"
    if mine.near:
        return WITHIN if len(mine.entries) > 1 else ONE_SEED
    signs = [sign for other in judged if (sign := _same_side(mine, other)) is not None]
    if signs and all(same for same, _ in signs):
        if any(seeds > 1 for _, seeds in signs):
            return ORDERED
        return ONE_SEED if mine.shortened or len(mine.entries) < 2 else f"{DIFFERS} (order: {ONE_SEED})"
    if signs or (not mine.shortened and cell.kind not in TIMES):
        against = [seeds for same, seeds in signs if not same] + [len(mine.entries)] * (not mine.shortened)
        return DIFFERS + " so far" * mine.shortened + f" ({ONE_SEED})" * (max(against) < 2)
    return "shortened" if mine.shortened else "another machine"


def _same_side(mine: Judgement, other: Judgement) -> tuple[bool, int] | None:
    """Whether two rows of a column stand as the paper has them, and over how many seeds; None where it does not tell
    them apart, where it is too early to say, our runs do not tell, the ledger knows no round that both have reached, or
    seconds are of two places.
    """
    a, b = mine.cell, other.cell
    if (a.paper, a.table, a.column) != (b.paper, b.table, b.column):
        return None
    if b.uncertain or not other.entries or a.reported is None or b.reported is None:
        return None
    if abs(a.reported - b.reported) <= 2 * max(mine.noise, other.noise):
        return None
    if a.kind != "accuracy" and mine.rounds != other.rounds:
        return None
    if a.kind in TIMES and {e.place for e in mine.entries} != {e.place for e in other.entries}:
        return None
    common, rounds = min(mine.rounds, other.rounds), int(a.experiment["rounds"])
    ahead, seeds = measure_gap(*bring_together(mine, other))
    if ahead is None or is_early(common, rounds):
        return None
    final = common == rounds and a.kind not in TIMES  # how large a gap in seconds is depends on the machine
    same = agree(a.reported - b.reported, ahead, max(mine.noise_here, other.noise_here), final=final)
    return None if same is None else (same, seeds)


def agree(reported: float, measured: float, noise: float, *, final: bool) -> bool | None:
    """Whether two gaps point one way; of a small one here none can say, but that the paper's is larger: once a run is
    `final`, so that its gap will not grow, this speaks against it."""
    if abs(measured) > 2 * noise:
        return reported * measured > 0
    return False if final and abs(reported - measured) > 2 * noise else None


def is_early(round: int, rounds: int) -> bool:
    """Whether order says little yet."""
    return round < EARLY * rounds


def bring_together(*sides: Judgement) -> list[Judgement]:
    """Cut all to the last round that they have reached, with the seeds that they have in common.

    Where one went on, or was interrupted, what another gained by a final tuning does not count: the first was not
    tuned at that round.
    """
    kept = _keep_common_seeds(sides)
    lengths = {one.rounds for one in kept}
    tuned = {entry.personal is not None for one in kept for entry in one.entries}
    if any(one.cell.kind != "accuracy" for one in kept) or (len(lengths) < 2 and len(tuned) < 2):
        return kept
    return bring_to(min(lengths), kept)


def bring_to(round: int, sides: Sequence[Judgement]) -> list[Judgement]:
    """Return all as they were at a round, with the seeds that they have in common."""
    return _keep_common_seeds([one.at(round) for one in sides])


def _keep_common_seeds(sides: Sequence[Judgement]) -> list[Judgement]:
    """Return all with the seeds they have in common, where there are any."""
    common = set.intersection(*({entry.seed for entry in one.entries} for one in sides))
    pairs = [list(zip(one.entries, one.values, strict=True)) for one in sides]
    if not common:
        return list(sides)
    return [one.only([p for p in mine if p[0].seed in common]) for one, mine in zip(sides, pairs, strict=True)]


def measure_gap(mine: Judgement, other: Judgement) -> tuple[float | None, int]:
    """Measure how far one is ahead of the other, None where a value is missing; and over how many seeds."""
    here, there = mine.mean, other.mean
    seeds = min(len(mine.entries), len(other.entries))
    if here is None or there is None or None in (*mine.values, *other.values):
        return None, seeds
    return here - there, seeds


@dataclass(frozen=True)
class Lead:
    """How far one row is ahead of another in a column: as reported after `rounds`, and as measured at a round both have
    reached. `runs` are the identities of the runs of each, one for each seed.
    """

    row: str
    over: str
    column: str
    round: int
    rounds: int
    reported: float | None
    measured: float
    noise: float
    seeds: int
    runs: tuple[tuple[Any, ...], ...]

    @property
    def verdict(self) -> str:
        """Whether it points the way that the paper's does, where that is no noise."""
        if self.reported is None or abs(self.reported) <= 2 * self.noise or is_early(self.round, self.rounds):
            return "not judged"
        same = agree(self.reported, self.measured, self.noise, final=self.round == self.rounds)
        if same is None:
            return "not judged"
        if self.seeds < 2:
            return ONE_SEED if same else f"{DIFFERS} ({ONE_SEED})"
        return ORDERED if same else DIFFERS


def leads(table: Table, judged: Sequence[Judgement]) -> list[Lead]:
    """List the differences that a table is about, of accuracies alone; over the seeds that both rows have."""
    found = []
    by_name = {(one.cell.row, one.cell.column): one for one in judged if one.entries and one.cell.kind == "accuracy"}
    for row, over in table.leads:
        for column in dict.fromkeys(one.cell.column for one in judged):
            if (row, column) not in by_name or (over, column) not in by_name:
                continue
            mine, other = by_name[row, column], by_name[over, column]
            both = bring_together(mine, other)
            ahead, seeds = measure_gap(*both)
            if ahead is None:
                continue
            a, b = mine.cell.reported, other.cell.reported
            told = None if a is None or b is None else a - b
            runs = tuple(tuple(entry.identity for entry in one.entries) for one in both)
            common, rounds = min(mine.rounds, other.rounds), int(mine.cell.experiment["rounds"])
            noise = max(mine.noise, other.noise)
            found.append(Lead(row, over, column, common, rounds, told, ahead, noise, seeds, runs))
    return found
