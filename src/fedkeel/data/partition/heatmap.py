"""The label distribution of every client as a picture: in a terminal, or as an image file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.partition.partition import Integers
from fedkeel.errors import RequestError, writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHADES = " ░▒▓█"
BARS = " ▁▂▃▄▅▆▇█"
SUFFIXES = (".png", ".svg", ".pdf")
COLUMNS = 400  # of an image file; more would be narrower than its pixels


def write_heatmap(histogram: Integers, width: int = 120) -> str:
    """Write classes as rows, clients as columns, the class's share of the client's samples as a shade.

    Clients that do not fit into `width`, and classes beyond 40, are added up in neighbouring groups. A blank is a class
    the client does not hold; ▒ is about an equal share, whatever the partition. The last row shows the sizes.
    """
    clients, classes = histogram.shape
    to_a_row = group_size(classes, 40)
    names = [_span(first, to_a_row, classes) for first in range(0, classes, to_a_row)]
    margin = max(map(len, names)) + 1
    to_a_column = group_size(clients, max(1, width - margin))
    cells = add_up_groups(add_up_groups(histogram, to_a_column, axis=0), to_a_row, axis=1)
    equal = 1 / cells.shape[1]
    bounds = (0.0, equal / 2, equal**0.5, equal**0.25)
    shades = np.searchsorted(bounds, _shares(cells), side="right") * (cells > 0)
    sizes = _mean_sizes(cells, to_a_column, clients)
    bars = np.ceil(sizes / max(sizes.max(), 1.0) * (len(BARS) - 1)).astype(np.int64)

    lines = [f"{name:<{margin}}{_line(SHADES, row)}" for name, row in zip(names, shades.T, strict=True)]
    lines.append(f"{'size':<{margin}}{_line(BARS, bars)}")
    legend = ", ".join(f"{shade} from {bound:.2g}" for shade, bound in zip(SHADES[1:], bounds, strict=True))
    grouped = f", {to_a_column} to a column" if to_a_column > 1 else ""
    lines.append(f"{clients} clients{grouped}; share of the client's samples: {legend}")
    return "\n".join(line.rstrip() for line in lines)


def draw_heatmap(histogram: Integers, path: str | Path) -> Path:
    """Draw the same picture as .png, .svg or .pdf, with the clients' sizes on top."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise RequestError(f"unknown type of image file: {path.name}", hint=f"use {', '.join(SUFFIXES)}")
    figure = plot_clients(histogram, COLUMNS)
    with writing(path, "choose another file name"):
        figure.savefig(path, dpi=150)
    return path


def plot_clients(histogram: Integers, columns: int, width: float = 9) -> Figure:
    """The picture as a figure; more clients than columns are added up in neighbouring groups."""
    from matplotlib.figure import Figure

    clients, classes = histogram.shape
    group = group_size(clients, columns)
    cells = add_up_groups(histogram, group, axis=0)
    edges = np.minimum(np.arange(len(cells) + 1) * group, clients) - 0.5
    figure = Figure(figsize=(width, float(np.clip(1.8 + 0.22 * classes, 3.2, 6.5))), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 5))
    above.stairs(_mean_sizes(cells, group, clients), edges, fill=True, color="0.45")
    above.set(ylabel="samples", ylim=(0, None))
    above.spines[["top", "right"]].set_visible(False)
    rows, shares = np.arange(classes + 1) - 0.5, _shares(cells).T
    image = below.pcolormesh(edges, rows, shares, cmap="cividis", vmin=0.0, rasterized=True)
    below.set(xlabel="client" if group == 1 else f"client ({group} to a column)", ylabel="class")
    below.invert_yaxis()
    below.xaxis.get_major_locator().set_params(integer=True)
    if classes <= 20:
        below.set_yticks(range(classes))
    figure.colorbar(image, ax=[above, below], label="share of the client's samples", pad=0.02)
    return figure


def _shares(cells: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(cells / np.maximum(cells.sum(axis=1, keepdims=True), 1))


def group_size(count: int, most: int) -> int:
    """How many neighbours must be added up so that `most` groups suffice."""
    return max(1, -(-count // most))


def add_up_groups(cells: Integers, group: int, axis: int) -> Integers:
    return np.asarray(np.add.reduceat(cells, np.arange(0, cells.shape[axis], group), axis=axis))


def _mean_sizes(cells: NDArray[Any], group: int, clients: int) -> NDArray[np.float64]:
    members = np.minimum(group, clients - np.arange(len(cells)) * group)
    return np.asarray(cells.sum(axis=1) / members)


def _span(first: int, group: int, classes: int) -> str:
    last = min(first + group, classes) - 1
    return f"class {first}" if first == last else f"class {first}-{last}"


def _line(marks: str, levels: Integers) -> str:
    return "".join(marks[level] for level in levels)
