"""Reported against measured: the number that the ledger gives for a cell, and what it says about the paper's."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedkeel.ledger import Entry, longest
from fedkeel.papers import Cell, Table
from fedkeel.reproduce import runs_of, settings_of

NOISE = 0.5  # points of accuracy: the least seed noise assumed where neither the paper nor our seeds give one
SHARE = 0.05  # the same of rounds, bytes and seconds, as a share of the reported number
EARLY = 0.2  # of the paper's rounds: before, rows have not found their order yet, and none is judged
WITHIN, ORDERED, DIFFERS = "within seed noise", "ordering holds", "differs"
TIMES = ("seconds", "seconds per round", "extra seconds per round")  # of the authors' machine, so never the same here


def measured(cell: Cell, entry: Entry, others: Sequence[Entry] = ()) -> float | None:
    """The number that a run of its experiment gives for a cell, in the cell's unit; None where the run has none.

    `others` are runs of other experiments, for numbers that are differences.
    """
    if cell.kind == "accuracy":
        if cell.evaluation == "personal best":
            return entry.personal if entry.personal is not None else entry.best
        return entry.last if cell.evaluation == "last" else entry.best
    if cell.kind == "seconds per round":
        return entry.seconds_per_round
    if cell.kind == "extra seconds per round":
        own = longest(others)
        return entry.seconds_per_round - own[0].seconds_per_round if own else None
    reached = entry.rounds_to(cell.target) if cell.target is not None else None
    if reached is None:
        return None
    if cell.kind == "relative bytes":
        return None if entry.sent is None else entry.sent * reached / entry.rounds_paper
    return reached * entry.seconds_per_round if cell.kind == "seconds" else float(reached)


@dataclass(frozen=True)
class Judgement:
    """One cell: what was measured over its seeds, and what that says about the paper's number."""

    cell: Cell
    entries: tuple[Entry, ...]
    mean: float | None
    std: float | None
    verdict: str = "not run"

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
        """By how much two measurements of this number may differ."""
        least = NOISE if self.cell.kind == "accuracy" else SHARE * abs(self.cell.reported or 0.0)
        return max(least, self.cell.spread or 0.0, self.std or 0.0)

    def mean_at(self, round: int) -> float | None:
        """The mean over seeds of what had been reached by a round, before any final tuning; None where the ledger does
        not tell."""
        if round > self.rounds:
            return None
        last = self.cell.evaluation == "last"
        values = [entry.at_round(round) if last else entry.best_by(round) for entry in self.entries]
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if known and len(known) == len(values) else None


def judge(cells: Sequence[Cell], entries: Sequence[Entry]) -> list[Judgement]:
    """Judge cells by the ledger. Only runs of full length are held against a reported number; orderings are judged
    among cells of one column, at a round that both have reached."""
    drawn = [_drawn(cell, entries) for cell in cells]
    return [Judgement(d.cell, d.entries, d.mean, d.std, _verdict(d, drawn)) for d in drawn]


def _drawn(cell: Cell, entries: Sequence[Entry]) -> Judgement:
    known = runs_of(cell, entries)
    if cell.target is not None and cell.kind != "seconds per round":
        known = [entry for entry in known if entry.bests]  # other lines do not tell when a target was reached
    if cell.kind in TIMES:
        known = [entry for entry in known if entry.timed]
    found = longest(known)
    own = _own_method(cell, found, entries) if cell.kind == "extra seconds per round" else []
    values = [value for entry in found if (value := measured(cell, entry, own)) is not None]
    if not values or len(values) < len(found):
        return Judgement(cell, tuple(found), None, None)
    return Judgement(
        cell, tuple(found), statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
    )


def _own_method(cell: Cell, found: Sequence[Entry], entries: Sequence[Entry]) -> list[Entry]:
    """Runs of the paper's own method that differ from the cell's in nothing else, on the same device."""
    alike = settings_of(cell) | {"method": None}
    devices = {entry.environment.get("device") for entry in found}
    return [
        e
        for e in entries
        if e.settings.get("method", {}).get("name") == cell.paper and e.settings | {"method": None} == alike
        if e.environment.get("device") in devices and e.timed
    ]


