"""Charts of reported against measured numbers, drawn as SVG without a script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, ROW, LABEL, RIGHT, TOP = 800, 22, 330, 110, 20
REPORTED, GOOD, ORDERED, BAD, OPEN = "#57606a", "#0b7a53", "#0072b2", "#c24a00", "#8a929b"
COLOURS = {"within seed noise": GOOD, "ordering holds": ORDERED, "differs": BAD, "differs so far": BAD}


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


def dot_chart(dots: Sequence[Dot], about: str) -> str:
    """Hollow: reported; filled: measured, in the verdict's colour; a shortened run has a dashed rim."""
    values = [v for d in dots for v in ends(d)]
    low, high, step = scale(min(values), max(values))
    height = TOP + ROW * len(dots) + 24
    parts = [axis(low, high, step, height)]
    for number, dot in enumerate(dots):
        y, colour = TOP + ROW * (number + 0.5), COLOURS.get(dot.verdict, OPEN)
        here = place(dot.measured, low, high)
        parts.append(f'<text x="{LABEL - 10}" y="{y + 4:.1f}" text-anchor="end">{escape(shortened(dot.label))}</text>')
        if dot.reported is not None:
            there = place(dot.reported, low, high)
            parts.append(line(here, y, there, y, "#c3cad2", 2))
            parts.append(whisker(dot.reported, dot.spread, y, low, high, REPORTED))
            parts.append(
                f'<circle cx="{there:.1f}" cy="{y:.1f}" r="4.5" fill="#fff" stroke="{REPORTED}" stroke-width="1.6"/>'
            )
        parts.append(whisker(dot.measured, dot.std, y, low, high, colour))
        rim = (
            f'fill="#fff" stroke="{colour}" stroke-width="2.4" stroke-dasharray="2.2 1.6"'
            if dot.shortened
            else f'fill="{colour}"'
        )
        parts.append(f'<circle cx="{here:.1f}" cy="{y:.1f}" r="4.5" {rim}><title>{escape(told(dot))}</title></circle>')
        parts.append(f'<text x="{WIDTH - RIGHT + 12}" y="{y + 4:.1f}">{escape(dot.beside)}</text>')
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(about)}">{"".join(parts)}</svg>'


@dataclass(frozen=True)
class Curve:
    """Best accuracy so far: (round, accuracy) of each improvement, up to the last round."""

    label: str
    colour: str
    dash: int
    points: Sequence[Sequence[float]]
    last: int

    @property
    def stroke(self) -> str:
        dashes = ("", "7 3", "2 3", "9 3 2 3")[self.dash]
        return f'stroke="{self.colour}"' + (f' stroke-dasharray="{dashes}"' if dashes else "")


def curve_chart(curves: Sequence[Curve], about: str) -> str:
    """Against rounds, as steps."""
    width, height, left, bottom = 800, 250, 46, 30
    most = max(curve.last for curve in curves)
    values = [v for curve in curves for _, v in curve.points]
    low, high, step = scale(min(values), max(values))
    parts = []
    for value in ticks(low, high, step):
        y = 10 + (height - 10 - bottom) * (1 - (value - low) / (high - low))
        parts.append(line(left, y, width - 10, y, "#eef1f4", 1))
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    _, _, every = scale(0, most)
    for value in ticks(0, most, every):
        x = left + (width - 10 - left) * value / most
        parts.append(f'<text x="{x:.1f}" y="{height - 12}" text-anchor="middle">{value:g}</text>')
    for curve in curves:
        path, before = "", 0.0
        for at, value in [*curve.points, [curve.last, curve.points[-1][1]]]:
            x = left + (width - 10 - left) * at / most
            y = 10 + (height - 10 - bottom) * (1 - (value - low) / (high - low))
            path += f"M{x:.1f} {y:.1f}" if not path else f"L{x:.1f} {before:.1f}L{x:.1f} {y:.1f}"
            before = y
        parts.append(f'<path class="curve" d="{path}" {curve.stroke}><title>{escape(curve.label)}</title></path>')
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(about)}">{"".join(parts)}</svg>'


def ends(dot: Dot) -> list[float]:
    found = [dot.measured - (dot.std or 0), dot.measured + (dot.std or 0)]
    return (
        found if dot.reported is None else [*found, dot.reported - (dot.spread or 0), dot.reported + (dot.spread or 0)]
    )


def told(dot: Dot) -> str:
    reported = "" if dot.reported is None else f"reported {dot.reported:.2f}, "
    return f"{dot.label}: {reported}measured {dot.measured:.2f}, {dot.verdict}"


def shortened(label: str, most: int = 54) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"


def scale(low: float, high: float) -> tuple[float, float, float]:
    """Round ends and the step between ticks; around a single number, two to each side."""
    if high == low:
        low, high = low - 2, high + 2
    span = high - low
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= 6)
    return math.floor(low / step) * step, math.ceil(high / step) * step, step


def ticks(low: float, high: float, step: float) -> list[float]:
    return [round(low + step * i, 10) for i in range(int((high - low) / step + 1.000001))]


def place(value: float, low: float, high: float) -> float:
    return LABEL + (WIDTH - RIGHT - LABEL) * (value - low) / (high - low)


def axis(low: float, high: float, step: float, height: int) -> str:
    parts = []
    for value in ticks(low, high, step):
        x = place(value, low, high)
        parts.append(line(x, TOP - 6, x, height - 20, "#eef1f4", 1))
        parts.append(f'<text x="{x:.1f}" y="{height - 6}" text-anchor="middle">{value:g}</text>')
    return "".join(parts)


def whisker(value: float, spread: float | None, y: float, low: float, high: float, colour: str) -> str:
    if not spread:
        return ""
    return line(place(value - spread, low, high), y, place(value + spread, low, high), y, colour, 1.6)


def line(x: float, y: float, x2: float, y2: float, colour: str, width: float) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width:g}"/>'
