"""Charts with a panel for each method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkeel.report.drawing import Shown, new_figure, numbers, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = 24  # characters of a layer's name
FEW = 6  # rounds that are all named on an axis
MANY = 12  # layers: of more only some are drawn
WIDE = 1.7  # inches of a panel
NAMED = 1.05  # inches that the names of layers need


def panels(
    found: Sequence[Shown], draw: Callable[[Any, Shown, Sequence[Shown]], Any], room: float = 0.35, wide: float = WIDE
) -> Figure:
    """`draw` puts one method into its panel, with so many inches to its left; a bar explains the map it returns."""
    columns = 3 if len(found) in (5, 6, 9) else min(4, len(found))
    rows, high = -(-len(found) // columns), 1.65
    width, height = columns * (wide + room) + 0.75, rows * (high + 0.6)
    figure = new_figure(width, height)
    figure.subplots_adjust(room / width, 0.4 / height, 1 - 0.75 / width, 1 - 0.2 / height, room / wide, 0.6 / high)
    every = figure.subplots(rows, columns, squeeze=False)
    image = None
    for axes, one in zip(every.flat, found, strict=False):
        image = draw(axes, one, found)
        axes.set_gid(one.id)
        if image is not None:
            image.set_rasterized(True)
        axes.set_title(plain(one.label), fontsize=8, color=one.colour)
        axes.tick_params(labelsize=6)
    for axes in every.flat[len(found) :]:
        axes.set_visible(False)
    if image is not None:
        bar = figure.add_axes((1 - 0.6 / width, 0.4 / height, 0.12 / width, 1 - 0.6 / height))
        figure.colorbar(image, cax=bar).ax.tick_params(labelsize=6, which="both")
    else:
        figure.set_size_inches(width - 0.6, height)
        figure.subplots_adjust(room / (width - 0.6), right=1 - 0.15 / (width - 0.6))
    return figure


def cosines(axes: Any, one: Shown, found: Sequence[Shown]) -> Any:
    return square(axes, one.data["cosines"], one.data["clients"], "PuOr_r", -1.0)


def cka(axes: Any, one: Shown, found: Sequence[Shown]) -> Any:
    tables = [[*other.data["layers"].values()][-1] for other in found]
    return square(axes, [*one.data["layers"].values()][-1], one.data["clients"], "cividis", float(np.min(tables)))


def square(axes: Any, table: Any, clients: Sequence[int], colours: str, low: float) -> Any:
    every = -(-len(clients) // 8)
    places = range(0, len(clients), every)
    axes.set_xticks(places, [clients[i] for i in places])
    axes.set_yticks(places, [clients[i] for i in places])
    axes.set_xlabel("client", fontsize=7)
    return axes.imshow(numbers(table), cmap=colours, vmin=low, vmax=1.0)


def from_above(axes: Any, one: Shown, found: Sequence[Shown]) -> Any:
    every = np.concatenate([np.ravel(numbers(other.data["plane"]["values"])) for other in found])
    low, high = float(np.nanmin(every)), float(np.nanquantile(every, 0.95))
    plane = one.data["plane"]
    levels = np.linspace(low, high if high > low else low + 1e-12, 15)
    axes.set_aspect("equal")
    return axes.contourf(plane["x"], plane["y"], numbers(plane["values"]), levels, cmap="cividis", extend="max")


def by_layer(axes: Any, one: Shown, found: Sequence[Shown]) -> Any:
    return band_map(axes, one.data["layers"], [other.data["layers"] for other in found])


def by_client(axes: Any, one: Shown, found: Sequence[Shown]) -> Any:
    """Clients from the nearest to the mean to the farthest."""
    rows = sorted(one.data["clients"].items(), key=lambda item: float(np.nansum(numbers(item[1]))))
    return band_map(axes, dict(rows), [other.data["clients"] for other in found], "client ")


def band_map(axes: Any, rows: Mapping[str, Any], every_table: Sequence[Mapping[str, Any]], before: str = "") -> Any:
    """Rows by bands, in the shades of all tables."""
    from matplotlib.colors import LogNorm

    every = np.concatenate([np.ravel(numbers([*table.values()])) for table in every_table])
    every = every[np.isfinite(every)]  # of clients that diverged there are none
    high = float(np.max(every, initial=0.0)) or 1.0
    low = max(high / 1e3, float(np.min(every[every > 0], initial=high)) / 1.001)
    table = np.ma.masked_invalid(numbers([*rows.values()]))
    layer_names(axes, [f"{before}{name}" for name in rows])
    axes.set_xlabel("band", fontsize=7)
    shape = np.arange(table.shape[1] + 1) + 0.5, np.arange(table.shape[0] + 1) - 0.5
    axes.invert_yaxis()
    return axes.pcolormesh(*shape, table, cmap="Blues", norm=LogNorm(low, high, clip=True))


def bands_by_round(axes: Any, one: Shown, found: Sequence[Shown]) -> Any:
    from matplotlib.colors import LogNorm

    every = np.concatenate([np.ravel(numbers(other.data["values"])) for other in found])
    low, high = (float(edge(every[every > 0])) if (every > 0).any() else 1.0 for edge in (np.min, np.max))
    table = np.ma.masked_less_equal(np.ma.masked_invalid(numbers(one.data["values"]).T), 0)
    axes.set_ylabel("band", fontsize=7)
    axes.yaxis.get_major_locator().set_params(integer=True)
    norm = LogNorm(low, max(high, 1.001 * low))
    return map_by_round(axes, one.data["rounds"], range(1, len(table) + 1), table, cmap="cividis", norm=norm)


def critical_layers(axes: Any, one: Shown, found: Sequence[Shown]) -> Any:
    table = numbers(one.data["values"]).T
    layer_names(axes, one.data["layers"])
    axes.invert_yaxis()
    return map_by_round(axes, one.data["rounds"], range(len(table)), table, cmap="Blues", vmin=0, vmax=1)


def map_by_round(axes: Any, rounds: Sequence[int], rows: Sequence[int], table: Any, **look: Any) -> Any:
    """A cell for each round and row, around their places."""
    axes.set_xlabel("round", fontsize=7)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if len(rounds) <= FEW:
        axes.set_xticks(rounds)
    return axes.pcolormesh(edges_of(rounds), edges_of(rows), table, **look)


def edges_of(places: Sequence[int]) -> Any:
    """Edges halfway between places; a place alone is one wide, where `shading="nearest"` would leave it no width."""
    at = np.asarray(places, dtype=float)
    half = np.diff(at) / 2 if len(at) > 1 else np.array([0.5])
    return np.concatenate([at[:1] - half[:1], at[:-1] + half, at[-1:] + half[-1:]])


def divergence(axes: Any, one: Shown, found: Sequence[Shown]) -> None:
    """Before and after a filter; of many layers only those that it changes.  (SpecGradFilter fig. 2)"""
    before, after = (numbers([*one.data["divergence"][key].values()]) for key in ("before", "after"))
    kept = (before != after) | (len(before) <= MANY)
    for values, style, name in ((before, "-", "all"), (after, (0, (4, 2)), "filtered")):
        y = values[kept]
        mark = "o" if len(before) > MANY else None
        axes.plot(
            range(1, len(y) + 1),
            y,
            color=one.colour,
            linestyle=style,
            linewidth=1,
            label=name,
            marker=mark,
            markersize=2.5,
        )
    axes.set_xlabel("layer", fontsize=7)
    axes.set_ylabel("divergence of gradients", fontsize=7)
    axes.legend(frameon=False, fontsize=6)


def layer_names(axes: Any, names: Sequence[str]) -> None:
    every = -(-len(names) // 16)
    short = [plain(name if len(name) <= NAME else f"…{name[1 - NAME :]}") for name in names[::every]]
    axes.set_yticks(range(0, len(names), every), short, fontsize=5)
