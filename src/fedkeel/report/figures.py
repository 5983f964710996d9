"""The charts of a report as image files for papers, drawn with matplotlib: `fedkeel[figures]`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkeel.errors import FolderError, RequestError, nearest
from fedkeel.report.content import Content, Setting, look
from fedkeel.report.series import curve, measures, spectra, spent_by
from fedkeel.report.source import Group

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("png", "svg", "pdf")
STYLES: tuple[Any, ...] = ("-", (0, (5, 2.5)), (0, (1.2, 2)), (0, (6, 2, 1.2, 2)))
NAMES = {
    "accuracy": "test accuracy (%)",
    "test_loss": "test loss",
    "loss": "training loss",
    "drift": "client drift ‖w_i − w_t‖",
    "update/cosine": "cosine between client updates",
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
            for kind in kinds:
                figure.savefig(folder / f"{name}.{kind}", dpi=200)
                written.append(folder / f"{name}.{kind}")
        return written
    except OSError as error:
        raise FolderError(f"cannot write into {folder}: {error.strerror}", "choose another folder") from error


def new_figure(width: float = 4.6, height: float = 3.1) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RequestError(
            "drawing figures needs matplotlib, which is not installed.", "pip install 'fedkeel[figures]'"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


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
    if with_diagnostic(setting, "landscape"):
        yield "landscape-line", landscape_lines(setting)
        yield "landscape-surface", landscape_surfaces(setting)


def with_diagnostic(setting: Setting, name: str) -> list[tuple[int, Group, Any]]:
    found = [(i, group, group.runs[0].diagnostics.get(name)) for i, group in enumerate(setting.groups)]
    return [(i, group, data) for i, group, data in found if data]


def finish(figure: Figure, axes: Any, lines: int, **settings: Any) -> Figure:
    axes.set(**settings)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    if lines > 8:  # beside the chart, where a long list hides nothing
        figure.set_size_inches(figure.get_figwidth() + 1.6, figure.get_figheight())
        figure.legend(loc="outside right upper", frameon=False, fontsize=6)
    elif lines > 1:
        axes.legend(frameon=False, fontsize=8)
    return figure


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
        colour, dash = look(i)
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
                colour, dash = look(i)
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


def landscape_lines(setting: Setting) -> Figure:
    """The loss along one direction, all methods in one frame."""
    figure = new_figure()
    axes, found = figure.subplots(), with_diagnostic(setting, "landscape")
    for i, group, data in found:
        colour, dash = look(i)
        axes.plot(data["line"]["x"], data["line"]["values"], color=colour, linestyle=STYLES[dash], label=group.label)
    return finish(figure, axes, len(found), xlabel=found[0][2]["line"]["along"], ylabel="training loss")


def landscape_surfaces(setting: Setting) -> Figure:
    """The loss over a plane, all methods in one frame.  (FedFFT fig. 7)"""
    figure = new_figure(5.4, 4.4)
    axes: Any = figure.add_subplot(projection="3d")
    found = with_diagnostic(setting, "landscape")
    every = np.concatenate([np.ravel(data["plane"]["values"]) for _, _, data in found])
    top = float(np.quantile(every, 0.95))
    for i, group, data in found:
        x, y = np.meshgrid(data["plane"]["x"], data["plane"]["y"])
        z = np.minimum(np.asarray(data["plane"]["values"]), top)
        axes.plot_surface(x, y, z, color=look(i)[0], alpha=0.55, linewidth=0.2, edgecolor="0.4", label=group.label)
    axes.set(zlabel="training loss", xlabel="first direction", ylabel="second direction")
    axes.tick_params(labelsize=6)
    axes.legend(frameon=False, fontsize=8)
    return figure
