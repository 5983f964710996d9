"""The charts of a report: curves, bands and labels here, diagnostics beside; a page and image files hold the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedkeel.errors import FolderError, RequestError, nearest
from fedkeel.report.content import Content, Setting, group_id, looks
from fedkeel.report.diagnostic_figures import diagnostic_charts
from fedkeel.report.drawing import STYLES, Chart, add_legend, finish, lay_out, new_figure, numbers, plain
from fedkeel.report.labels import Labels
from fedkeel.report.series import curve, measures, spectra, spent_by

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("png", "svg", "pdf")
NAMES = {
    "accuracy": "Test accuracy",
    "test_loss": "Test loss",
    "client_loss": "Loss of the clients' models",
    "loss": "Training loss",
    "validation_accuracy": "Validation accuracy",
    "validation_loss": "Validation loss",
    "plain_accuracy": "Test accuracy of the model that is trained",
    "plain_test_loss": "Test loss of the model that is trained",
    "drift": "Client drift ‖wᵢ − wₜ‖",
    "update/cosine": "Cosine between client updates",
    "update/agreement": "Agreement ‖mean Δ‖ / mean ‖Δ‖",
    "update/spread": "Spread of client updates",
    "update/least": "Smallest client update",
    "update/most": "Largest client update",
    "alpha": "Weight α of the fresh gradient",
    "radius/mean": "Mean radius ρ",
    "radius/least": "Smallest radius ρ",
    "radius/most": "Largest radius ρ",
}
NOTES = {
    "drift": "mean over the clients of a round",
    "update/cosine": "mean over pairs of clients; 1: all move alike",
    "plain_accuracy": "the accuracy above is that of the average, which is deployed",
    "alpha": "in the mix with the momentum (FedWMSAM)",
    "radius/mean": "over the clients of a round (FedSCAM)",
}
PARTS = {"drift": "drift", "update": "drift", "state": "kept", "report": "kept", "alpha": "kept", "radius": "kept"}
"""The part of a page by the first word of a measure; `curves` for the others."""
AXES = {"rounds": ("round", "round"), "seconds": ("second", "seconds"), "bytes": ("byte", "sent both ways (MB)")}
POINTS = 1000  # of a curve in a file
DECADES = 100.0  # from how many times the least value on a scale is logarithmic


def write_figures(made: Content, folder: Path, kinds: Sequence[str] = KINDS) -> list[Path]:
    """Every chart in every format asked for; the files written, in order."""
    for kind in kinds:
        if kind not in KINDS:
            raise RequestError(f"unknown type of image file: {kind}", nearest(kind, KINDS, "types"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for setting in made.settings:
            before = f"{setting.index + 1}-" if len(made.settings) > 1 else ""
            for chart in charts(setting, POINTS):
                add_legend(chart.figure)
                lay_out(chart.figure)
                for kind in kinds:
                    written.append(folder / f"{before}{chart.file}.{kind}")
                    chart.figure.savefig(written[-1], dpi=200)
        return written
    except OSError as error:
        raise FolderError(f"cannot write into {folder}: {error.strerror}", "choose another folder") from error


def charts(setting: Setting, points: int) -> Iterator[Chart]:
    """All charts of a setting, in the order of the page; a curve has at most so many points."""
    for measure in measures(setting.groups):
        file, name = measure.replace("/", "-").replace("_", "-"), NAMES.get(measure, measure)
        part, note = PARTS.get(measure.split("/")[0], "curves"), NOTES.get(measure, "")
        for against, (word, _) in AXES.items() if measure == "accuracy" else [("rounds", AXES["rounds"])]:
            title = name if against == "rounds" else f"{name} by {word}"
            yield Chart(f"{file}-by-{word}", part, title, note, curves(setting, measure, against, points))
    if any(spectra(group) for group in setting.groups):
        note = "of client updates, mean over the tracked rounds; band 1 is the lowest"
        yield Chart("spectrum", "spectrum", "Distance between clients by band", note, bands(setting))
    yield from diagnostic_charts(setting)
    for i, table in enumerate(setting.labels):
        note = f"partition seed {table.seed}; heterogeneity {table.score:.4g} (0: iid, 1: one class per client)"
        file = f"labels-{i + 1}" if len(setting.labels) > 1 else "labels"
        yield Chart(file, "clients", f"Labels of {table.clients} clients", note, label_map(table))


def curves(setting: Setting, measure: str, against: str, points: int) -> Figure:
    """A measure with a band of one standard deviation over seeds."""
    figure = new_figure()
    axes = figure.subplots()
    every: list[float] = []
    factor = 100.0 if measure.endswith("accuracy") else 1.0
    for i, (group, (colour, dash)) in enumerate(zip(setting.groups, looks(setting), strict=True)):
        found = curve(group, measure, points)
        if found is None:
            continue
        x = np.asarray(found.rounds if against == "rounds" else spent_by(group, against, found.rounds), dtype=float)
        x = x / 1e6 if against == "bytes" else x
        y, d = factor * numbers(found.mean), factor * numbers(found.deviation)
        marker = "o" if len(x) == 1 else None
        axes.plot(
            x, y, color=colour, linestyle=STYLES[dash], linewidth=1.3, marker=marker, markersize=4,
            label=plain(group.label), gid=group_id(setting.index, i),
        )  # fmt: skip
        every += y[np.isfinite(y)].tolist()
        if d.any():
            axes.fill_between(
                x, y - d, y + d, color=colour, alpha=0.15, linewidth=0, gid=f"band-{group_id(setting.index, i)}"
            )
    if 0 < min(every, default=0.0) < max(every, default=0.0) / DECADES:
        axes.set_yscale("log")
    name = NAMES.get(measure, plain(measure))
    finish(axes, xlabel=AXES[against][1], ylabel=name[:1].lower() + name[1:] + (" (%)" if factor > 1 else ""))
    return figure


def bands(setting: Setting) -> Figure:
    """Dist(m) and Std(m) of the clients' updates by band, mean over the tracked rounds.  (SpecGradFilter fig. 1)"""
    figure = new_figure(4.6, 4.6)
    above, below = figure.subplots(2, 1, sharex=True)
    for axes, kind, label in ((above, "distance", "Dist(m)"), (below, "deviation", "Std(m)")):
        for i, (group, (colour, dash)) in enumerate(zip(setting.groups, looks(setting), strict=True)):
            if found := spectra(group, kind):
                mean = np.mean(numbers(found["values"]), axis=0)
                axes.plot(
                    range(1, len(mean) + 1), mean, "o", markersize=3, color=colour, linestyle=STYLES[dash],
                    linewidth=1.2, label=plain(group.label), gid=group_id(setting.index, i),
                )  # fmt: skip
        finish(axes, ylabel=label)
    below.set_xlabel("frequency band")
    return figure


def label_map(labels: Labels) -> Figure:
    """Classes by clients, the share of a client's samples as a shade."""
    table, group = np.ma.masked_equal(np.asarray(labels.shares), 0.0), labels.group
    figure = new_figure(6.4, float(np.clip(1.4 + 0.16 * len(table), 2.2, 5.0)), fitted=True)
    axes = figure.subplots()
    rows, columns = (np.arange(size + 1) - 0.5 for size in table.shape)
    image = axes.pcolormesh(group * columns, rows, table, cmap="Blues", vmin=0, vmax=1, rasterized=True)
    axes.invert_yaxis()
    axes.set(xlabel="client" if group == 1 else f"client ({group} to a column)", ylabel="class")
    if len(table) <= 20:
        axes.set_yticks(range(len(table)))
    figure.colorbar(image, ax=axes, label="share of its samples")
    return figure
