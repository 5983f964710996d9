"""`fedkeel reproduce`: the cells of a published table, reported against measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedkeel.cli.callbacks import Keep
from fedkeel.cli.console import complain, note, say, stderr, stdout
from fedkeel.cli.options import Device, Engine, NoProgress, Precision, Workers
from fedkeel.cli.pages import examples
from fedkeel.cli.reproduction_tables import show_costs, show_known, show_tables, show_verdicts, write_pages
from fedkeel.cli.stopping import Stopped
from fedkeel.cli.tracking import Track
from fedkeel.text import split_words

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
    "fedkeel reproduce fedfft:figure-9 --skip-done --figures figures",
    "fedkeel reproduce fedscam:1 --cell 'FedSCAM, fashion-mnist, 0.1' --track radius,drift --analyse drift,clusters",
    "fedkeel reproduce order:a --skip-done --rounds 200",
    "fedkeel reproduce fedfft:1 --cell 'FedAvg, cifar10, 0.1' --set lr=0.05",
    "fedkeel reproduce specgradfilter:I --cell 'FedAvg, cifar10, 0.*' --try lr=0.01,0.05 --device cuda",
)
def reproduce(
    spec: Annotated[
        str | None,
        typer.Argument(
            metavar="[PAPER[:TABLE]]",
            show_default=False,
            help="fedfft:1, fedfft:figure-2, order:a, claims:NAME, or a file of your own: mine.toml:1.",
        ),
    ] = None,
    cell: Annotated[
        str | None, typer.Option(metavar="LABEL", help="One cell, its words in any order, or a pattern with *.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="The tables, one a line.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be run, and what it would cost.")] = False,
    seeds: Annotated[
        str, typer.Option(metavar="0,1,…", help='Seeds of each cell; "paper": those that the paper names.')
    ] = "0",
    rounds: Annotated[int | None, typer.Option(metavar="N", help="Stop after N rounds; the run is marked so.")] = None,
    skip_done: Annotated[
        bool, typer.Option("--skip-done", help="Leave out what the ledger has at this length, or longer.")
    ] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Try another choice: lr=0.05, method.rho=0.05 …"),
    ] = None,
    try_: Annotated[
        list[str] | None,
        typer.Option("--try", metavar="KEY=A,B,…", help="Several other choices, each a run of its own: lr=0.01,0.05."),
    ] = None,
    track: Track = "",
    analyse: Annotated[
        str,
        typer.Option(
            metavar="A,B,…",
            help="Look closer at every run afterwards: spectrum, drift, cka, embedding, clusters, hessian, landscape, "
            "groups.",
        ),
    ] = "",
    keep: Keep = None,
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
    gallery: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Only draw the figures that the ledger has best, with a page of them."),
    ] = None,
    figures: Annotated[Path, typer.Option(metavar="DIR", help="Where a figure goes, as PNG, SVG and a page.")] = Path(
        "figures"
    ),
    draw: Annotated[
        bool, typer.Option("--draw", help="Draw a figure from the runs that are there; run nothing.")
    ] = False,
    tiny: Annotated[
        bool,
        typer.Option(
            "--tiny", help="Digits and a small network for 2 rounds, in DIR/tiny: to see the way, not a result."
        ),
    ] = False,
    no_progress: NoProgress = False,
) -> None:
    """Run cells of a published table; print what the paper reports, what was measured, and a verdict.

    Every run stands in a folder of its own and is resumed, not repeated; a shortened one can be finished later, and
    what an interrupted one has reached is kept as a shortened one. What is measured is appended to the ledger, from
    which the results page is made. A run serves every cell that is the same experiment.
    """
    from fedkeel.cli.callbacks import read_callbacks
    from fedkeel.cli.figures import analyse_cells, find_extent, fit_tracks, needs_folders, show_figure
    from fedkeel.cli.settings import parse_assignment, parse_seeds
    from fedkeel.cli.tracking import Tracking
    from fedkeel.cli.training import Machine
    from fedkeel.cli.trying import try_choices
    from fedkeel.engines.machine import device_of
    from fedkeel.errors import RequestError, require_known
    from fedkeel.papers.claims import find_claimed_tracks
    from fedkeel.papers.figures import find_figure, find_needs
    from fedkeel.papers.ledger import check_writable, read
    from fedkeel.papers.matched_rates import matched
    from fedkeel.papers.paper_file import is_own, split_spec
    from fedkeel.papers.reproduce import chosen, obstacle, seeds_named, varied
    from fedkeel.papers.shrink import ROUNDS, WORDS, settings_shown, shrink
    from fedkeel.papers.spectra import has_tracked
    from fedkeel.studies.diagnose import DIAGNOSTICS

    if page or claims or gallery:
        if spec is not None and is_own(split_spec(spec)[0]):
            hint = f"leave out {spec}; `fedkeel reproduce {spec} --draw` prints its table from the ledger"
            raise RequestError("the pages from the ledger have the package's papers alone.", hint)
        write_pages(page, claims, gallery, ledger)
        return
    if spec is None or list_:
        show_tables(spec)
        return
    machine, figure = Machine(engine, workers, device, precision), find_figure(spec)
    if figure is None and show_known(spec):
        return
    shown, kept = find_needs(figure)
    claimed = find_claimed_tracks(spec)
    callbacks = read_callbacks(keep or kept, None, None)
    names = list(dict.fromkeys([*(figure.analyse if figure else ()), *split_words(analyse)]))
    for name in names:
        require_known(name, DIAGNOSTICS, "unknown diagnostic", "diagnostics")
    tracked = Tracking.of(track).track
    if figure is not None and figure.schematic:
        stdout().print(f"{figure.name} is a schematic, nothing to measure: {figure.says}", soft_wrap=True)
        return
    if tiny:
        if ledger != Path("results/ledger.jsonl"):
            raise RequestError("--tiny keeps a ledger of its own.", "leave out --ledger, or --tiny")
        out, rounds = out / "tiny", ROUNDS if rounds is None else rounds
        ledger = out / "ledger.jsonl"
    asked, known = chosen(spec, cell), read(ledger)
    asked = shrink(asked, settings_shown(figure)) if tiny else asked
    cells = varied(matched(asked, known), [parse_assignment(text) for text in set_ or ()])
    cells = try_choices(cells, try_) if try_ else cells
    wrong = [error for cell in cells if (error := obstacle(cell))] if set_ or try_ else []
    if wrong and len(wrong) == len(cells):
        raise RequestError(f"no cell can be run with this choice: {wrong[0].message}", wrong[0].hint)
    # what shows more than the ledger keeps needs the runs themselves
    more = track or names or keep or (figure and needs_folders(figure))
    wanted = seeds_named(seeds, spec) or list(parse_seeds(seeds))
    own = [*(figure.track if figure else ()), *claimed]
    skipped = [one for one in known if has_tracked(one.spectra, one.rounds, own)] if skip_done and not more else []
    if dry_run:
        show_costs(cells, wanted, rounds, known, skipped)
        return
    device_of(device)  # refuses what is not here
    check_writable(ledger)
    # steps are measured by a rule of the method; the record keeps what it reports
    steps = any("MeasureStep" in str(cell.experiment["method"]) for cell in cells)
    tracked = (*(("state",) if steps else ()), *shown, *claimed, *tracked)
    machine = replace(machine, tracking=Tracking(fit_tracks(tracked, rounds)), callbacks=callbacks, newest_only=True)
    failed = 0
    if not draw and (figure is None or figure.needs_runs):
        failed = carry_out(cells, wanted, rounds, machine, out, ledger, not no_progress, skipped)
    shared = figure is not None and figure.shared
    analyse_cells(names, find_extent(figure, tiny), shared, cells, wanted, rounds, out, device)
    if figure is None:
        show_verdicts(cells, ledger)
    else:
        changed = [f"{WORDS}, {rounds} rounds"] if tiny else []
        show_figure(figure.with_cells(cells), wanted, rounds, out, ledger, figures, [*changed, *(set_ or ())])
    if failed:
        raise typer.Exit(1)


def carry_out(
    cells: list[Cell], seeds: list[int], rounds: int | None, machine: Machine, out: Path,
    ledger: Path, progress: bool, skipped: list[Entry],
) -> int:  # fmt: skip
    """Train what is not done, and write it down as it comes; how many failed, or cannot be run."""
    from fedkeel.cli.fetching import fetched
    from fedkeel.cli.progress import display
    from fedkeel.cli.training import Target, group_stacks, name_runs, settle_engine
    from fedkeel.papers.ledger import follows_length
    from fedkeel.papers.reproduce import done, experiment_of, folder_of, length_of, obstacle

    planned: dict[Path, tuple[Cell, Target]] = {}
    hints: list[str | None] = []
    failed = 0
    shorter = (cell for cell in cells if length_of(cell, rounds) < length_of(cell, None))
    if cut := [cell for cell in shorter if follows_length(cell.experiment)]:
        note(f"a shorter run of {cut[0].label} has a schedule of its own: it does not count for the cell")
    for cell in cells:
        if (wrong := obstacle(cell)) is not None:
            stdout().print(f"skipped  {cell.paper}:{cell.table} {cell.label}: {wrong.message}")
            hints.append(wrong.hint)
            failed += 1
            continue
        for seed in seeds:
            experiment = experiment_of(cell, seed, rounds)
            folder = folder_of(experiment, out)
            # the same experiment may be several cells
            if folder not in planned and not done(cell, seed, rounds, skipped):
                planned[folder] = cell, Target(experiment, folder, cell.label)
    for hint in dict.fromkeys(hint for hint in hints if hint):  # many cells may lack the same
        say(stderr(), "hint", "bold yellow", hint)
    had = fetched(sorted({target.experiment.dataset or "" for _, target in planned.values()}), progress)
    ready = [target for _, target in planned.values() if (target.experiment.dataset or "") in had]
    machine = settle_engine(ready, machine) if len(ready) > 1 else machine
    # seeds and columns of a row train at once, where the engine stacks
    groups, failed = group_stacks(ready, machine), failed + len(planned) - len(ready)
    with display(progress, [title for group in groups for title in name_runs(group)]) as shown:
        for group in groups:
            try:
                outcomes = train_group(group, machine, shown, alone=len(planned) == 1)
            except (KeyboardInterrupt, Stopped):
                for target in group:
                    keep_reached(planned[target.folder][0], target, ledger)
                raise
            for outcome in outcomes:
                failed += outcome.run is None
                if outcome.run is not None:
                    keep_result(planned[outcome.target.folder][0], outcome.run, ledger, again=not outcome.found)
    return failed


def train_group(group: list[Target], machine: Machine, shown: Display, alone: bool) -> list[Outcome]:
    """Train a group. What cannot be run is reported, unless it is all that was asked for, and the others go on."""
    from fedkeel.cli.training import Outcome, train
    from fedkeel.errors import RequestError

    try:
        return train(group, machine, shown)
    except RequestError as error:
        if alone:
            raise
        if len(group) > 1:
            return [outcome for target in group for outcome in train_group([target], machine, shown, alone)]
        complain(f"{group[0].label}: {error.message}", error.hint)
        return [Outcome(group[0], None)]


def keep_result(cell: Cell, run: Run, ledger: Path, again: bool) -> None:
    """A line of the ledger for a run; `again` also where it has one."""
    from fedkeel.papers.ledger import append, read
    from fedkeel.papers.ledger_line import entry_of, environment_of

    assert run.path is not None
    entry = entry_of(cell, run, environment_of(run.path))
    known = {line.identity: line for line in read(ledger)}.get(entry.identity)
    if again or known is None:
        append(entry, ledger)
    elif known.superseded:
        note(f"{cell.label}, seed {entry.seed}: the run in {run.path} is superseded; another --out trains anew")


def keep_reached(cell: Cell, target: Target, ledger: Path) -> None:
    """What an interrupted run has reached is a shortened run, if it is a tenth of what was asked for at least."""
    from fedkeel.errors import FolderError
    from fedkeel.runs import checkpoint
    from fedkeel.runs.finished_run import load_run
    from fedkeel.runs.run_folder import RunFolder

    folder = RunFolder(target.folder)
    try:
        if not checkpoint.list_checkpoints(folder.checkpoints) and not folder.lost():  # it has not begun
            return
        run = load_run(target.folder)
    except FolderError as error:
        complain(f"{target.label}: {error.message}", error.hint)
        return
    if len(run.records) >= target.experiment.plan.rounds / 10:
        keep_result(cell, run, ledger, again=False)
