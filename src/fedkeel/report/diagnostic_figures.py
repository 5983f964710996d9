"""Image files of what `fedkeel analyse` found, and of the layers that methods mark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedkeel.report.content import Setting, looks, shown_first
from fedkeel.report.drawing import STYLES, finish, new_figure
from fedkeel.report.series import critical

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKS: dict[str, Any] = {"marker": "o", "markersize": 3, "linewidth": 1.2}
BANDS = (("distance", "Dist(m)"), ("deviation", "Std(m)"), ("variance", "variance"))


class Shown(NamedTuple):
    """A method in a chart: its name, its look, and what is drawn of it."""

    label: str
    colour: str
    style: Any
    data: Any


def diagnostic_figures(setting: Setting) -> Iterator[tuple[str, Figure]]:
    """File names, without their endings, and charts: those that some run has the numbers of."""
    if found := shown(setting, "spectrum"):
        kinds = dict.fromkeys(kind for one in found for kind in one.data["kinds"])
        for kind in kinds:
            here = [one._replace(data=one.data["kinds"][kind]) for one in found if kind in one.data["kinds"]]
            yield f"spectrum-{kind}", spectrum(here)
            yield f"spectrum-{kind}-by-layer", panels(here, by_layer)
        yield "divergence-by-layer", panels(found, divergence)
    if found := shown(setting, "drift"):
        yield "update-cosines", panels(found, cosines)
        if served := [one for one in found if one.data["accuracies"]]:
            yield "client-accuracy", accuracies(served)
    if found := shown(setting, "cka"):
        yield "cka-by-layer", cka_lines(found)
        yield "cka", panels(found, cka)
    if found := shown(setting, "embedding"):
        for kind in dict.fromkeys(kind for one in found for kind in one.data["kinds"]):
            here = [one._replace(data=one.data["kinds"][kind]) for one in found if kind in one.data["kinds"]]
            yield f"{kind}s-pca", scatter(here, "pca", "component")
            if any("tsne" in one.data for one in here):
                yield f"{kind}s-tsne", scatter([one for one in here if "tsne" in one.data], "tsne", "t-SNE")
    if found := shown(setting, "hessian"):
        yield "hessian", eigenvalues(found)
    if found := shown(setting, "landscape"):
        yield "landscape-line", landscape_lines(found)
        yield "landscape-surface", landscape_surfaces(found)
        yield "landscape-above", panels(found, from_above)
    if found := [one for one in shown(setting, None) if one.data]:
        yield "critical-layers", panels(found, critical_layers)


def shown(setting: Setting, diagnostic: str | None) -> list[Shown]:
    """The methods that have a diagnostic, of those a page begins with; None: the layers that were marked."""
    found = []
    for i, (group, (colour, dash)) in enumerate(zip(setting.groups, looks(setting), strict=True)):
        data = critical(group) if diagnostic is None else group.diagnostics.get(diagnostic)
        if data and i in shown_first(setting):
            found.append(Shown(group.label, colour, STYLES[dash], data))
    return found


# ---- one frame for all methods -------------------------------------------------------------------------------------
def lines(found: Sequence[Shown], values: Callable[[Any], Sequence[float]], **settings: Any) -> Figure:
    figure = new_figure()
    axes: Any = figure.subplots()
    for one in found:
        y = values(one.data)
        axes.plot(range(1, len(y) + 1), y, color=one.colour, linestyle=one.style, label=one.label, **MARKS)
    axes.xaxis.get_major_locator().set_params(integer=True)
    return finish(figure, axes, len(found), **settings)


def spectrum(found: Sequence[Shown]) -> Figure:
    """Dist(m), Std(m) and the variance across clients by band.  (SpecGradFilter fig. 1, FedFFT fig. 1)"""
    figure = new_figure(4.6, 6.2)
    rows = figure.subplots(len(BANDS), 1, sharex=True)
    for axes, (key, label) in zip(rows, BANDS, strict=True):
        for one in found:
            y = one.data[key]
            name = one.label if axes is rows[0] else None
            axes.plot(range(1, len(y) + 1), numbers(y), color=one.colour, linestyle=one.style, label=name, **MARKS)
        finish(figure, axes, len(found) if axes is rows[0] else 0, ylabel=label)
    rows[-1].set_xlabel("frequency band")
    rows[-1].xaxis.get_major_locator().set_params(integer=True)
    return figure


def accuracies(found: Sequence[Shown]) -> Figure:
    words = {"xlabel": "client, by accuracy", "ylabel": "accuracy on its own samples (%)"}
    return lines(found, lambda data: [100 * value for value in sorted(data["accuracies"])], **words)


def cka_lines(found: Sequence[Shown]) -> Figure:
    names = [*found[0].data["mean"]]
    figure = lines(found, lambda data: [*data["mean"].values()], ylabel="mean CKA of clients")
    if len(names) <= 12:
        figure.axes[0].set_xticks(range(1, len(names) + 1), names, rotation=45, ha="right", fontsize=7)
    else:
        figure.axes[0].set_xlabel("layer")
    return figure


def eigenvalues(found: Sequence[Shown]) -> Figure:
    return lines(found, lambda data: data["eigenvalues"], xlabel="rank", ylabel="Hessian eigenvalue")


def scatter(found: Sequence[Shown], key: str, axis: str) -> Figure:
    """Clients as points; class numbers where a point is a class."""
    figure = new_figure()
    axes: Any = figure.subplots()
    for one in found:
        points = np.asarray(one.data[key])
        x, y = points[:, 0], points[:, 1] if points.shape[1] > 1 else np.zeros(len(points))
        classes = one.data.get("classes")
        axes.scatter(x, y, color=one.colour, s=0.5 if classes else 14, alpha=0.8, label=one.label, linewidths=0)
        for place, name in zip(zip(x, y, strict=True), classes or (), strict=False):
            axes.annotate(str(name), place, color=one.colour, fontsize=6, ha="center", va="center")
    made = finish(figure, axes, len(found), beside=True, xlabel=f"{axis} 1", ylabel=f"{axis} 2")
    marks: list[Any] = [mark for legend in figure.legends for mark in legend.legend_handles]
    for mark in marks:
        mark.set_sizes([14])
    return made


def landscape_lines(found: Sequence[Shown]) -> Figure:
    """The loss along one direction, all methods in one frame."""
    figure = new_figure()
    axes: Any = figure.subplots()
    for one in found:
        line = one.data["line"]
        axes.plot(line["x"], numbers(line["values"]), color=one.colour, linestyle=one.style, label=one.label)
    axes.xaxis.get_major_locator().set_params(nbins=5)
    return finish(figure, axes, len(found), xlabel=found[0].data["line"]["along"], ylabel="training loss")


def landscape_surfaces(found: Sequence[Shown]) -> Figure:
    """The loss over a plane, all methods in one frame.  (FedFFT fig. 7)"""
    figure = new_figure(5.4, 4.4)
    axes: Any = figure.add_subplot(projection="3d")
    top = float(np.nanquantile(np.concatenate([np.ravel(numbers(one.data["plane"]["values"])) for one in found]), 0.95))
    for one in found:
        x, y = np.meshgrid(one.data["plane"]["x"], one.data["plane"]["y"])
        z = np.minimum(numbers(one.data["plane"]["values"]), top)
        axes.plot_surface(x, y, z, color=one.colour, alpha=0.55, linewidth=0.2, edgecolor="0.4", label=one.label)
    axes.set(zlabel="training loss", xlabel="first direction", ylabel="second direction")
    axes.tick_params(labelsize=6)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    return figure


# ---- a panel for each method ---------------------------------------------------------------------------------------
def panels(found: Sequence[Shown], draw: Callable[[Any, Shown, Sequence[Shown]], Any]) -> Figure:
    """`draw` puts one method into its panel; what it gives back is a map, whose colours a bar explains."""
    columns = 3 if len(found) in (5, 6, 9) else min(4, len(found))
    rows = -(-len(found) // columns)
    figure = new_figure(1.2 + 2.1 * columns, 0.5 + 2.1 * rows)
    every = figure.subplots(rows, columns, squeeze=False)
    image = None
    for axes, one in zip(every.flat, found, strict=False):
        image = draw(axes, one, found)
        axes.set_title(one.label, fontsize=8, color=one.colour)
        axes.tick_params(labelsize=6)
    for axes in every.flat[len(found) :]:
        axes.set_visible(False)
    if image is not None:
        figure.colorbar(image, ax=every, shrink=0.8).ax.tick_params(labelsize=6)
    return figure


def cosines(axes: Any, one: Shown, found: Sequence[Shown]) -> Any:
    return square(axes, one.data["cosines"], one.data["clients"], "PuOr_r", -1.0, 1.0)


def cka(axes: Any, one: Shown, found: Sequence[Shown]) -> Any:
    tables = [[*other.data["layers"].values()][-1] for other in found]
    return square(axes, [*one.data["layers"].values()][-1], one.data["clients"], "cividis", float(np.min(tables)), 1.0)


def square(axes: Any, table: Any, clients: Sequence[int], colours: str, low: float, high: float) -> Any:
    every = -(-len(clients) // 8)
    places = range(0, len(clients), every)
    axes.set_xticks(places, [clients[i] for i in places])
    axes.set_yticks(places, [clients[i] for i in places])
    axes.set_xlabel("client", fontsize=7)
    return axes.imshow(np.asarray(table), cmap=colours, vmin=low, vmax=high)


def from_above(axes: Any, one: Shown, found: Sequence[Shown]) -> Any:
    every = np.concatenate([np.ravel(numbers(other.data["plane"]["values"])) for other in found])
    low, high = float(np.nanmin(every)), float(np.nanquantile(every, 0.95))
    plane = one.data["plane"]
    levels = np.linspace(low, high if high > low else low + 1e-12, 15)
    axes.set_aspect("equal")
    return axes.contourf(plane["x"], plane["y"], numbers(plane["values"]), levels, cmap="cividis", extend="max")


def by_layer(axes: Any, one: Shown, found: Sequence[Shown]) -> Any:
    from matplotlib.colors import LogNorm

    every = np.concatenate([np.ravel(numbers([*other.data["layers"].values()])) for other in found])
    high = float(np.nanmax(every)) or 1.0
    table = np.ma.masked_invalid(numbers([*one.data["layers"].values()]))
    layer_names(axes, [*one.data["layers"]])
    axes.set_xlabel("band", fontsize=7)
    shape = np.arange(table.shape[1] + 1) + 0.5, np.arange(table.shape[0] + 1) - 0.5
    axes.invert_yaxis()
    return axes.pcolormesh(*shape, table, cmap="Blues", norm=LogNorm(high / 1e3, high, clip=True))


def critical_layers(axes: Any, one: Shown, found: Sequence[Shown]) -> Any:
    table = np.asarray(one.data["values"]).T
    layer_names(axes, one.data["layers"])
    axes.set_xlabel("round", fontsize=7)
    axes.invert_yaxis()
    return axes.pcolormesh(
        one.data["rounds"], range(len(table)), table, cmap="Blues", vmin=0, vmax=1, shading="nearest"
    )


def divergence(axes: Any, one: Shown, found: Sequence[Shown]) -> None:
    """Without and with the lowest frequencies.  (SpecGradFilter fig. 2)"""
    for key, style, name in (("before", "-", "all"), ("after", (0, (4, 2)), "filtered")):
        values = [*one.data["divergence"][key].values()]
        axes.plot(
            range(1, len(values) + 1), numbers(values), color=one.colour, linestyle=style, linewidth=1, label=name
        )
    axes.set_xlabel("layer", fontsize=7)
    axes.legend(frameon=False, fontsize=6)


def layer_names(axes: Any, names: Sequence[str]) -> None:
    every = -(-len(names) // 16)
    axes.set_yticks(range(0, len(names), every), names[::every], fontsize=5)


def numbers(values: Any) -> Any:
    """An array; what was no number is NaN, which charts leave out."""
    return np.asarray(values, dtype=float)
