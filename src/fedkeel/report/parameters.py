"""Charts of a number against a setting: one line for each method, the paper's numbers hollow beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fedkeel.report.drawing import PAPER, Shown, finish, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARAMETERS = {
    "batch_size": "batch size",
    "clip": "clipping norm",
    "epochs": "local epochs",
    "lr": "learning rate",
    "lr_decay": "decay of the learning rate by round",
    "method.beta": "boost β of agreeing clients",
    "method.gamma": "penalty γ of heterogeneity",
    "method.ratio": "share of frequencies removed",
    "method.rho": "radius ρ",
    "method.rho_larger": "larger radius",
    "method.rho_max": "largest radius ρ",
    "method.top": "layers with the larger radius",
    "participation": "share of clients active in a round",
    "partition.alpha": "Dirichlet's α (smaller: clients differ more)",
    "partition.clients": "number of clients",
    "weight_decay": "weight decay",
}
WIDE = 12.0  # from how many times the least value on an axis is logarithmic


class ParameterPoint(NamedTuple):
    """A value of the setting, the number there with its deviation, the paper's, and whether the run is shortened."""

    x: float
    mean: float
    std: float | None = None
    reported: float | None = None
    shortened: bool = False


def name_parameter(key: str) -> str:
    """Say what a setting is, in the words of an axis."""
    return PARAMETERS.get(key, key.rsplit(".", 1)[-1].replace("_", " "))


def draw_parameter(axes: Any, lines: Sequence[Shown], key: str, ylabel: str) -> Figure:
    """Points of each line: means with bars of one standard deviation; ticks at the values that were run."""
    values = sorted({point.x for line in lines for point in line.data})
    for line in lines:
        points = sorted(line.data)
        x, y, d = ([point[part] for point in points] for part in (0, 1, 2))
        axes.errorbar(
            x, y, yerr=[one or 0.0 for one in d] if any(d) else None, color=line.colour, linestyle=line.style,
            linewidth=1.2, capsize=2, label=plain(line.label),
        )  # fmt: skip
        for short, mark in ((False, "o"), (True, "D")):
            here = [point for point in points if point.shortened == short]
            axes.plot(
                [point.x for point in here], [point.mean for point in here], mark, color=line.colour, markersize=3.5
            )
        told = [point for point in points if point.reported is not None]
        axes.plot(
            [point.x for point in told], [point.reported for point in told], "o", color=line.colour, markersize=5.5,
            markerfacecolor=PAPER, zorder=1.5,
        )  # fmt: skip
    if values[0] > 0 and values[-1] / values[0] >= WIDE:
        axes.set_xscale("log")
    place_ticks(axes, values)
    return finish(axes, xlabel=name_parameter(key), ylabel=ylabel)


def place_ticks(axes: Any, values: Sequence[float]) -> None:
    """At the values, but for those whose names would overlap."""
    import numpy as np

    spots = np.log(values) if axes.get_xscale() == "log" else np.asarray(values)
    span, kept = (spots[-1] - spots[0]) or 1.0, [0]
    for i in range(1, len(values)):
        if spots[i] - spots[kept[-1]] >= 0.11 * span:
            kept.append(i)
    axes.set_xticks([values[i] for i in kept], [f"{values[i]:g}" for i in kept])
    axes.set_xticks([], minor=True)
