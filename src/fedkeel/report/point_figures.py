"""Charts of points: clients' models in a plane, test samples in it, clients in clusters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkeel.report.content import PALETTE
from fedkeel.report.drawing import Chart, Shown, finish, new_axes, numbers, plain
from fedkeel.report.panels import panels, square

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WAYS = (("pca", "component", "PCA"), ("tsne", "t-SNE", "t-SNE"))
OWN = "each method in a plane of its own; "
COMMON = "all methods in one plane; "
SAMPLES = {"sample": "Test samples", "client sample": "Test samples in the clients' models"}
"""The kinds whose points are samples, by what their charts are called."""
MARKS = "osD^vP*X<>"  # of clusters, in turn
CLASSES = (*PALETTE, "#8c564b", "#7f7fff", "#999933")


def point_charts(kind: str, found: Sequence[Shown]) -> Iterator[Chart]:
    """One kind of an embedding, by principal components and by t-SNE."""
    planes = {one.data.get("plane") for one in found}
    where = COMMON if len(planes) == 1 and planes != {None} else OWN
    for key, axis, way in WAYS:
        there = [one for one in found if key in one.data]
        if not there:
            continue
        if kind in SAMPLES:
            note = f"{where}numbers and colours are classes; tighter and farther apart: told apart better"
            file = f"{kind.replace(' ', '-')}s-{key}"
            yield Chart(file, "drift", f"{SAMPLES[kind]}: features, {way}", note, draw_samples(there, key))
        else:
            classes = "; numbers are classes" if any(one.data.get("classes") for one in there) else ""
            note = f"{where}closer together: clients agree more{classes}"
            yield Chart(
                f"{kind}s-{key}", "drift", f"Clients as points: {kind}s, {way}", note, scatter(there, key, axis)
            )


def scatter(found: Sequence[Shown], key: str, axis: str) -> Figure:
    """Clients as points; class numbers where a point is a class."""
    axes = new_axes()
    for one in found:
        x, y = places(one.data[key])
        classes = np.asarray(one.data.get("classes") or [""] * len(x), dtype=str)
        for number, name in enumerate(np.unique(classes)):
            mark = {"marker": f"${name}$", "s": 20} if name else {"s": 20}
            here, label = classes == name, plain(one.label) if number == 0 else None
            axes.scatter(x[here], y[here], color=one.colour, alpha=0.8, label=label, linewidths=0, gid=one.id, **mark)
    return finish(axes, xlabel=f"{axis} 1", ylabel=f"{axis} 2")


def places(points: Any) -> tuple[Any, Any]:
    """The coordinates of points; on a line where they have one alone."""
    table = numbers(points)
    return table[:, 0], table[:, 1] if table.shape[1] > 1 else np.zeros(len(table))


def draw_samples(found: Sequence[Shown], key: str) -> Figure:
    """A panel for each method, a colour for each class, its number at the middle of its points.  (FedWMSAM fig. 5)"""

    def draw(axes: Any, one: Shown, found: Sequence[Shown]) -> None:
        x, y = places(one.data[key])
        classes = np.asarray(one.data["classes"])
        for number, name in enumerate(np.unique(classes)):
            here, colour = classes == name, CLASSES[number % len(CLASSES)]
            axes.scatter(x[here], y[here], s=4, color=colour, alpha=0.6, linewidths=0, rasterized=True)
            centre = float(np.nanmedian(x[here])), float(np.nanmedian(y[here]))
            box = {"boxstyle": "circle,pad=0.15", "facecolor": "white", "edgecolor": colour, "linewidth": 0.8}
            axes.annotate(str(name), centre, ha="center", va="center", fontsize=6, color="#000000", bbox=box)
        axes.set_xticks([])
        axes.set_yticks([])

    return panels(found, draw, 0.2)


# ---- clusters ------------------------------------------------------------------------------------------------------
def cluster_charts(found: Sequence[Shown]) -> Iterator[Chart]:
    """Clients by the direction of their updates: how alike those are, and where they lie.  (FedSCAM)"""
    note = "cosines between client updates; clients stand by cluster, lines between clusters"
    yield Chart("cluster-cosines", "drift", "Similarity of clients by cluster", note, panels(found, cosines_by_cluster))
    note = "updates of clients, first two components; a mark for each cluster, hollow: moves against a longer one in it"
    yield Chart("cluster-points", "drift", "Clusters of clients", note, panels(found, cluster_points, 0.45))


def cosines_by_cluster(axes: Any, one: Shown, found: Sequence[Shown]) -> Any:
    clusters = np.asarray(one.data["clusters"])
    order = np.argsort(clusters, kind="stable")
    table, clients = numbers(one.data["cosines"])[np.ix_(order, order)], [one.data["clients"][i] for i in order]
    for edge in np.flatnonzero(np.diff(clusters[order])) + 0.5:
        axes.axhline(edge, color="#000000", linewidth=0.8)
        axes.axvline(edge, color="#000000", linewidth=0.8)
    return square(axes, table, clients, "PuOr_r", -1.0)


def cluster_points(axes: Any, one: Shown, found: Sequence[Shown]) -> None:
    x, y = places(one.data["points"])
    clusters, opposed = np.asarray(one.data["clusters"]), np.isin(one.data["clients"], one.data["opposed"])
    for number, name in enumerate(np.unique(clusters)):
        colour, mark = CLASSES[number % len(CLASSES)], MARKS[number % len(MARKS)]
        for here, face in ((opposed, "none"), (~opposed, colour)):
            kept = here & (clusters == name)
            axes.scatter(x[kept], y[kept], s=22, marker=mark, facecolors=face, edgecolors=colour, linewidths=0.9)
    for client, at in zip(one.data["clients"], zip(x, y, strict=True), strict=True):
        axes.annotate(str(client), at, xytext=(3, 3), textcoords="offset points", fontsize=5)
    axes.margins(0.15)
    axes.locator_params(nbins=4)
