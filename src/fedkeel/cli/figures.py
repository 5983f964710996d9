"""`fedkeel reproduce PAPER:figure-N`: what a figure needs beyond its runs, and the figure itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedkeel.cli.console import say, stderr, stdout

if TYPE_CHECKING:
    from fedkeel.papers import Cell
    from fedkeel.papers.figures import Figure
    from fedkeel.report.figure_page import Comparison


def needs_folders(figure: Figure) -> bool:
    """Whether a figure shows more than the ledger keeps of a run."""
    shown = {panel.measure for panel in figure.panels if panel.kind != "labels"}
    return bool(figure.analyse or figure.track or shown - {"accuracy", "seconds"})


def analyse_runs(
    figure: Figure, cells: Sequence[Cell], seeds: Sequence[int], rounds: int | None, out: Path, device: str, tiny: bool
) -> None:
    """Take the diagnostics that a figure shows, of runs that do not have them yet."""
    from fedkeel.engines.machine import device_of
    from fedkeel.papers.reproduce import experiment_of, folder_of, obstacle
    from fedkeel.runs.finished_run import load_run
    from fedkeel.runs.folder import RESULT
    from fedkeel.studies.diagnose import Extent, analyse, read_diagnostics

    if not figure.analyse:
        return
    small = {"clients": 3, "samples": 40, "points": 5, "lanczos_steps": 4, "probes": 2, "eigenvalues": 2}
    extent = Extent(**small) if tiny else Extent()  # type: ignore[arg-type]
    runnable = [cell for cell in cells if obstacle(cell) is None]
    folders = [folder_of(experiment_of(cell, seed, rounds), out) for cell in runnable for seed in seeds]
    for folder in dict.fromkeys(folders):
        if not (folder / RESULT).exists():
            continue
        run = load_run(folder)
        known = read_diagnostics(folder)
        left = [name for name in figure.analyse if known.get(name, {}).get("round") != len(run.records)]
        if left:
            say(stderr(), "analysing", "bold", f"{folder}: {', '.join(left)}")
            analyse(run, left, extent, str(device_of(device)))


def show_figure(
    figure: Figure, seeds: Sequence[int], rounds: int | None, out: Path, ledger: Path, folder: Path,
    changed: Sequence[str],
) -> None:  # fmt: skip
    """Draw a figure from the runs that are there, and say how it compares with the paper's."""
    from fedkeel.papers.ledger import read
    from fedkeel.report.figure_page import write_figure
    from fedkeel.report.figure_runs import FigureRuns

    written, told = write_figure(FigureRuns(figure, read(ledger), out, seeds, rounds), folder, changed)
    show_comparison(figure, told)
    for file in written:
        typer.echo(file)


def show_comparison(figure: Figure, told: Comparison) -> None:
    console = stdout()
    console.print(f"{figure.name}: {figure.says}", style="bold", soft_wrap=True)
    for name, lines in (("same", told.same), ("differs", told.differs), ("open", told.open)):
        for line in lines:
            console.print(f"  {name:<8} {line}", soft_wrap=True, highlight=False, markup=False)
