"""The charts of a report as image files for papers, drawn with matplotlib: `fedkeel[figures]`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedkeel.errors import FolderError, RequestError, nearest
from fedkeel.report.content import Content, Setting, looks
from fedkeel.report.diagnostic_figures import diagnostic_figures
from fedkeel.report.drawing import STYLES, finish, new_figure
from fedkeel.report.series import curve, measures, spectra, spent_by

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("png", "svg", "pdf")
NAMES = {
    "accuracy": "test accuracy (%)",
    "test_loss": "test loss",
    "client_loss": "loss of the clients' models",
    "loss": "training loss",
    "validation_accuracy": "validation accuracy (%)",
    "validation_loss": "validation loss",
    "drift": "client drift ‖w_i − w_t‖",
    "update/cosine": "cosine between client updates",
    "alpha": "weight α of the fresh gradient",
    "radius/mean": "mean radius ρ",
    "radius/least": "smallest radius ρ",
    "radius/most": "largest radius ρ",
}
POINTS = 1000


def write_figures(made: Content, folder: Path, kinds: Sequence[str] = KINDS) -> list[Path]:
    """Every chart in every format asked for; the files written, in order."""
    for kind in kinds:
        if kind not in KINDS:
            raise RequestError(f"unknown type of image file: {kind}", nearest(kind, KINDS, "types"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for name, figure in figures(made):
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # its places are found once, not for every format
            for kind in kinds:
                figure.savefig(folder / f"{name}.{kind}", dpi=200)
                written.append(folder / f"{name}.{kind}")
        return written
    except OSError as error:
        raise FolderError(f"cannot write into {folder}: {error.strerror}", "choose another folder") from error


def figures(made: Content) -> Iterator[tuple[str, Figure]]:
    """File names, without their endings, and charts."""
    for number, setting in enumerate(made.settings, 1):
        before = f"{number}-" if len(made.settings) > 1 else ""
        for name, figure in setting_figures(setting):
            yield before + name, figure


def setting_figures(setting: Setting) -> Iterator[tuple[str, Figure]]:
    for measure in measures(setting.groups):
        file = measure.replace("/", "-").replace("_", "-")
        yield f"{file}-by-round", curves(setting, measure, "rounds")
        if measure == "accuracy":
            yield f"{file}-by-second", curves(setting, measure, "seconds")
            yield f"{file}-by-byte", curves(setting, measure, "bytes")
    if any(spectra(group) for group in setting.groups):
        yield "spectrum", bands(setting)
    for i, table in enumerate(setting.labels):
        yield f"labels-{i + 1}" if len(setting.labels) > 1 else "labels", label_map(table.shares, table.group)
    yield from diagnostic_figures(setting)


def curves(setting: Setting, measure: str, against: str) -> Figure:
    """A measure with a band of one standard deviation over seeds."""
    figure = new_figure()
    axes, lines = figure.subplots(), 0
    factor = 100.0 if measure == "accuracy" else 1.0
    for i, group in enumerate(setting.groups):
        found = curve(group, measure, POINTS)
        if found is None:
            continue
        lines += 1
        colour, dash = looks(setting)[i]
        x = np.asarray(found.rounds if against == "rounds" else spent_by(group, against, found.rounds), dtype=float)
        x = x / 1e6 if against == "bytes" else x
        y, d = factor * np.asarray(found.mean), factor * np.asarray(found.deviation)
        axes.plot(x, y, color=colour, linestyle=STYLES[dash], linewidth=1.3, label=group.label)
        if d.any():
            axes.fill_between(x, y - d, y + d, color=colour, alpha=0.15, linewidth=0)
    label = {"rounds": "round", "seconds": "seconds", "bytes": "sent both ways (MB)"}[against]
    return finish(figure, axes, lines, xlabel=label, ylabel=NAMES.get(measure, measure))


def bands(setting: Setting) -> Figure:
    """Dist(m) and Std(m) of the clients' updates by band, mean over the tracked rounds.  (SpecGradFilter fig. 1)"""
    figure = new_figure(4.6, 4.6)
    above, below = figure.subplots(2, 1, sharex=True)
    lines = 0
    for axes, kind, label in ((above, "distance", "Dist(m)"), (below, "deviation", "Std(m)")):
        for i, group in enumerate(setting.groups):
            found = spectra(group, kind)
            if found:
                colour, dash = looks(setting)[i]
                mean = np.mean(found["values"], axis=0)
                x = range(1, len(mean) + 1)
                name = group.label if kind == "distance" else None
                axes.plot(x, mean, "o", markersize=3, color=colour, linestyle=STYLES[dash], linewidth=1.2, label=name)
                lines += kind == "distance"
        axes.set(ylabel=label)
    finish(figure, below, 0, xlabel="frequency band")
    return finish(figure, above, lines)


def label_map(shares: list[list[float]], group: int) -> Figure:
    """Classes by clients, the share of a client's samples as a shade."""
    table = np.ma.masked_equal(np.asarray(shares), 0.0)
    figure = new_figure(6.4, float(np.clip(1.4 + 0.16 * len(table), 2.2, 5.0)))
    axes = figure.subplots()
    rows, columns = (np.arange(size + 1) - 0.5 for size in table.shape)
    image = axes.pcolormesh(group * columns, rows, table, cmap="Blues", vmin=0, vmax=1)
    axes.invert_yaxis()
    axes.set(xlabel="client" if group == 1 else f"client ({group} to a column)", ylabel="class")
    if len(table) <= 20:
        axes.set_yticks(range(len(table)))
    figure.colorbar(image, ax=axes, label="share of its samples")
    return figure
