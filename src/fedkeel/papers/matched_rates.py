"""Learning rates that are matched to another method's mean step length, from what the ledger measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from fedkeel.papers import Cell, find
from fedkeel.papers.ledger import Entry
from fedkeel.papers.reproduce import runs_of


def matched(cells: Sequence[Cell], entries: Sequence[Entry]) -> list[Cell]:
    """Return the cells, those with `lr_matches` at the rate η' = η · s* / s.

    s* is the mean length of a local step, ‖w_(k+1) − w_k‖, in the runs of the row that is named, and s that in the runs
    of the row with the cell's own settings, equally long. Without those runs there is no rate, and the cell says so.
    """
    return [_matched(cell, entries) if cell.lr_matches else cell for cell in cells]


def _matched(cell: Cell, entries: Sequence[Entry]) -> Cell:
    table = {(other.row, other.column): other for other in find(f"{cell.paper}:{cell.table}")}
    plain = next(other for other in table.values() if other.experiment == cell.experiment and not other.lr_matches)
    goals, plains = _steps(table[cell.lr_matches, cell.column], entries), _steps(plain, entries)
    common = goals.keys() & plains.keys()
    if not common:
        return replace(cell, unmeasured=f"its rate follows from {cell.lr_matches} and {plain.row}: run those first")
    length = max(common)
    rate = float(f"{cell.experiment['lr'] * goals[length] / plains[length]:.3g}")
    return replace(cell, experiment=dict(cell.experiment) | {"lr": rate})


def _steps(cell: Cell, entries: Sequence[Entry]) -> dict[int, float]:
    """Compute the mean step length over seeds, by the length of the run."""
    found: dict[int, list[float]] = {}
    for entry in runs_of(cell, entries):
        if entry.step is not None:
            found.setdefault(entry.rounds, []).append(entry.step)
    return {rounds: fmean(values) for rounds, values in found.items()}
