"""Charts of what `fedkeel analyse` found, and of the layers that methods mark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkeel.report.content import Setting, group_id, looks, shown_first
from fedkeel.report.drawing import STYLES, Chart, Shown, finish, new_axes, new_figure, numbers, plain
from fedkeel.report.panels import (
    NAMED,
    WIDE,
    bands_by_round,
    by_client,
    by_layer,
    cka,
    cosines,
    critical_layers,
    divergence,
    from_above,
    panels,
)
from fedkeel.report.point_figures import cluster_charts, point_charts
from fedkeel.report.series import PROBED, critical, diverged, probed, spectra
from fedkeel.report.source import Group

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKS: dict[str, Any] = {"marker": "o", "markersize": 3, "linewidth": 1.2}
BANDS = (("distance", "Dist(m)"), ("deviation", "Std(m)"), ("variance", "variance"))
GROUPS = 40  # in one frame; more cannot be read


def diagnostic_charts(setting: Setting) -> Iterator[Chart]:
    """Those that some run has the numbers of."""
    if found := shown(setting, spectra):
        note = "Dist(m) of client updates; logarithmic, lighter: farther apart"
        yield Chart("bands-by-round", "spectrum", "Bands over rounds", note, panels(found, bands_by_round, 0.45))
    for kind in PROBED:
        yield from probe_charts(setting, kind)
    if found := shown(setting, diverged):
        note = f"gradients, {name_rounds([one.data['rounds'] for one in found])}; dashed: without low frequencies"
        title = "Divergence by layer while training"
        wide = WIDE if len(found) > 1 else 2 * WIDE
        yield Chart("gradient-divergence", "spectrum", title, note, panels(found, divergence, wide=wide))
    if found := shown(setting, diagnostic("spectrum")):
        where = f"between clients, at the {name_model(found)}"
        for kind, here in by_kind(found):
            yield Chart(f"spectrum-{kind}", "spectrum", f"Spectrum of {kind}s", where, spectrum(here))
        for kind, here in by_kind(found):
            if here := [one for one in here if one.data.get("layers")]:
                note = f"{where}; Dist(m), darker: farther apart"
                file, title = f"spectrum-{kind}-by-layer", f"Bands by layer, {kind}s"
                yield Chart(file, "spectrum", title, note, panels(here, by_layer, NAMED))
        note = f"dashed: without the lowest {100 * found[0].data['ratio']:.4g} % of frequencies"
        yield Chart("divergence-by-layer", "spectrum", "Divergence by layer", note, panels(found, divergence))
    if found := shown(setting, diagnostic("drift")):
        note = f"between clients, after round {found[0].data['round']}"
        yield Chart("update-cosines", "drift", "Update cosines", note, panels(found, cosines))
        if served := [one for one in found if list_accuracies(one.data)]:
            note = f"of the {name_model(served)}; clients from the worst served to the best"
            title = "Accuracy on each client's own samples"
            yield Chart("client-accuracy", "clients", title, note, accuracies(served))
    if found := shown(setting, diagnostic("embedding")):
        for kind, here in by_kind(found):
            yield from point_charts(kind, here)
    if found := shown(setting, diagnostic("clusters")):
        yield from cluster_charts(found)
    landscapes = shown(setting, diagnostic("landscape"))
    if found := [one for one in landscapes if np.isfinite(numbers(one.data["plane"]["values"])).any()]:
        note = f"{name_loss(found)}, each method around its own {name_model(found)}"
        yield Chart("landscape-line", "landscape", "Loss along one direction", note, landscape_lines(found))
        yield Chart("landscape-surface", "landscape", "Loss surfaces in one frame", note, landscape_surfaces(found))
        yield Chart("landscape-above", "landscape", "Loss from above", note, panels(found, from_above))
    if found := shown(setting, diagnostic("hessian")):
        note = f"of the {name_loss(found)} at the {name_model(found)}"
        yield Chart("hessian", "landscape", "Top Hessian eigenvalues", note, eigenvalues(found))
    if found := shown(setting, diagnostic("cka")):
        note = "mean over pairs of clients, features after local training; 1: alike"
        yield Chart("cka-by-layer", "landscape", "CKA of clients by layer", note, cka_lines(found))
        if found := [one for one in found if one.data.get("layers")]:
            yield Chart("cka", "landscape", "CKA of clients, last layer", note, panels(found, cka))
    if found := [one for one in shown(setting, diagnostic("groups")) if 1 < len(one.data["groups"]) <= GROUPS]:
        note = "of the test samples, by what the data set says they are"
        yield Chart("accuracy-by-group", "clients", "Accuracy by group", note, group_accuracies(found))
    if found := shown(setting, critical):
        note = "share of the clients that marked the layer; darker: more of them"
        yield Chart("critical-layers", "kept", "Critical layers", note, panels(found, critical_layers, NAMED))


def probe_charts(setting: Setting, kind: str) -> Iterator[Chart]:
    """The spectrum of gradients or perturbations while training.  (SpecGradFilter fig. 1, FedFFT fig. 1)"""
    found = shown(setting, lambda group: probed(group, kind))
    if not found:
        return
    file, title = f"{kind}-spectrum", f"Spectrum of {kind}s while training"
    when = f"between clients, mean over {name_rounds([one.data['rounds'] for one in found])}"
    yield Chart(file, "spectrum", title, when, spectrum(found))
    over = shown(setting, lambda group: spectra(group, of=file))
    note = "Dist(m) at the model that clients begin the round with; logarithmic, lighter: farther apart"
    yield Chart(f"{file}-by-round", "spectrum", f"{title}, by round", note, panels(over, bands_by_round, 0.45))
    for part, draw, note in (
        ("layers", by_layer, f"{when}; Dist(m), darker: farther apart"),
        ("clients", by_client, f"{when}; distance from the mean of all clients, darker: farther away"),
    ):
        if here := [one for one in found if one.data[part]]:
            name = part.removesuffix("s")
            yield Chart(f"{file}-by-{name}", "spectrum", f"{title}, by {name}", note, panels(here, draw, NAMED))


def name_rounds(lists: Sequence[Sequence[int]]) -> str:
    """The tracked rounds in words."""
    rounds = sorted({number for some in lists for number in some})
    named = [*rounds[:3], "…", rounds[-1]] if len(rounds) > 5 else rounds
    return f"round{'s' if len(rounds) > 1 else ''} {', '.join(map(str, named))}"


def name_loss(found: Sequence[Shown]) -> str:
    """Whose samples gave the loss."""
    splits = {one.data.get("split", "train") for one in found}
    return {"train": "training loss", "test": "test loss"}[splits.pop()] if len(splits) == 1 else "loss"


def name_model(found: Sequence[Shown]) -> str:
    """Which model of the runs was looked at."""
    return " or ".join(sorted({one.data.get("which", "last") for one in found})) + " model"


def diagnostic(name: str) -> Callable[[Group], Any]:
    return lambda group: group.diagnostics.get(name)


def shown(setting: Setting, data_of: Callable[[Group], Any], every: bool = False) -> list[Shown]:
    """The methods that have something to draw, of those a page begins with or of every one."""
    return [
        Shown(group.label, group_id(setting.index, i), colour, STYLES[dash], data)
        for i, (group, (colour, dash)) in enumerate(zip(setting.groups, looks(setting), strict=True))
        if (every or i in shown_first(setting)) and (data := data_of(group))
    ]


def by_kind(found: Sequence[Shown]) -> Iterator[tuple[str, list[Shown]]]:
    """Gradients, updates, features …: each kind with the methods that have it."""
    for kind in dict.fromkeys(kind for one in found for kind in one.data["kinds"]):
        yield kind, [one._replace(data=one.data["kinds"][kind]) for one in found if kind in one.data["kinds"]]


# ---- one frame for all methods -------------------------------------------------------------------------------------
def lines(
    found: Sequence[Shown], values: Callable[[Any], Sequence[float]], *, fitted: bool = False, **settings: Any
) -> Figure:
    axes = new_axes(fitted=fitted)
    for one in found:
        y = numbers(values(one.data))
        axes.plot(range(1, len(y) + 1), y, **one.look, **MARKS)
    axes.xaxis.get_major_locator().set_params(integer=True)
    return finish(axes, **settings)


def spectrum(found: Sequence[Shown], bands: Sequence[tuple[str, str]] = BANDS) -> Figure:
    """Dist(m), Std(m) and the variance across clients by band.  (SpecGradFilter fig. 1, FedFFT fig. 1)"""
    figure = new_figure(4.6, 1.4 + 1.6 * len(bands))
    rows = figure.subplots(len(bands), 1, sharex=True)
    for axes, (key, label) in zip(rows, bands, strict=True):
        for one in found:
            y = one.data.get(key, ())
            axes.plot(range(1, len(y) + 1), numbers(y), **one.look, **MARKS)
        axes.set_ylim(bottom=0)
        finish(axes, ylabel=label)
    rows[-1].set_xlabel("frequency band")
    rows[-1].xaxis.get_major_locator().set_params(integer=True)
    return figure


def accuracies(found: Sequence[Shown]) -> Figure:
    words = "client, by accuracy", "accuracy on its own samples (%)"
    return lines(found, list_accuracies, xlabel=words[0], ylabel=words[1])


def list_accuracies(data: Any) -> list[float]:
    """The accuracies of those clients that have one, in %, from the worst."""
    return sorted(100 * value for value in data["accuracies"] or () if value is not None)


def group_accuracies(found: Sequence[Shown]) -> Figure:
    """Each domain or corruption, a mark for each method."""
    names = list(dict.fromkeys(name for one in found for name in one.data["groups"]))
    axes = new_axes(max(4.6, 1.6 + 0.34 * len(names)), 3.4, fitted=True)
    for one in found:
        y = [100 * one.data["groups"].get(name, np.nan) for name in names]
        axes.plot(range(len(names)), numbers(y), **one.look | {"linestyle": "none"}, marker="o", markersize=5)
    axes.set_xticks(range(len(names)), [plain(name.replace("_", " ")) for name in names], rotation=40, ha="right")
    axes.tick_params(axis="x", labelsize=7)
    return finish(axes, ylabel="accuracy (%)")


def cka_lines(found: Sequence[Shown]) -> Figure:
    names = [plain(name) for name in found[0].data["mean"]]
    figure = lines(found, lambda data: [*data["mean"].values()], fitted=True, ylabel="mean CKA of clients")
    if len(names) <= 12:
        figure.axes[0].set_xticks(range(1, len(names) + 1), names, rotation=45, ha="right", fontsize=7)
    else:
        figure.axes[0].set_xlabel("layer")
    return figure


def eigenvalues(found: Sequence[Shown]) -> Figure:
    return lines(found, lambda data: data["eigenvalues"], xlabel="rank", ylabel="Hessian eigenvalue")


def landscape_lines(found: Sequence[Shown]) -> Figure:
    """The loss along one direction, all methods in one frame."""
    axes = new_axes()
    for one in found:
        line = one.data["line"]
        axes.plot(line["x"], numbers(line["values"]), **one.look)
    axes.xaxis.get_major_locator().set_params(nbins=5)
    return finish(axes, xlabel=plain(found[0].data["line"]["along"]), ylabel=name_loss(found))


def landscape_surfaces(found: Sequence[Shown]) -> Figure:
    """The loss over a plane, all methods in one frame.  (FedFFT fig. 7)"""
    figure = new_figure(5.4, 4.4, fitted=True)
    axes: Any = figure.add_subplot(projection="3d")
    top = float(np.nanquantile(np.concatenate([np.ravel(numbers(one.data["plane"]["values"])) for one in found]), 0.95))
    for one in found:
        x, y = np.meshgrid(one.data["plane"]["x"], one.data["plane"]["y"])
        z = np.minimum(numbers(one.data["plane"]["values"]), top)
        axes.plot_surface(
            x, y, z, color=one.colour, alpha=0.55, linewidth=0.2, edgecolor="0.4", label=plain(one.label), gid=one.id,
            rasterized=True,
        )  # fmt: skip
    axes.set(zlabel=name_loss(found), xlabel="first direction", ylabel="second direction")
    axes.tick_params(labelsize=6)
    return figure