def _verdict(mine: Judgement, drawn: Sequence[Judgement]) -> str:
    cell = mine.cell
    if cell.unmeasured:
        return "not measured"
    if not mine.entries:
        return "not run"
    if mine.mean is None:
        return "not reached so far" if mine.shortened else "not reached"
    if cell.uncertain or cell.reported is None:
        return "not judged"
    if not mine.shortened and cell.kind not in TIMES and abs(mine.mean - cell.reported) <= 2 * mine.noise:
        return WITHIN
    signs = [sign for other in drawn if other is not mine if (sign := _same_side(mine, other)) is not None]
    if signs and all(signs):
        return ORDERED
    if mine.shortened:
        return f"{DIFFERS} so far" if signs else "shortened"
    return DIFFERS if signs or cell.kind not in TIMES else "another machine"


def _same_side(mine: Judgement, other: Judgement) -> bool | None:
    """Whether two rows of a column stand as the paper has them; None where it does not tell them apart, where it is too
    early to say, or where the ledger knows no round that both have reached."""
    a, b = mine.cell, other.cell
    if (a.paper, a.table, a.column) != (b.paper, b.table, b.column) or b.uncertain or not other.entries:
        return None
    if a.reported is None or b.reported is None or abs(a.reported - b.reported) <= 2 * mine.noise:
        return None
    if a.kind != "accuracy" and mine.rounds != other.rounds:
        return None
    common, ahead = _ahead(mine, other)
    return (
        None if ahead is None or early(common, int(a.experiment["rounds"])) else ahead * (a.reported - b.reported) > 0
    )


def early(round: int, rounds: int) -> bool:
    """Whether order says little yet."""
    return round < EARLY * rounds


def _ahead(mine: Judgement, other: Judgement) -> tuple[int, float | None]:
    """The last round that both have reached, and how far one was ahead then; None where the ledger does not tell.

    Where one went on, what the other gained by a final tuning does not count: the first was not tuned at that round.
    """
    common = min(mine.rounds, other.rounds)
    if mine.rounds == other.rounds:
        here, there = mine.mean, other.mean
    else:
        here, there = mine.mean_at(common), other.mean_at(common)
    return common, None if here is None or there is None else here - there


@dataclass(frozen=True)
class Lead:
    """How far one row is ahead of another in a column: as reported after `rounds`, and as measured at a round both have
    reached. `runs` are the identities of a run of each.
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
        """Whether it has the sign that the paper has, where that is no noise."""
        if self.reported is None or abs(self.reported) <= 2 * self.noise or early(self.round, self.rounds):
            return "not judged"
        return ORDERED if self.reported * self.measured > 0 else DIFFERS


def leads(table: Table, judged: Sequence[Judgement]) -> list[Lead]:
    """The differences that a table is about, of accuracies alone; over the seeds that both rows have."""
    found = []
    by_name = {(one.cell.row, one.cell.column): one for one in judged if one.entries and one.cell.kind == "accuracy"}
    for row, over in table.leads:
        for column in dict.fromkeys(one.cell.column for one in judged):
            if (row, column) not in by_name or (over, column) not in by_name:
                continue
            mine, other = _paired(by_name[row, column], by_name[over, column])
            common, ahead = _ahead(mine, other)
            if ahead is None:
                continue
            a, b = mine.cell.reported, other.cell.reported
            told = None if a is None or b is None else a - b
            runs = tuple(one.entries[0].identity for one in (mine, other))
            rounds = int(mine.cell.experiment["rounds"])
            noise = max(mine.noise, other.noise)
            found.append(Lead(row, over, column, common, rounds, told, ahead, noise, len(mine.entries), runs))
    return found


def _paired(mine: Judgement, other: Judgement) -> tuple[Judgement, Judgement]:
    """Both with the seeds they have in common, where there are any."""
    common = {e.seed for e in mine.entries} & {e.seed for e in other.entries}
    if not common:
        return mine, other
    kept = [tuple(e for e in one.entries if e.seed in common) for one in (mine, other)]
    return _drawn(mine.cell, kept[0]), _drawn(other.cell, kept[1])
