"""`fedkeel reproduce`: the cells of a published table, reported against measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedkeel.cli import pages
from fedkeel.cli.console import count, duration, stdout, table
from fedkeel.cli.run import Device, Engine, NoProgress, Precision, Workers

if TYPE_CHECKING:
    from fedkeel.cli.training import Machine
    from fedkeel.ledger import Entry
    from fedkeel.papers import Cell


def add_to(app: typer.Typer) -> None:
    pages.add(
        app,
        reproduce,
        "fedkeel reproduce --list",
        "fedkeel reproduce fedfft:1 --dry-run",
        "fedkeel reproduce fedfft:1 --cell 'FedFFT-D, cifar10, 0.1' --device cuda",
        "fedkeel reproduce specgradfilter:I --cell '*cifar10*' --seeds 0,1,2 --rounds 100",
    )


def reproduce(
    spec: Annotated[str | None, typer.Argument(metavar="[PAPER[:TABLE]]", show_default=False, help="fedfft:1")] = None,
    cell: Annotated[
        str | None, typer.Option(metavar="LABEL", help="One cell, its words in any order, or a pattern with *.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="The tables, one a line.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be run, and what it would cost.")] = False,
    seeds: Annotated[str, typer.Option(metavar="0,1,…", help="Seeds of each cell.")] = "0",
    rounds: Annotated[int | None, typer.Option(metavar="N", help="Stop after N rounds; the run is marked so.")] = None,
    engine: Engine = "auto",
    workers: Workers = None,
    device: Device = "auto",
    precision: Precision = "float32",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the runs stand.")] = Path("runs/reproduce"),
    ledger: Annotated[Path, typer.Option(metavar="FILE", help="The ledger that results are appended to.")] = Path(
        "results/ledger.jsonl"
    ),
    page: Annotated[
        Path | None, typer.Option(metavar="FILE.md", help="Only write the results page from the ledger.")
    ] = None,
    no_progress: NoProgress = False,
) -> None:
    """Run cells of a published table; print what the paper reports, what was measured, and a verdict.

    Every run stands in a folder of its own and is resumed, not repeated. What is measured is appended to the ledger,
    from which the results page is made.
    """
    from fedkeel.cli.settings import numbers
    from fedkeel.cli.training import Machine
    from fedkeel.reproduce import chosen

    if page is not None:
        write_page(page, ledger)
        return
    if spec is None or list_:
        show_tables(spec)
        return
    cells = chosen(spec, cell)
    wanted = numbers(seeds)
    if dry_run:
        show_costs(cells, len(wanted), rounds, ledger)
        return
    carry_out(cells, list(wanted), rounds, Machine(engine, workers, device, precision), out, ledger, not no_progress)
    show_verdicts(cells, ledger)


def show_tables(spec: str | None) -> None:
    from fedkeel.papers import PAPERS, tables

    made = table(["table!", "cells>", "what it shows"])
    for paper in [spec.partition(":")[0]] if spec else PAPERS:
        for one in tables(paper):
            made.add_row(f"{paper}:{one.name}", str(len(one.cells)), one.title)
    stdout().print(made)


def write_page(path: Path, ledger: Path) -> None:
    from fedkeel.ledger import read
    from fedkeel.results_page import page

    path.write_text(page(read(ledger)), encoding="utf-8")
    stdout().print(f"written to {path}")


def show_costs(cells: list[Cell], seeds: int, rounds: int | None, ledger: Path) -> None:
    """Gradient evaluations of each cell, and seconds where the ledger knows a like run."""
    from fedkeel.ledger import read
    from fedkeel.reproduce import gradient_evaluations, runnable, seconds_like

    known = read(ledger)
    made = table(["cell", "method!", "model!", "rounds>", "gradients>", "seconds>"])
    total = 0.0
    for cell in cells:
        reason = runnable(cell)
        if reason is not None:
            made.add_row(f"{cell.table}: {cell.label}", reason)
            continue
        work, like = gradient_evaluations(cell, rounds), seconds_like(cell, known, rounds)
        total += (like or 0.0) * seeds
        method = cell.experiment["method"]
        name = method["name"] if isinstance(method, dict) else str(method)
        length = min(rounds or cell.experiment["rounds"], cell.experiment["rounds"])
        made.add_row(
            f"{cell.table}: {cell.label}", name, str(cell.experiment["model"]), str(length),
            count(work * seeds), "–" if like is None else duration(like * seeds),
        )  # fmt: skip
    stdout().print(made)
    stdout().print(f"{len(cells)} cells, {seeds} seeds; at least {duration(total)} by the runs in {ledger}")


def carry_out(
    cells: list[Cell], seeds: list[int], rounds: int | None, machine: Machine, out: Path,
    ledger: Path, progress: bool,
) -> None:  # fmt: skip
    from fedkeel.cli.fetching import fetch
    from fedkeel.cli.progress import display
    from fedkeel.cli.training import Plan, train
    from fedkeel.ledger import append, read
    from fedkeel.reproduce import entry_of, experiment_of, place_of, runnable

    plans, of = [], {}
    for cell in cells:
        reason = runnable(cell)
        if reason is not None:
            stdout().print(f"skipped  {cell.table}: {cell.label}: {reason}")
            continue
        for seed in seeds:
            experiment = experiment_of(cell, seed, rounds)
            plan = Plan(f"{cell.row}, {cell.column}, seed {seed}", experiment, out / place_of(experiment))
            plans.append(plan)
            of[id(plan)] = cell
    fetch(sorted({plan.experiment.dataset or "" for plan in plans}), progress)
    with display(progress, [plan.label for plan in plans]) as shown:
        for plan in plans:
            (outcome,) = train([plan], machine, shown)
            if outcome.run is None:
                continue
            entry = entry_of(of[id(plan)], outcome.run, environment_of(plan.folder))
            if entry.identity not in {known.identity for known in read(ledger)}:
                append(entry, ledger)


def environment_of(folder: Path) -> dict[str, object]:
    """What of a run's environment the ledger keeps."""
    import json

    data = json.loads((folder / "environment.json").read_text())
    kept = {name: data.get(name) for name in ("device", "engine", "precision")}
    return kept | {"torch": data.get("packages", {}).get("torch"), "fedkeel": data.get("packages", {}).get("fedkeel")}


def show_verdicts(cells: list[Cell], ledger: Path) -> None:
    from fedkeel.ledger import read
    from fedkeel.reproduce import judge

    entries: list[Entry] = read(ledger)
    made = table(["cell", "reported>", "measured>", "difference>", "rounds>", "seeds>", "verdict!"])
    for judged in judge(cells, entries):
        cell = judged.cell
        spread = "" if cell.spread is None else f" ± {cell.spread:.2f}"
        std = "" if judged.std is None else f" ± {judged.std:.2f}"
        made.add_row(
            f"{cell.table}: {cell.label}",
            "–" if cell.reported is None else f"{cell.reported:.2f}{spread}",
            "–" if judged.mean is None else f"{judged.mean:.2f}{std}",
            "–" if judged.difference is None else f"{judged.difference:+.2f}",
            "–" if not judged.entries else f"{judged.entries[0].rounds} of {judged.entries[0].rounds_paper}",
            str(len(judged.entries)),
            judged.verdict,
        )
    stdout().print(made)
