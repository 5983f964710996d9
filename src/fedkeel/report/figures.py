"""The charts of a report: curves, bands and labels here, diagnostics beside; a page and image files hold the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkeel.errors import RequestError, require_known, writing
from fedkeel.report.client_scores import client_charts
from fedkeel.report.content import Content, Setting
from fedkeel.report.diagnostic_figures import BANDS, diagnostic_charts, shown, spectrum
from fedkeel.report.drawing import Chart, add_legend, finish, lay_out, new_axes, numbers, plain, styled
from fedkeel.report.series import Curve, curve, measures, spectra, spent_by
from fedkeel.report.source import Group
from fedkeel.report.sweeps import sweep_charts, trials_of_runs
from fedkeel.text import byte_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("png", "svg", "pdf")
NAMES = {
    "accuracy": "Test accuracy",
    "test_loss": "Test loss",
    "client_accuracy": "Accuracy of the clients' models",
    "client_accuracy_std": "Spread of accuracy over clients",
    "client_accuracy_worst": "Accuracy of the worst client",
    "client_accuracy_worst_tenth": "Accuracy of the worst tenth",
    "client_loss": "Loss of the clients' models",
    "client_loss_std": "Spread of loss over clients",
    "client_loss_worst": "Loss of the worst client",
    "client_loss_worst_tenth": "Loss of the worst tenth",
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
AXES = {"rounds": ("round", "round"), "seconds": ("second", "seconds"), "bytes": ("byte", "sent both ways ({})")}
POINTS = 1000  # of a curve in a file
DECADES = 100.0  # from how many times the least value on a scale is logarithmic


def write_figures(made: Content, folder: Path, kinds: Sequence[str] = KINDS, style: str = "page") -> list[Path]:
    """Every chart in every format asked for; the files written, in order."""
    with styled(style):
        return write_charts(file_charts(made), folder, kinds)


def check_kinds(kinds: Sequence[str]) -> Sequence[str]:
    """Refuse what is no type of image file, and none at all."""
    for kind in kinds:
        require_known(kind, KINDS, "unknown type of image file", "types")
    if not kinds:
        raise RequestError("no type of image file is given.", f"use some of {', '.join(KINDS)}")
    return kinds


def file_charts(made: Content) -> Iterator[Chart]:
    """The charts of all settings under names that tell them apart, then those against one setting."""
    for setting in made.settings:
        before = f"{setting.index + 1}-" if len(made.settings) > 1 else ""
        for chart in charts(setting, POINTS, [*AXES]):
            yield chart._replace(file=f"{before}{chart.file}")
    yield from sweep_charts(trials_of_runs(made))


def write_charts(drawn: Iterable[Chart], folder: Path, kinds: Sequence[str]) -> list[Path]:
    """Charts as image files in every format asked for; the files written, in order."""
    check_kinds(kinds)
    written = []
    with writing(folder, "choose another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        for chart in drawn:
            add_legend(chart.figure)
            lay_out(chart.figure)
            for kind in kinds:
                written.append(folder / f"{chart.file}.{kind}")
                chart.figure.savefig(written[-1])
    return written


def charts(setting: Setting, points: int, axes: Sequence[str] = ("rounds",)) -> Iterator[Chart]:
    """All charts of a setting, in the order of the page; a curve has at most so many points, accuracy several axes."""
    found = measures(setting.groups)
    judged = "accuracy" in found and all(group.runs[0].policy is not None for group in setting.groups)
    for measure in (one for one in found if not (judged and one == "client_accuracy")):  # it is the accuracy
        file, name = measure.replace("/", "-").replace("_", "-"), NAMES.get(measure, measure)
        part, note = PARTS.get(measure.split("/")[0], "curves"), NOTES.get(measure, "")
        for against in axes if measure == "accuracy" else axes[:1]:
            drawn = curves(setting, measure, against, points)
            yield Chart(f"{file}-by-{AXES[against][0]}", part, name, note, drawn)
    if any(spectra(group) for group in setting.groups):
        note = "of client updates, mean over the tracked rounds; band 1 is the lowest"
        yield Chart("spectrum", "spectrum", "Distance between clients by band", note, bands(setting))
    yield from diagnostic_charts(setting)
    yield from client_charts(setting)
    for i, table in enumerate(setting.labels):
        file = f"labels-{i + 1}" if len(setting.labels) > 1 else "labels"
        yield Chart(file, "clients", f"Labels of {len(table.histogram)} clients", table.note, table.draw())


def curves(setting: Setting, measure: str, against: str, points: int) -> Figure:
    """A measure with a band of one standard deviation over seeds."""

    def find_points(group: Group) -> tuple[Any, Curve] | None:
        if (found := curve(group, measure, points)) is None:
            return None
        x = found.rounds if against == "rounds" else spent_by(group, against, found.rounds)
        return np.asarray(x, dtype=float), found

    axes, every = new_axes(), list[float]()
    drawn = shown(setting, find_points, every=True)
    most = max((one.data[0].max(initial=0.0) for one in drawn), default=0.0)
    size, unit = byte_unit(most) if against == "bytes" else (1.0, "")
    for one in drawn:
        x, found = one.data
        mark = {"linewidth": 1.3, "marker": "o" if len(x) == 1 else None, "markersize": 4}
        y = draw_curve(axes, x / size, found, measure, one.look | mark, gid=f"band-{one.id}")
        every += y[np.isfinite(y)].tolist()
    if 0 < min(every, default=0.0) < max(every, default=0.0) / DECADES:
        axes.set_yscale("log")
    if against == "rounds":
        axes.xaxis.get_major_locator().set_params(integer=True)
    return finish(axes, xlabel=AXES[against][1].format(unit), ylabel=name_axis(measure))


def draw_curve(axes: Any, x: Any, found: Curve, measure: str, look: Mapping[str, Any], **band: Any) -> Any:
    """Draw a curve, and where seeds differ, a band of one standard deviation; accuracies in %. What was drawn."""
    factor = 100.0 if in_percent(measure) else 1.0
    y, d = factor * numbers(found.mean), factor * numbers(found.deviation)
    axes.plot(x, y, **look)
    if d.any():
        axes.fill_between(x, y - d, y + d, color=look["color"], alpha=0.15, linewidth=0, **band)
    return y


def in_percent(measure: str) -> bool:
    return measure.endswith("accuracy") or measure.startswith("client_accuracy")


def name_axis(measure: str) -> str:
    """A measure in the words of an axis, which is shorter than a title."""
    if measure.startswith("plain_"):
        return f"plain {name_axis(measure.removeprefix('plain_'))}"
    name = NAMES.get(measure, plain(measure))
    return name[:1].lower() + name[1:] + (" (%)" if in_percent(measure) else "")


def bands(setting: Setting) -> Figure:
    """Dist(m) and Std(m) of the clients' updates by band, mean over the tracked rounds.  (SpecGradFilter fig. 1)"""

    def tracked(group: Group) -> dict[str, Any]:
        found = {kind: spectra(group, kind) for kind in ("distance", "deviation")}
        tables = {kind: np.ma.masked_invalid(numbers(one["values"])) for kind, one in found.items() if one}
        return {kind: np.ma.filled(table.mean(axis=0), np.nan) for kind, table in tables.items()}

    return spectrum(shown(setting, tracked, every=True), BANDS[:2])
