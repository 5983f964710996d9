"""`fedkeel reproduce`: the cells of a published table, reported against measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedkeel.cli.console import complain, count, stdout, table
from fedkeel.cli.pages import examples
from fedkeel.cli.run import Device, Engine, NoProgress, Precision, Workers
from fedkeel.cli.stopping import Stopped
from fedkeel.errors import writing
from fedkeel.text import duration

if TYPE_CHECKING:
    from fedkeel.cli.progress import Display
    from fedkeel.cli.training import Machine, Outcome, Target
    from fedkeel.papers import Cell
    from fedkeel.papers.ledger import Entry
    from fedkeel.runs.finished_run import Run


@examples(
    "fedkeel reproduce --list",
    "fedkeel reproduce fedfft:1 --dry-run",
    "fedkeel reproduce fedfft:1 --cell 'FedFFT-D, cifar10, 0.1' --device cuda",
    "fedkeel reproduce specgradfilter:I --cell '*cifar10*' --seeds 0,1,2 --rounds 100",
    "fedkeel reproduce order:a --skip-done --rounds 200",
    "fedkeel reproduce fedfft:1 --cell 'FedAvg, cifar10, 0.1' --set lr=0.05",
    "fedkeel reproduce specgradfilter:I --cell 'FedAvg, cifar10, 0.*' --try lr=0.01,0.05 --device cuda",
)
def reproduce(
    spec: Annotated[
        str | None,
        typer.Argument(metavar="[PAPER[:TABLE]]", show_default=False, help="fedfft:1, order:a, or claims:NAME."),
    ] = None,
    cell: Annotated[
        str | None, typer.Option(metavar="LABEL", help="One cell, its words in any order, or a pattern with *.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="The tables, one a line.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be run, and what it would cost.")] = False,
    seeds: Annotated[str, typer.Option(metavar="0,1,…", help="Seeds of each cell.")] = "0",
    rounds: Annotated[int | None, typer.Option(metavar="N", help="Stop after N rounds; the run is marked so.")] = None,
    skip_done: Annotated[
        bool, typer.Option("--skip-done", help="Leave out what the ledger has at this length, or longer.")
    ] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Try another choice: lr=0.05, method.rho=0.05 …"),
    ] = None,
    try_: Annotated[
        str | None,
        typer.Option("--try", metavar="KEY=A,B,…", help="Several other choices, each a run of its own: lr=0.01,0.05."),
    ] = None,
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
    claims: Annotated[
        Path | None, typer.Option(metavar="FILE.md", help="Only write the claims page from the ledger.")
    ] = None,
    no_progress: NoProgress = False,
) -> None:
    """Run cells of a published table; print what the paper reports, what was measured, and a verdict.

    Every run stands in a folder of its own and is resumed, not repeated; a shortened one can be finished later, and
    what an interrupted one has reached is kept as a shortened one. What is measured is appended to the ledger, from
    which the results page is made. A run serves every cell that is the same experiment.
    """
    from fedkeel.cli.settings import assignment, some_numbers
    from fedkeel.cli.tracking import Tracking
    from fedkeel.cli.training import Machine
    from fedkeel.cli.trying import tried
    from fedkeel.engines.machine import device_of
    from fedkeel.errors import RequestError
    from fedkeel.papers.ledger import check_writable, read
    from fedkeel.papers.matched_rates import matched
    from fedkeel.papers.reproduce import chosen, obstacle, varied

    if page is not None or claims is not None:
        write_pages(page, claims, ledger)
        return
    if spec is None or list_:
        show_tables(spec)
        return
    machine = Machine(engine, workers, device, precision)
    asked, known = chosen(spec, cell), read(ledger)
    cells = varied(matched(asked, known), [assignment(text) for text in set_ or ()])
    cells = tried(cells, try_) if try_ else cells
    wrong = [error for cell in cells if (error := obstacle(cell))] if set_ or try_ else []
    if wrong and len(wrong) == len(cells):
        raise RequestError(f"no cell can be run with this choice: {wrong[0].message}", wrong[0].hint)
    wanted, skipped = list(some_numbers(seeds)), known if skip_done else []
    if dry_run:
        show_costs(cells, wanted, rounds, known, skipped)
        return
    device_of(device)  # refuses what is not here
    check_writable(ledger)
    # steps are measured by a rule of the method; the record keeps what it reports
    steps = any("MeasureStep" in str(cell.experiment["method"]) for cell in cells)
    machine = replace(machine, tracking=Tracking(("state",) if steps else ()))
    failed = carry_out(cells, wanted, rounds, machine, out, ledger, not no_progress, skipped)
    show_verdicts(cells, ledger)
    if failed:
        raise typer.Exit(1)


def show_tables(spec: str | None) -> None:
    from fedkeel.papers import PAPERS, tables
    from fedkeel.papers.claims import CLAIMS, read_claims
    from fedkeel.papers.order import ORDER, in_order, parts

    made = table(["table!", "cells>", "what it shows"])
    asked = spec.partition(":")[0] if spec else None
    for paper in [asked] if asked and asked not in (ORDER, CLAIMS) else PAPERS if asked is None else []:
        for one in tables(paper):
            made.add_row(f"{paper}:{one.name}", str(len(one.cells)), one.title)
    for name, part in parts().items() if asked in (None, ORDER) else ():
        made.add_row(f"{ORDER}:{name}", str(len(in_order(name))), part["title"])
    for name, claim in read_claims().items() if asked in (None, CLAIMS) else ():
        made.add_row(f"{CLAIMS}:{name}", str(len(claim.cells)), claim.says)
    stdout().print(made)


def write_pages(results: Path | None, claims: Path | None, ledger: Path) -> None:
    from fedkeel.papers import claims_page, results_page
    from fedkeel.papers.ledger import read_lines

    entries = read_lines(ledger, needed=True)
    for path, page in ((results, results_page.page), (claims, claims_page.page)):
        if path is not None:
            with writing(path):
                path.write_text(page(entries), encoding="utf-8")
            stdout().print(f"written to {path}")


def show_costs(
    cells: list[Cell], seeds: list[int], rounds: int | None, known: list[Entry], skipped: list[Entry]
) -> None:
    """Gradient evaluations of each cell, and seconds where the ledger knows a like run."""
    from fedkeel.papers.reproduce import done, gradient_evaluations, length_of, obstacle, seconds_like, settings_of

    made = table(["cell", "method!", "model!", "rounds>", "seeds>", "gradients>", "time>", "state!"])
    total, runs, unknown = 0.0, 0, 0
    planned: list[object] = []
    for cell in cells:
        name, wrong = f"{cell.paper}:{cell.table} {cell.label}", obstacle(cell)
        reason = None if wrong is None else wrong.message
        left = [seed for seed in seeds if not done(cell, seed, rounds, skipped)]
        if reason is None and not left:
            reason = "in the ledger"
        elif reason is None and settings_of(cell) in planned:
            reason = "as one above"
        method = cell.experiment["method"]
        called = method["name"] if isinstance(method, dict) else str(method)
        length = length_of(cell, rounds)
        if reason is not None:
            made.add_row(name, called, str(cell.experiment["model"]), str(length), "0", "", "", reason)
            continue
        planned.append(settings_of(cell))
        like = seconds_like(cell, known, rounds)
        total, runs, unknown = total + (like or 0.0) * len(left), runs + len(left), unknown + (like is None)
        work, time = gradient_evaluations(cell, rounds) * len(left), "–" if like is None else duration(like * len(left))
        made.add_row(name, called, str(cell.experiment["model"]), str(length), str(len(left)), count(work), time, "")
    stdout().print(made)
    rest = f", and {unknown} cells unlike any run before" if unknown else ""
    stdout().print(f"{runs} runs of {len(cells)} cells; by the runs in the ledger {duration(total)}{rest}")


def carry_out(
    cells: list[Cell], seeds: list[int], rounds: int | None, machine: Machine, out: Path,
    ledger: Path, progress: bool, skipped: list[Entry],
) -> int:  # fmt: skip
    """Train what is not done, and write it down as it comes; how many failed, or cannot be run."""
    from fedkeel.cli.fetching import fetched
    from fedkeel.cli.progress import display
    from fedkeel.cli.training import Target, settle_engine, stacks, titles
    from fedkeel.papers.reproduce import done, experiment_of, folder_of, obstacle

    planned: dict[Path, tuple[Cell, Target]] = {}
    failed = 0
    for cell in cells:
        if (wrong := obstacle(cell)) is not None:
            stdout().print(f"skipped  {cell.paper}:{cell.table} {cell.label}: {wrong.message}")
            failed += 1
            continue
        for seed in seeds:
            experiment = experiment_of(cell, seed, rounds)
            folder = folder_of(experiment, out)
            # the same experiment may be several cells
            if folder not in planned and not done(cell, seed, rounds, skipped):
                planned[folder] = cell, Target(cell.label, experiment, folder)
    had = fetched(sorted({target.experiment.dataset or "" for _, target in planned.values()}), progress)
    ready = [target for _, target in planned.values() if (target.experiment.dataset or "") in had]
    machine = settle_engine(ready, machine) if len(ready) > 1 else machine
    # seeds and columns of a row train at once, where the engine stacks
    groups, failed = stacks(ready, machine), failed + len(planned) - len(ready)
    with display(progress, [title for group in groups for title in titles(group)]) as shown:
        for group in groups:
            try:
                outcomes = trained(group, machine, shown, alone=len(planned) == 1)
            except (KeyboardInterrupt, Stopped):
                for target in group:
                    keep_reached(planned[target.folder][0], target, ledger)
                raise
            for outcome in outcomes:
                failed += outcome.run is None
                if outcome.run is not None:
                    keep(planned[outcome.target.folder][0], outcome.run, ledger, again=not outcome.found)
    return failed


def trained(group: list[Target], machine: Machine, shown: Display, alone: bool) -> list[Outcome]:
    """Train a group. What cannot be run is reported, unless it is all that was asked for, and the others go on."""
    from fedkeel.cli.training import Outcome, train
    from fedkeel.errors import RequestError

    try:
        return train(group, machine, shown)
    except RequestError as error:
        if alone:
            raise
        if len(group) > 1:
            return [outcome for target in group for outcome in trained([target], machine, shown, alone)]
        complain(f"{group[0].label}: {error.message}", error.hint)
        return [Outcome(group[0], None)]


def keep(cell: Cell, run: Run, ledger: Path, again: bool) -> None:
    """A line of the ledger for a run; `again` also where it has one."""
    from fedkeel.papers.ledger import append, read
    from fedkeel.papers.reproduce import entry_of, environment_of

    assert run.path is not None
    entry = entry_of(cell, run, environment_of(run.path))
    if again or entry.identity not in {known.identity for known in read(ledger)}:
        append(entry, ledger)


def keep_reached(cell: Cell, target: Target, ledger: Path) -> None:
    """What an interrupted run has reached is a shortened run, if it is a tenth of what was asked for at least."""
    from fedkeel.errors import FolderError
    from fedkeel.runs import checkpoint
    from fedkeel.runs.finished_run import load_run
    from fedkeel.runs.folder import RunFolder

    folder = RunFolder(target.folder)
    try:
        if not checkpoint.list_checkpoints(folder.checkpoints) and not folder.lost():  # it has not begun
            return
        run = load_run(target.folder)
    except FolderError as error:
        complain(f"{target.label}: {error.message}", error.hint)
        return
    if len(run.records) >= target.experiment.plan.rounds / 10:
        keep(cell, run, ledger, again=False)


def show_verdicts(cells: list[Cell], ledger: Path) -> None:
    """The cells, each judged among all other rows of its table, as on the results page."""
    from fedkeel.papers import find
    from fedkeel.papers.ledger import keep_newest, read_lines
    from fedkeel.papers.noise import NoiseOfLedger
    from fedkeel.papers.verdicts import judge

    lines = read_lines(ledger)
    among = [cell for name in dict.fromkeys(f"{cell.paper}:{cell.table}" for cell in cells) for cell in find(name)]
    made = table(["cell", "reported>", "measured>", "difference>", "rounds>", "seeds>", "verdict!"])
    for judged in judge(cells, keep_newest(lines), among, NoiseOfLedger(lines)):
        cell = judged.cell
        spread = "" if cell.spread is None else f" ± {cell.spread:.2f}"
        std = "" if judged.std is None else f" ± {judged.std:.2f}"
        made.add_row(
            f"{cell.paper}:{cell.table} {cell.label}",
            "–" if cell.reported is None else f"{cell.reported:.2f}{spread}",
            "–" if judged.mean is None else f"{judged.mean:.2f}{std}",
            "–" if judged.difference is None else f"{judged.difference:+.2f}",
            f"{judged.rounds} of {cell.experiment['rounds']}",
            str(len(judged.entries)),
            judged.verdict,
        )
    stdout().print(made)
