"""Cells of published tables as runs: which are asked for, the experiment of each, and the runs that serve it."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fedkeel.data.partition.own import OwnPartition
from fedkeel.errors import FedkeelError, RequestError, UntrustedError
from fedkeel.importing import Trust, untrusted
from fedkeel.papers import PAPERS, Cell, find, seeds_of, tables
from fedkeel.papers.cells import merged
from fedkeel.papers.claims import CLAIMS, find_claimed_cells
from fedkeel.papers.figures import find_figure
from fedkeel.papers.ledger import Entry, cut_to, standing
from fedkeel.papers.order import ORDER, in_order
from fedkeel.papers.paper_file import is_own, split_spec
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.folder import folder_name
from fedkeel.typed_values import check_keys

SETTINGS = tuple(field.name for field in fields(Experiment) if field.name not in ("seed", "rounds", "problem"))


# ---- which cells ---------------------------------------------------------------------------------------------------
def chosen(spec: str, pattern: str | None) -> list[Cell]:
    """The cells of a paper, a table, a figure, a part of the order or a claim whose label matches: the label, or a
    pattern, or some of its words, in any order."""
    found = _every_cell(spec)
    if pattern is None:
        return found
    words = _words(pattern)
    exact = [cell for cell in found if sorted(_words(cell.label)) == sorted(words)]
    kept = exact or [
        cell
        for cell in found
        if fnmatch.fnmatch(cell.label.lower(), pattern.lower()) or set(words) <= set(_words(cell.label))
    ]
    if not kept:
        some = "; ".join(cell.label for cell in found[:4])
        raise RequestError(f"{spec} has no cell: {pattern}", f"its cells are like: {some}")
    return kept


def seeds_named(text: str, spec: str) -> list[int]:
    """The seeds of a paper, where "paper" is written in place of numbers; none where it is not."""
    if text != "paper":
        return []
    paper, _ = split_spec(spec)
    found = seeds_of(paper) if paper in PAPERS or is_own(paper) else ()
    if not found:
        having = ", ".join(name for name in PAPERS if seeds_of(name))
        raise RequestError(
            f"{paper} does not name its seeds.", f"write numbers: --seeds 0,1,2; seeds are named by {having}"
        )
    return list(found)


def _every_cell(spec: str) -> list[Cell]:
    paper, colon, part = spec.partition(":")
    lists = {ORDER: in_order, CLAIMS: find_claimed_cells}
    if paper in lists:
        return lists[paper](part if colon else None)
    figure = find_figure(spec)
    if figure is None:
        return find(spec)
    named = find(spec) if any(one.name == part for one in tables(paper)) else []
    return named + [cell for cell in figure.cells if cell not in named]


def _words(label: str) -> list[str]:
    return [word.strip().lower() for word in label.split(",")]


def varied(cells: Sequence[Cell], changes: Iterable[tuple[tuple[str, ...], Any]]) -> list[Cell]:
    """Change some settings of cells, to see whether another choice comes nearer to the paper."""
    given: dict[str, Any] = {}
    for path, value in changes:
        if path == ("rounds",) or path == ("seed",):
            raise RequestError(f"{path[0]} is not a setting of a cell.", f"use --{path[0].rstrip('s')}s")
        check_keys(path[:1], SETTINGS, RequestError, "an experiment", "key")
        nested: Any = value
        for word in reversed(path[1:]):
            nested = {word: nested}
        given = merged(given, {path[0]: nested})
    if not given:
        return list(cells)
    return [
        replace(
            cell,
            experiment=merged(cell.experiment, given),
            lr_matches="" if "lr" in given else cell.lr_matches,  # a rate that is given is matched to nothing
        )
        for cell in cells
    ]


def settings_of(cell: Cell) -> dict[str, Any]:
    """Return the cell's experiment as plain data, without its length."""
    return {name: value for name, value in cell.experiment.items() if name != "rounds"}


def runs_of(cell: Cell, entries: Iterable[Entry]) -> list[Entry]:
    """The runs of exactly this experiment, for whichever cell they were made, as they stood at the cell's length."""
    return at_length_of(cell, runs_of_any_length(cell, entries))


def runs_of_any_length(cell: Cell, entries: Iterable[Entry]) -> list[Entry]:
    """The runs of this experiment, however long. A rate that is matched may have changed with what it was matched to,
    so there those that were made for the cell, at a rate that was matched then, and differ in nothing else."""
    wanted, entries = settings_of(cell), standing(entries)
    if cell.lr_matches:
        rest, own = wanted | {"lr": None}, [e for e in entries if e.cell == cell.place]
        own = [e for e in own if e.lr_matches in (None, cell.lr_matches)]
        return [e for e in own if not e.settings or e.settings | {"lr": None} == rest]
    return [e for e in entries if (e.settings == wanted if e.settings else e.cell == cell.place)]


def at_length_of(cell: Cell, entries: Iterable[Entry]) -> list[Entry]:
    """Cut runs to the cell's last round."""
    needs_last = cell.kind == "accuracy" and cell.evaluation == "last"
    return cut_to(entries, int(cell.experiment["rounds"]), with_last=needs_last)


def done(cell: Cell, seed: int, rounds: int | None, entries: Iterable[Entry]) -> bool:
    """Whether the ledger holds a run of this experiment, with this seed, that is as long or longer."""
    length = length_of(cell, rounds)
    return any(entry.seed == seed and entry.rounds >= length for entry in runs_of(cell, entries))


def length_of(cell: Cell, rounds: int | None) -> int:
    """Return how many rounds are run: the paper's, or fewer."""
    longest = int(cell.experiment["rounds"])
    return longest if rounds is None else min(rounds, longest)


def experiment_of(cell: Cell, seed: int, rounds: int | None = None) -> Experiment:
    """Make the cell's experiment, perhaps shortened. What it names comes from our tables, or was typed; what a file of
    the user's own names is not imported."""
    data = dict(cell.experiment) | {"seed": seed, "rounds": length_of(cell, rounds)}
    if not is_own(cell.paper):
        return Experiment.read(data, trust=Trust.TYPED)
    try:
        made = Experiment.read(data)
        if isinstance(made.partition, OwnPartition) and made.partition.made is None:
            raise untrusted(str(made.partition.settings["kind"]), "partition")
        return made
    except UntrustedError as error:
        hint = "a paper's file names no code; `fedkeel run FILE --trust` trains it"
        raise UntrustedError(error.message, hint) from None


def obstacle(cell: Cell) -> FedkeelError | None:
    """Say why a cell cannot be run here; None when it can."""
    if cell.unmeasured:
        return RequestError(cell.unmeasured)
    try:
        experiment_of(cell, 0)
    except FedkeelError as error:
        return error
    return None


def place_of(experiment: Experiment) -> str:
    """Name a run's folder by its method, its identity and its length."""
    return f"{name_folder(experiment)}-{experiment.plan.rounds}"


def name_folder(experiment: Experiment) -> str:
    """Name the folder of a run of any length: another experiment never finds it."""
    return f"{folder_name(experiment.plan.method.name)}-{experiment.fingerprint()}"


def folder_of(experiment: Experiment, out: Path) -> Path:
    """Find the folder of a run. A longer run goes on in the folder of a shorter one; a shorter one gets its own."""
    shared = out / name_folder(experiment)
    reached = [int(path.stem) for path in shared.glob("checkpoint/*.safetensors") if path.stem.isdigit()]
    return out / place_of(experiment) if max(reached, default=0) > experiment.plan.rounds else shared
