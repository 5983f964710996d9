"""`fedkeel reproduce PAPER:figure-N`: what a figure needs beyond its runs, and the figure itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedkeel.cli.console import stdout

if TYPE_CHECKING:
    from fedkeel.papers import Cell
    from fedkeel.papers.figures import Figure
    from fedkeel.studies.extent import Extent


def needs_folders(figure: Figure) -> bool:
    """Whether a figure shows more than the ledger keeps of a run."""
    from fedkeel.papers.spectra import KEPT

    shown = {panel.measure for panel in figure.panels if panel.kind != "labels"}
    tracked = {track.partition("@")[0] for track in figure.track}
    return bool(figure.analyse or tracked - KEPT.keys() or shown - {"accuracy", "seconds"})


def find_extent(figure: Figure | None, tiny: bool) -> Extent:
    """Find how much is looked at: what the figure says, or less of it where everything is tiny."""
    from fedkeel.studies.extent import Extent

    asked = dict(figure.extent) if figure else {}
    if not tiny:
        return Extent(**asked)
    small = {"clients": 3, "samples": 40, "points": 5, "lanczos_steps": 4, "probes": 2, "eigenvalues": 2}
    return Extent(**{name: value for name, value in asked.items() if name not in ("layer", "tensor")} | small)


def fit_tracks(tracks: Sequence[str], rounds: int | None) -> tuple[str, ...]:
    """Take what is tracked in rounds that a shortened run does not reach at its usual moments instead."""
    found = []
    for name, at, text in (one.partition("@") for one in tracks):
        out_of_reach = at and rounds is not None and min(map(int, text.split("+"))) > rounds
        found.append(name if out_of_reach else f"{name}{at}{text}")
    return tuple(dict.fromkeys(found))


def analyse_cells(
    names: Sequence[str], extent: Extent, shared: bool, cells: Sequence[Cell], seeds: Sequence[int],
    rounds: int | None, out: Path, device: str,
) -> None:  # fmt: skip
    """Take diagnostics of the cells' runs that do not have them yet; `shared`: embed those of a seed in one plane."""
    from fedkeel.cli.analyse import analyse_runs
    from fedkeel.engines.machine import device_of
    from fedkeel.papers.reproduce import experiment_of, folder_of, obstacle
    from fedkeel.runs.folder import RESULT

    runnable = [cell for cell in cells if obstacle(cell) is None]
    for seed in seeds if names else ():
        folders = dict.fromkeys(folder_of(experiment_of(cell, seed, rounds), out) for cell in runnable)
        there = [folder for folder in folders if (folder / RESULT).exists()]
        if there:
            analyse_runs(there, names, extent, str(device_of(device)), shared=shared, anew=False)


def show_figure(
    figure: Figure, seeds: Sequence[int], rounds: int | None, out: Path, ledger: Path, folder: Path,
    changed: Sequence[str],
) -> None:  # fmt: skip
    """Draw a figure from the runs that are there, and say how it compares with the paper's."""
    from fedkeel.papers.ledger import keep_newest, read_lines
    from fedkeel.papers.noise import NoiseOfLedger
    from fedkeel.report.figure_page import write_figure
    from fedkeel.report.figure_runs import FigureRuns

    lines = read_lines(ledger)
    runs = FigureRuns(figure, keep_newest(lines), out, seeds, rounds, NoiseOfLedger(lines))
    written, told = write_figure(runs, folder, changed)
    console = stdout()
    console.print(f"{figure.name}: {figure.says}", style="bold", soft_wrap=True)
    for name, lines in asdict(told).items():
        for line in lines:
            console.print(f"  {name:<9} {line}", soft_wrap=True)
    for file in written:
        typer.echo(file)
