"""What every chart has in common: it is drawn once, stands in a page as SVG and in files with a legend."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedkeel.errors import require_known

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLES: tuple[Any, ...] = ("-", (0, (5, 2.5)), (0, (1.2, 2)), (0, (6, 2, 1.2, 2)))
LEGEND = 24  # entries in a column of a legend
RULE, PAPER = "#ebebeb", "#ffffff"
COLOURS = {"#000000": "currentColor", RULE: "var(--line)", PAPER: "var(--paper)"}
"""Ink and paper, which in a page follow its own."""
FARTHEST = 1e38
LOOKS: dict[str, dict[str, Any]] = {
    "page": {},
    "paper": {
        "font.family": ["STIXGeneral", "DejaVu Sans"], "font.size": 11, "mathtext.fontset": "stix",
        "axes.linewidth": 0.6, "xtick.direction": "in", "ytick.direction": "in", "pdf.fonttype": 42, "ps.fonttype": 42,
        "savefig.dpi": 300, "savefig.bbox": "tight", "savefig.pad_inches": 0.02,
    },
}  # fmt: skip
"""`paper`: the letters of a printed page, embedded as text; close margins; 300 dots to the inch."""
DPI = 144  # of maps, which are images inside of a page


class Chart(NamedTuple):
    """A drawing with the name of its file, the part of the page that shows it, and its words there."""

    file: str
    part: str
    title: str
    note: str
    figure: Figure


class Shown(NamedTuple):
    """A method in a chart: its name, its mark in a page, its look, and what is drawn of it."""

    label: str
    id: str
    colour: str
    style: Any
    data: Any

    @property
    def look(self) -> dict[str, Any]:
        return {"color": self.colour, "linestyle": self.style, "label": plain(self.label), "gid": self.id}


def check_style(style: str) -> str:
    """Refuse a name that is not in LOOKS."""
    return require_known(style, LOOKS, "unknown style", "styles")


@contextmanager
def styled(style: str) -> Iterator[None]:
    """Draw in one of LOOKS."""
    from matplotlib import rc_context

    look = LOOKS[check_style(style)]
    with rc_context({"savefig.dpi": 200} | look):
        yield


def new_figure(width: float, height: float, *, fitted: bool = False) -> Figure:
    """An empty figure with fixed margins; `fitted`: with margins that are measured, which takes time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained" if fitted else None)
    if not fitted:
        figure.subplots_adjust(0.74 / width, 0.48 / height, 1 - 0.16 / width, 1 - 0.1 / height, hspace=0.1)
    return figure


def new_axes(width: float = 4.6, height: float = 3.1, *, fitted: bool = False) -> Any:
    """The axes of a new figure that has no others."""
    return new_figure(width, height, fitted=fitted).subplots()


def numbers(values: Any) -> Any:
    """An array; NaN, which charts leave out, for what is no number or farther from 1 than a model's numbers go."""
    found = np.asarray(values, dtype=float)
    size = np.abs(found)
    return np.where(size < FARTHEST, np.where(size > 1 / FARTHEST, found, 0.0), np.nan)


def plain(text: str) -> str:
    """A name from outside, in which no dollar begins a formula."""
    return text.replace("$", r"\$")


def finish(axes: Any, **settings: Any) -> Figure:
    """Make axes light, and name what they show; their figure."""
    axes.set(**settings)
    if hasattr(axes.yaxis.get_major_formatter(), "set_powerlimits"):  # long numbers do not fit into the margin
        axes.ticklabel_format(axis="y", scilimits=(-2, 5))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=RULE)
    axes.set_axisbelow(True)
    figure: Figure = axes.figure
    return figure


