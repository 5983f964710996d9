"""What the ledger keeps of a run, and the number that it gives for a cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedkeel.core.trees import state_bytes
from fedkeel.papers.cells import Cell
from fedkeel.papers.ledger import Entry, longest
from fedkeel.papers.reproduce import settings_of
from fedkeel.papers.spectra import gather_spectra
from fedkeel.runs.finished_run import Run
from fedkeel.runs.folder import TIMING, read_environment, read_json
from fedkeel.runs.record import RoundRecord, by_round, counted

OF_CELL = (
    "paper", "table", "row", "column", "kind", "evaluation", "reported", "spread", "uncertain", "source", "lr_matches",
)  # fmt: skip
"""What a line of the ledger repeats of its cell."""
STEP = "report/step_length"  # what `track="state"` calls the number that the rule MeasureStep reports


def entry_of(cell: Cell, run: Run, environment: dict[str, Any]) -> Entry:
    """Make the line that the ledger keeps of a run."""
    result, paper_rounds = run.result, int(cell.experiment["rounds"])
    judged, scored = result["judged_on"] == "accuracy", counted(run.records, run.plan.evaluate_every)
    known: dict[str, Any] = {name: getattr(cell, name) for name in OF_CELL}
    known |= {name: percent(result.get(name)) if judged else None for name in ("best", "last", "mean_last")}
    entry = Entry(
        **known,
        seed=run.plan.seed,
        measured=None,
        rounds=int(result["rounds"]),
        rounds_paper=paper_rounds,
        seconds=round(sum(record.seconds for record in run.records), 1),
        fingerprint=result["fingerprint"],
        model_digest=result["model_digest"],
        environment=environment,
        settings=settings_of(cell),
        plain=percent(by_round(run.records, "plain_accuracy").get(int(result["rounds"]))),
        personal=percent(result.get("reported")),
        sent=sent_by(run),
        step=mean_step(run.records),
        bests=bests_of(scored) if judged else [],
        curve=curve_of(scored, paper_rounds) if judged else {},
        spectra=gather_spectra(run.records),
    )
    return replace(entry, measured=measured(cell, entry))


def environment_of(folder: Path) -> dict[str, Any]:
    """Read what of a run's environment the ledger keeps."""
    data, timing = read_environment(folder), read_json(folder / TIMING)
    kept = {name: data.get(name) for name in ("device", "machine", "engine", "precision", "revision")}
    packages = {name: data.get("packages", {}).get(name) for name in ("torch", "fedkeel")}
    return kept | packages | {"shared": bool(timing.get("shared"))}


def percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 4)


def sent_by(run: Run) -> float | None:
    """Compute bytes both ways over those of models alone, which is what FedAvg sends."""
    if not run.records:
        return None
    model = state_bytes([run.server[k] for k in ("params", "buffers") if k in run.server])
    plain = 2 * model * sum(len(record.selected) for record in run.records)
    return round(sum(record.bytes_down + record.bytes_up for record in run.records) / plain, 4)


def mean_step(records: Sequence[RoundRecord]) -> float | None:
    """Compute the mean length of a local step over all rounds, where the method measures it."""
    found = by_round(records, STEP).values()
    return float(f"{sum(found) / len(found):.6g}") if found else None


def bests_of(records: Sequence[RoundRecord]) -> list[list[float]]:
    """List (round, accuracy in %) of each round that was better than all before it."""
    found: list[list[float]] = []
    for record in records:
        value = percent(record.accuracy)
        if value is not None and (not found or value > found[-1][1]):
            found.append([record.round, value])
    return found


def curve_of(records: Sequence[RoundRecord], paper_rounds: int) -> dict[str, float]:
    """Return the accuracy of every fiftieth round, in %; of more where the paper has fewer than 200."""
    every = 50 if paper_rounds >= 200 else 5 if paper_rounds >= 20 else 1
    found = {str(r.round): percent(r.accuracy) for r in records if r.round % every == 0}
    return {at: value for at, value in found.items() if value is not None}


def measured(cell: Cell, entry: Entry, others: Sequence[Entry] = ()) -> float | None:
    """Return the number that a run of its experiment gives for a cell, in the cell's unit; None where there is none.

    `others` are runs of other experiments, for numbers that are differences.
    """
    if cell.kind == "accuracy":
        if cell.evaluation == "personal best":
            return entry.personal if entry.personal is not None else entry.best
        return entry.last if cell.evaluation == "last" else entry.best
    if cell.kind == "seconds per round":
        return entry.seconds_per_round
    if cell.kind == "extra seconds per round":
        own = longest(other for other in others if other.place == entry.place)
        return entry.seconds_per_round - own[0].seconds_per_round if own else None
    reached = entry.rounds_to(cell.target) if cell.target is not None else None
    if reached is None:
        return None
    if cell.kind == "relative bytes":
        return None if entry.sent is None else entry.sent * reached / int(cell.experiment["rounds"])
    return reached * entry.seconds_per_round if cell.kind == "seconds" else float(reached)
