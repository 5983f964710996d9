"""What every image file has in common: its size, its axes, its legend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedkeel.errors import RequestError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLES: tuple[Any, ...] = ("-", (0, (5, 2.5)), (0, (1.2, 2)), (0, (6, 2, 1.2, 2)))
LEGEND = 24  # entries in a column of a legend


def new_figure(width: float = 4.6, height: float = 3.1) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RequestError(
            "drawing figures needs matplotlib, which is not installed.", "pip install 'fedkeel[figures]'"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def finish(figure: Figure, axes: Any, lines: int, *, beside: bool = False, **settings: Any) -> Figure:
    """Light axes, and a legend where there is something to tell apart; `beside` the chart, or where it finds room."""
    axes.set(**settings)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    if lines > 8 or (beside and lines > 1):  # where a long list hides nothing
        columns = -(-lines // LEGEND)
        figure.set_size_inches(figure.get_figwidth() + 1.6 * columns, figure.get_figheight())
        figure.legend(loc="outside right upper", frameon=False, fontsize=6, ncols=columns)
    elif lines > 1:
        axes.legend(frameon=False, fontsize=8)
    return figure
