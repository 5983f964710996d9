"""Reported against measured: run the cells of a published table, and judge what comes out."""

from __future__ import annotations

import fnmatch
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedkeel.data import DATASETS
from fedkeel.data.partitions import load_partition
from fedkeel.errors import FedkeelError, RequestError
from fedkeel.experiment import Experiment
from fedkeel.ledger import Entry, of_cell
from fedkeel.papers import Cell, find
from fedkeel.participation import share_of
from fedkeel.runs import Run

NOISE = 0.5  # points of accuracy: the least seed noise assumed where neither the paper nor our seeds give one
WITHIN, ORDERED, DIFFERS = "within seed noise", "ordering holds", "differs"


def chosen(spec: str, pattern: str | None) -> list[Cell]:
    """The cells of a paper or table whose label matches: a pattern, or some of its words, in any order."""
    found = find(spec)
    if pattern is None:
        return found
    words = [word.strip().lower() for word in pattern.split(",")]
    kept = [
        cell
        for cell in found
        if fnmatch.fnmatch(cell.label.lower(), pattern.lower())
        or all(word in [part.strip().lower() for part in cell.label.split(",")] for word in words)
    ]
    if not kept:
        some = "; ".join(cell.label for cell in found[:4])
        raise RequestError(f"{spec} has no cell: {pattern}", f"its cells are like: {some}")
    return kept


def experiment_of(cell: Cell, seed: int, rounds: int | None = None) -> Experiment:
    """The cell's experiment, perhaps shortened."""
    data: dict[str, Any] = dict(cell.experiment) | {"seed": seed}
    if rounds is not None:
        data["rounds"] = min(rounds, int(data["rounds"]))
    return Experiment.load(data)


def measured(cell: Cell, run: Run) -> float | None:
    """The number a run gives for a cell, in the cell's unit; None where the run has none."""
    result, accuracy = run.result, 100.0
    if cell.kind == "accuracy" and result["judged_on"] == "accuracy":
        name = {"best": "best", "last": "last"}.get(cell.evaluation, cell.evaluation)
        value = result.get(name)
        return None if value is None else accuracy * float(value)
    if cell.target is None:
        return None
    reached = run.rounds_to(cell.target / accuracy)
    if cell.kind == "rounds":
        return None if reached is None else float(reached)
    if cell.kind == "seconds":
        return None if reached is None else sum(record.seconds for record in run.records[:reached])
    return None


def entry_of(cell: Cell, run: Run, environment: dict[str, Any]) -> Entry:
    """What the ledger keeps of a run."""
    result = run.result
    points = {name: None if result.get(name) is None else 100 * result[name] for name in ("best", "last", "mean_last")}
    if result["judged_on"] != "accuracy":
        points = dict.fromkeys(points)
    return Entry(
        paper=cell.paper,
        table=cell.table,
        row=cell.row,
        column=cell.column,
        seed=run.experiment.seed,
        kind=cell.kind,
        evaluation=cell.evaluation,
        reported=cell.reported,
        spread=cell.spread,
        measured=measured(cell, run),
        **points,
        rounds=int(result["rounds"]),
        rounds_paper=int(cell.experiment["rounds"]),
        seconds=round(sum(record.seconds for record in run.records), 1),
        fingerprint=result["fingerprint"],
        model_digest=result["model_digest"],
        uncertain=cell.uncertain,
        source=cell.source,
        environment=environment,
    )


@dataclass(frozen=True)
class Judgement:
    """One cell: what was measured over its seeds, and what that says about the paper's number."""

    cell: Cell
    entries: tuple[Entry, ...]
    mean: float | None
    std: float | None
    verdict: str

    @property
    def difference(self) -> float | None:
        if self.mean is None or self.cell.reported is None:
            return None
        return self.mean - self.cell.reported


Drawn = list[tuple[Cell, list[Entry], float | None]]


def judge(cells: Sequence[Cell], entries: Sequence[Entry]) -> list[Judgement]:
    """Judge cells by the ledger. Only runs of full length are held against a reported number; orderings are judged
    among cells of one column that were run equally long."""
    drawn: Drawn = []
    for cell in cells:
        found = of_cell(entries, (cell.paper, cell.table, cell.row, cell.column))
        drawn.append((cell, found, _mean(found)))
    return [
        Judgement(cell, tuple(found), mean, _std(found), _verdict(i, drawn))
        for i, (cell, found, mean) in enumerate(drawn)
    ]


def _mean(entries: Sequence[Entry]) -> float | None:
    values = [entry.measured for entry in entries if entry.measured is not None]
    return statistics.fmean(values) if values else None


def _std(entries: Sequence[Entry]) -> float | None:
    values = [entry.measured for entry in entries if entry.measured is not None]
    return statistics.stdev(values) if len(values) > 1 else None


def _verdict(i: int, drawn: Drawn) -> str:
    cell, mine, mean = drawn[i]
    if not mine:
        return "not run"
    if mean is None:
        return "not reached"
    if cell.uncertain or cell.reported is None:
        return "not judged"
    noise = max(NOISE, cell.spread or 0.0, _std(mine) or 0.0)
    if not mine[0].shortened and abs(mean - cell.reported) <= 2 * noise:
        return WITHIN
    signs = [
        (mean - other_mean) * (cell.reported - other.reported) > 0
        for j, (other, found, other_mean) in enumerate(drawn)
        if j != i and (other.paper, other.table, other.column) == (cell.paper, cell.table, cell.column)
        if found and found[0].rounds == mine[0].rounds and not other.uncertain
        if other_mean is not None and other.reported is not None
        if abs(cell.reported - other.reported) > 2 * noise  # pairs that the paper itself tells apart
    ]
    if not signs:
        return "shortened" if mine[0].shortened else DIFFERS
    return ORDERED if all(signs) else DIFFERS


# ---- what it costs -------------------------------------------------------------------------------------------------
def runnable(cell: Cell) -> str | None:
    """Why a cell cannot be run here; None when it can."""
    try:
        experiment_of(cell, 0)
    except FedkeelError as error:
        return error.message
    return None


def place_of(experiment: Experiment) -> str:
    """The folder of a run below the one for all: cells that are the same experiment share it, whatever their length."""
    return f"{experiment.composed.name}-{experiment.fingerprint()}-{experiment.rounds}"


def gradient_evaluations(cell: Cell, rounds: int | None = None) -> int:
    """Backward passes on one batch, over all clients and rounds; clients taken as equally large."""
    experiment = experiment_of(cell, 0, rounds)
    card = DATASETS[str(experiment.dataset)]
    clients = load_partition(experiment.partition).clients or 100
    share = share_of(experiment.participation or 1.0)
    epochs = experiment.epochs if isinstance(experiment.epochs, int) else max(experiment.epochs or (1,))
    each = card.train / clients
    steps = epochs * -(-each // (experiment.batch_size or 1))
    passes = sum(phase.backward_passes for phase in experiment.composed.phases if phase.batches is None)
    return int((experiment.rounds or 0) * max(1, clients * share) * steps * passes)


def seconds_like(cell: Cell, entries: Sequence[Entry], rounds: int | None = None) -> float | None:
    """Seconds by the fastest run in the ledger of the same table's model and data, in proportion to the rounds."""
    like = [e for e in entries if (e.paper, e.table, e.column) == (cell.paper, cell.table, cell.column) and e.seconds]
    length = min(rounds or cell.experiment["rounds"], cell.experiment["rounds"])
    return min((e.seconds / e.rounds * length for e in like), default=None)
