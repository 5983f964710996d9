"""Charts of reported against measured numbers, and of accuracies that published cells have reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedkeel.papers.ledger import Entry
from fedkeel.papers.verdicts import DIFFERS, ORDERED, WITHIN
from fedkeel.report.content import look
from fedkeel.report.drawing import PAPER, STYLES, finish, new_figure, plain
from fedkeel.text import shorten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPORTED, OPEN, LINK = "#57606a", "#8a929b", "#c3cad2"
COLOURS = {WITHIN: "#0b7a53", ORDERED: "#0072b2", DIFFERS: "#c24a00"}
LABEL = 54  # characters


@dataclass(frozen=True)
class Dot:
    """One row of a chart: a number with its spread as reported, one as measured, and words beside it."""

    label: str
    reported: float | None
    spread: float | None
    measured: float
    std: float | None
    verdict: str
    beside: str = ""
    shortened: bool = False


def dot_chart(dots: Sequence[Dot]) -> Figure:
    """Hollow: reported; filled: measured, in the verdict's colour; a shortened run is a diamond."""
    height = 0.4 + 0.22 * len(dots)
    figure = new_figure(8.0, height)
    axes = figure.add_axes((0.42, 0.3 / height, 0.46, 1 - 0.4 / height))
    told = [(y, dot, dot.reported) for y, dot in enumerate(dots) if dot.reported is not None]
    axes.hlines([y for y, _, _ in told], [dot.measured for _, dot, _ in told], [at for _, _, at in told], color=LINK)
    axes.errorbar(
        [at for _, _, at in told], [y for y, _, _ in told], xerr=[dot.spread or 0.0 for _, dot, _ in told], fmt="o",
        color=REPORTED, markerfacecolor=PAPER, markersize=6,
    )  # fmt: skip
    for colour, short in dict.fromkeys((colour_of(dot), dot.shortened) for dot in dots):
        here = [(y, dot) for y, dot in enumerate(dots) if (colour_of(dot), dot.shortened) == (colour, short)]
        axes.errorbar(
            [dot.measured for _, dot in here], [y for y, _ in here], xerr=[dot.std or 0.0 for _, dot in here],
            fmt="D" if short else "o", color=colour, markersize=5 if short else 6,
        )  # fmt: skip
    axes.set_ylim(len(dots) - 0.5, -0.5)
    for y, dot in enumerate(dots):  # not ticks, of which each takes a millisecond
        for x, words, side in ((-0.01, plain(shorten(dot.label, LABEL)), "right"), (1.01, dot.beside, "left")):
            axes.text(x, y, words, ha=side, va="center", fontsize=7, transform=axes.get_yaxis_transform())
    finish(axes, yticks=[])
    axes.spines[:].set_visible(False)
    axes.grid(axis="x", color=LINK, alpha=0.4)
    return figure


def colour_of(dot: Dot) -> str:
    return next((colour for verdict, colour in COLOURS.items() if dot.verdict.startswith(verdict)), OPEN)


def curve_chart(entries: Mapping[str, Entry]) -> Figure:
    """Best accuracies so far of lines of a ledger, against rounds, as steps."""
    figure = new_figure(8.0, 2.8)
    axes = figure.add_axes((0.08, 0.16, 0.68, 0.8))
    for number, (label, entry) in enumerate(entries.items()):
        x, y = zip(*entry.bests, (entry.rounds, entry.bests[-1][1]), strict=True)
        colour, dash = look(number)
        axes.step(x, y, where="post", linewidth=1.3, color=colour, linestyle=STYLES[dash], label=plain(label))
    axes.locator_params(nbins=6)
    finish(axes, xlabel="round", ylabel="accuracy (%)")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.03), frameon=False, fontsize=7)
    return figure
