"""Where a full run contradicts its paper, and what else was tried: from the ledger alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedkeel.papers import QUESTIONS, Cell
from fedkeel.papers.ledger import Entry, longest
from fedkeel.papers.ledger_line import measured
from fedkeel.papers.noise import TIMES
from fedkeel.papers.reproduce import at_length_of, settings_of
from fedkeel.papers.verdicts import Judgement
from fedkeel.text import plural

ABOUT = (
    "This section lists experiments of full length whose number differs from the paper's by more than seed noise, and "
    "those whose target some seed did not reach. Their order among the others may still hold. It also lists "
    "experiments for which another setting was tried: by a question, or with "
    "`fedkeel reproduce PAPER:TABLE --cell … --set KEY=VALUE`; of the runs with that setting, for whichever cell they "
    "were made, the longest are shown. The tables keep the settings that were "
    "chosen beforehand; what was changed later is listed with its paper. "
    "Shortened runs contradict nothing yet; their verdicts say where the order differs so far."
)
SUBJECT = ("dataset", "model")  # what an experiment is about is not a choice; nor is its method, but for its numbers


@dataclass(frozen=True)
class Contradiction:
    """An experiment, the cells that its number contradicts, and the other settings that were tried for it."""

    name: str
    place: str
    cells: list[str]
    tried: list[str]


def contradictions(judged: Iterable[Judgement], entries: Sequence[Entry]) -> list[Contradiction]:
    """Find each experiment that contradicts a number or was also tried with other settings, with all its cells."""
    groups: dict[str, list[Judgement]] = {}
    runs = Runs(entries)
    for one in judged:
        groups.setdefault(write_key(one.cell.experiment), []).append(one)
    found = []
    for group in groups.values():
        against = [describe_number(one) for one in group if contradicts(one)]
        tried = list(dict.fromkeys(line for one in group for line in list_tries(one, runs)))
        if against or tried:
            found.append(Contradiction(group[0].cell.row, describe_experiment(group[0]), against, tried))
    return found


def contradicts(judged: Judgement) -> bool:
    """Whether a full run gives another number than the paper."""
    cell = judged.cell
    if not judged.entries or cell.reported is None or cell.uncertain or cell.unmeasured or cell.kind in TIMES:
        return False
    return not judged.shortened and not judged.near


def describe_experiment(judged: Judgement) -> str:
    """`resnet18-gn on cifar10, dirichlet 0.1, 800 rounds`: enough to tell experiments apart."""
    experiment = judged.cell.experiment
    rounds = f"{judged.rounds} of {experiment['rounds']}" if judged.shortened else f"{experiment['rounds']}"
    partition = experiment["partition"]
    how = f"{partition['kind']} {partition['alpha']:g}" if "alpha" in partition else str(partition["kind"])
    return f"{experiment['model']} on {experiment['dataset']}, {how}, {rounds} rounds"


def describe_number(judged: Judgement) -> str:
    cell, digits = judged.cell, 0 if judged.cell.kind == "rounds" else 2
    kind = "" if cell.kind == "accuracy" or cell.label.endswith(cell.kind) else f" ({cell.kind})"
    came = f", measured {judged.mean:.{digits}f} ({judged.difference:+.{digits}f})" if judged.mean is not None else ""
    return f"{cell.paper}:{cell.table} {cell.label}{kind}: reported {cell.reported:.{digits}f}{came}: {judged.words}"


class Runs:
    """The lines of a ledger that have settings: by the cell that they were made for, by those settings, and those that
    questions asked for."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.made_for: dict[tuple[str, ...], list[Entry]] = {}
        self.with_settings: dict[str, list[Entry]] = {}
        for entry in entries:
            if entry.settings:
                self.made_for.setdefault(entry.cell, []).append(entry)
                self.with_settings.setdefault(write_key(entry.settings), []).append(entry)
        self.asked = [entry for entry in entries if entry.paper == QUESTIONS and entry.settings]


def list_tries(judged: Judgement, runs: Runs) -> list[str]:
    """List other settings that runs for the cell had, or a question with one other choice: what was changed, and what
    came out, in the longest runs with these settings, for whichever cell they were made."""
    cell, base = judged.cell, settings_of(judged.cell)
    if cell.lr_matches or cell.paper == QUESTIONS or cell.kind not in ("accuracy", "rounds"):
        return []  # what is asked about is meant to vary; other numbers follow from these
    tried = [entry.settings for entry in runs.made_for.get(cell.place, ()) if entry.settings != base]
    if judged.entries:
        tried += [entry.settings for entry in runs.asked if changes_one_choice(base, entry.settings)]
    lines = []
    for key, settings in {write_key(settings): settings for settings in tried}.items():
        kept = longest(at_length_of(cell, runs.with_settings[key]))
        if not kept:
            continue
        change = ", ".join(describe_change(name, *both) for name, both in find_changes(base, settings).items())
        values = [value for entry in kept if (value := measured(cell, entry)) is not None]
        seeds = plural(len(kept), "seed")
        seeds = f"{len(values)} of {seeds}" if 0 < len(values) < len(kept) else seeds
        lines.append(f"{change}: {describe_outcome(cell, values, kept[0].rounds)} ({seeds})")
    return lines


def changes_one_choice(base: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether another experiment is about the same, and differs in one setting that both have, or in one at all."""
    if any(base.get(key) != other.get(key) for key in SUBJECT) or find_words(base) != find_words(other):
        return False
    changes = find_changes(base, other).values()
    return len(changes) == 1 or sum(None not in both for both in changes) == 1  # what only one of two has goes with it


def find_words(settings: dict[str, Any]) -> Any:
    """What of a method tells it from others: its name and its forms. Its numbers, such as a radius, are choices."""
    method = settings.get("method")
    if not isinstance(method, dict):
        return method
    return {key: value for key, value in method.items() if value is not None and not isinstance(value, int | float)}


def write_key(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


def describe_outcome(cell: Cell, values: Sequence[float], rounds: int) -> str:
    """Say what a try gave."""
    if not values:
        return f"target not reached in {plural(rounds, 'round')}"
    mean = fmean(values)
    if cell.kind == "rounds":
        return f"target reached in {mean:.0f} rounds"
    return f"{mean:.2f} after {plural(rounds, 'round')}"


def find_changes(base: dict[str, Any], other: dict[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Find each setting that differs, what it was and what it is; None where it is not set."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in {**base, **other}:
        mine, theirs = base.get(key), other.get(key)
        if isinstance(mine, dict) and isinstance(theirs, dict):
            found |= find_changes(mine, theirs, f"{prefix}{key}.")
        elif mine != theirs:
            found[f"{prefix}{key}"] = (mine, theirs)
    return found


def describe_change(key: str, mine: Any, theirs: Any) -> str:
    """`lr = 0.05` (chosen: 0.1)."""
    return f"`{key} = {theirs}`" + ("" if mine is None else f" (chosen: {mine})")