def add_legend(figure: Figure) -> None:
    """The names of the methods, which a page has above its charts: beside points and long lists, else in the chart."""
    axes = figure.axes[0]
    if figure.legends:
        return
    _, names = axes.get_legend_handles_labels()
    if len(names) < 2 or axes.get_legend():
        return
    if len(names) > 8 or (axes.name == "rectilinear" and not axes.lines):
        columns = -(-len(names) // LEGEND)
        figure.set_layout_engine("constrained")
        figure.set_size_inches(figure.get_figwidth() + 1.6 * columns, figure.get_figheight())
        marks: Any = figure.legend(loc="outside right upper", frameon=False, fontsize=6, ncols=columns).legend_handles
        for mark in marks if not axes.lines else ():
            mark.set_sizes([14])
    else:
        axes.legend(frameon=False, fontsize=8, loc="upper left" if axes.name == "3d" else "best")


def lay_out(figure: Figure) -> None:
    """Find the places of a chart's parts once, not whenever it is saved; fixed margins leave room for a power of ten
    above an axis."""
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
    elif any(find_power(axes.yaxis) for axes in figure.axes if axes.get_position().y1 > figure.subplotpars.top - 1e-6):
        figure.subplots_adjust(top=min(figure.subplotpars.top, 1 - 0.27 / figure.get_figheight()))
    figure.set_layout_engine("none")


def find_power(axis: Any) -> str:
    """What stands above an axis whose numbers are very small or large: 1e−5."""
    formatter = axis.get_major_formatter()
    formatter.format_ticks(axis.get_majorticklocs())
    return str(formatter.get_offset())


# ---- inside of a page ----------------------------------------------------------------------------------------------
def embed(figure: Figure, title: str) -> str:
    """The chart as an SVG element: text is text, ink has the page's colours, what is of a group is marked as such."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    for number, axes in enumerate(figure.axes):
        axes.patch.set_visible(False)
        if axes.name == "rectilinear" and axes.lines and not axes.get_gid():
            axes.set_gid(f"plot-{number}")
    figure.patch.set_visible(False)
    figure.set_dpi(DPI)
    text = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "fedkeel"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # browsers have more letters than matplotlib
        lay_out(figure)
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(text)  # `savefig` would draw it twice
    width, height = (72 * size for size in figure.get_size_inches())
    _, start, drawn = text.getvalue().partition("<defs>")
    used = set(re.findall(r'(?:href="|url\()#(\w+)', drawn))

    def named(found: re.Match[str]) -> str:
        name = found[1]
        if name.startswith("plot-"):
            return scales(figure.axes[int(name.removeprefix("plot-"))], width, height)
        if group := re.fullmatch(r"(band-)?(g\d+-\d+)", name):
            return f' data-group="{group[2]}"' + (' class="band"' if group[1] else "")
        return found[0] if name in used else ""

    def rewritten(tag: re.Match[str]) -> str:
        made = re.sub(r' id="([^"]*)"', named, tag[0].replace("xlink:href", "href"))
        for colour, variable in COLOURS.items():
            made = made.replace(colour, variable)
        return re.sub(r' d="([^"]*)"', lambda path: f' d="{" ".join(shorter(path[1]).split())}"', made)

    drawn = re.sub(r"<[^>]*>", rewritten, start + drawn).strip()  # tags alone: names between them may be anything
    view = f'viewBox="0 0 {width:g} {height:g}" style="--width: {width:g}"'
    return f'<svg {view} role="img" aria-label="{escape(title)}">{drawn}'


def shorter(numbers: str) -> str:
    """As many digits as can be seen."""
    return re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), numbers)


def scales(axes: Any, width: float, height: float) -> str:
    """Where the axes stand, and from where to where they count: what tells numbers from places."""
    box, below = axes.get_position(), axes.figure.axes[-1]
    place = (width * box.x0, width * box.x1, height * (1 - box.y0), height * (1 - box.y1))
    numbers = " ".join(f"{number:.6g}" for number in (*place, *axes.get_xlim(), *axes.get_ylim()))
    words = escape(axes.get_xlabel() or below.get_xlabel()), escape(axes.get_ylabel())
    return f' data-plot="{numbers}" data-y-scale="{axes.get_yscale()}" data-x="{words[0]}" data-y="{words[1]}"'
