"""Where a full run contradicts its paper, and what was tried besides: told from the ledger alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedkeel.ledger import Entry, longest
from fedkeel.papers.cells import merged
from fedkeel.reproduce import settings_of
from fedkeel.verdicts import DIFFERS, TIMES, WITHIN, Judgement, measured

ABOUT = (
    "Experiments whose number differs from the paper's by more than seed noise, though their order among the others "
    "may hold, and those for which other settings were tried with "
    "`fedkeel reproduce PAPER:TABLE --cell … --set KEY=VALUE`. What was tried is told and nothing more: the tables "
    "keep the settings chosen beforehand."
)


@dataclass(frozen=True)
class Contradiction:
    """An experiment, the cells that its number contradicts, and the other settings that were tried for it."""

    name: str
    place: str
    cells: list[str]
    tried: list[str]


def contradictions(judged: Iterable[Judgement], entries: Sequence[Entry]) -> list[Contradiction]:
    """One for each experiment that contradicts a number or was tried otherwise, with all the cells that it is."""
    groups: dict[str, list[Judgement]] = {}
    for one in judged:
        groups.setdefault(json.dumps(settings_of(one.cell), sort_keys=True), []).append(one)
    found = []
    for group in groups.values():
        against = [told(one) for one in group if contradicts(one)]
        tried = list(dict.fromkeys(line for one in group for line in others(one, entries)))
        if against or tried:
            found.append(Contradiction(group[0].cell.row, place(group[0]), against, tried))
    return found


def contradicts(judged: Judgement) -> bool:
    """Whether a full run gives another number than the paper, or a shorter one another order."""
    cell = judged.cell
    if not judged.entries or cell.reported is None or cell.uncertain or cell.unmeasured or cell.kind in TIMES:
        return False
    if judged.shortened:
        return judged.verdict.startswith(DIFFERS)
    return judged.verdict != WITHIN


def place(judged: Judgement) -> str:
    """`resnet18-gn on cifar10, lr 0.1, 800 rounds`: enough to tell experiments apart."""
    experiment = judged.cell.experiment
    rounds = f"{judged.rounds} of {experiment['rounds']}" if judged.shortened else f"{experiment['rounds']}"
    partition = experiment["partition"]
    how = f"{partition['kind']} {partition['alpha']:g}" if "alpha" in partition else str(partition["kind"])
    return f"{experiment['model']} on {experiment['dataset']}, {how}, {rounds} rounds"


def told(judged: Judgement) -> str:
    cell, digits = judged.cell, 0 if judged.cell.kind == "rounds" else 2
    kind = "" if cell.kind == "accuracy" or cell.label.endswith(cell.kind) else f" ({cell.kind})"
    came = f", measured {judged.mean:.{digits}f} ({judged.difference:+.{digits}f})" if judged.mean is not None else ""
    return f"{cell.paper}:{cell.table} {cell.label}{kind}: reported {cell.reported:.{digits}f}{came}: {judged.verdict}"


def others(judged: Judgement, entries: Sequence[Entry]) -> list[str]:
    """Runs made for the cell with other settings: what was changed, and what came out."""
    cell, base = judged.cell, settings_of(judged.cell)
    if cell.lr_matches:
        return []  # its rate is meant to vary
    name = (cell.paper, cell.table, cell.row, cell.column)
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.cell == name and entry.settings and entry.settings != base:
            found.setdefault(", ".join(changed(base, entry.settings)), []).append(entry)
    lines = []
    for words, runs in found.items():
        kept = longest(runs)
        values = [value for entry in kept if (value := measured(cell, entry)) is not None]
        came = f"{sum(values) / len(values):.2f}" if values else "not reached"
        seeds = f"{len(kept)} seeds" if len(kept) > 1 else "1 seed"
        lines.append(f"{words}: {came} after {kept[0].rounds} rounds ({seeds})")
    return lines


def changed(base: dict[str, Any], other: dict[str, Any], prefix: str = "") -> list[str]:
    """`lr = 0.05` (chosen: 0.1): each setting that differs, and what it was."""
    found = []
    for key in merged(base, other):
        mine, theirs = base.get(key), other.get(key)
        if isinstance(mine, dict) and isinstance(theirs, dict):
            found += changed(mine, theirs, f"{prefix}{key}.")
        elif mine != theirs:
            found.append(f"`{prefix}{key} = {theirs}`" + ("" if mine is None else f" (chosen: {mine})"))
    return found
