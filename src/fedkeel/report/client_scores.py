"""Charts of every client: how their scores are spread, scores against sizes, and sizes alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedkeel.problems.metrics import lower_is_better
from fedkeel.report.content import Setting
from fedkeel.report.diagnostic_figures import shown
from fedkeel.report.drawing import Chart, Shown, finish, new_axes, plain
from fedkeel.report.series import thinned
from fedkeel.report.source import Group

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 6  # measures that are drawn
MANY = 500  # clients that are drawn one by one
DOT = {"marker": "o", "linestyle": "none", "markersize": 3, "alpha": 0.7}


class ClientScores(NamedTuple):
    """The scores of the clients that have one, when they were reached, and the clients' sizes if known."""

    when: str
    values: Any
    sizes: Any


def client_charts(setting: Setting) -> Iterator[Chart]:
    """Those that some run has the numbers of."""
    last = (next((one.clients for one in reversed(g.runs[0].records) if one.clients), {}) for g in setting.groups)
    names = {name: None for clients in last for name in clients}
    for name in list(names)[:MOST]:
        found = shown(setting, partial(scores_of, name))
        if not found:
            continue
        word, file = name.replace("_", " "), name.replace("/", "-").replace("_", "-")
        whens = {one.label: one.data.when for one in found}
        alike = len({*whens.values()}) == 1
        when = found[0].data.when if alike else "; ".join(f"{label}: {when}" for label, when in whens.items())
        worst = ", ".join(f"{one.label} {write_worst(name, one.data.values)}" for one in found)
        title = f"{word[:1].upper()}{word[1:]} of every client"
        yield Chart(f"clients-{file}", "clients", title, f"{when}; worst client: {worst}", spread(found, name))
        if sized := [one for one in found if one.data.sizes is not None and len({*one.data.sizes}) > 1]:
            title = f"{word[:1].upper()}{word[1:]} by size of client"
            thin = any(len(one.data.sizes) > MANY for one in sized)
            note = f"{when}; each point is a client" + (f", {MANY} clients of all sizes are drawn" if thin else "")
            yield Chart(f"clients-{file}-by-size", "clients", title, note, by_size(sized, name))
    sizes = setting.groups[0].runs[0].clients.sizes
    if sizes and not setting.labels:
        note = f"{len(sizes)} clients with {min(sizes)} to {max(sizes)} samples, {sum(sizes)} in all"
        note += ", the smallest first" if len(sizes) > MANY else ""
        yield Chart("client-sizes", "clients", "Samples of every client", note, size_bars(sizes))


def scores_of(name: str, group: Group) -> ClientScores | None:
    """What the clients of a group's first run reached in the last round that has their scores."""
    run = group.runs[0]
    record = next((one for one in reversed(run.records) if name in one.clients), None)
    if record is None:
        return None
    values = np.array([np.nan if value is None else value for value in record.clients[name]], dtype=float)
    sizes, there = run.clients.sizes, np.isfinite(values)
    known = sizes is not None and len(sizes) == len(values)
    if not there.any():
        return None
    when = f"seed {run.seed}, round {record.round}" if len(group.runs) > 1 else f"round {record.round}"
    return ClientScores(when, values[there], np.array(sizes)[there] if known else None)


def write_worst(name: str, values: Any) -> str:
    value = float(values.max() if lower_is_better(name) else values.min())
    return f"{100 * value:.1f} %" if name == "accuracy" else f"{value:.3g}"


def spread(found: Sequence[Shown], name: str) -> Figure:
    """Clients from the worst to the best."""
    axes = new_axes()
    for one in found:
        values = np.sort(one.data.values)
        values = values[::-1] if lower_is_better(name) else values
        x = np.arange(1, len(values) + 1) * 100 / len(values)
        axes.plot(x, factor(name) * values, **one.look, linewidth=1.3, marker="o" if len(x) == 1 else None)
    return finish(axes, xlabel="share of the clients, worst first (%)", ylabel=label(name))


def by_size(found: Sequence[Shown], name: str) -> Figure:
    axes = new_axes()
    for one in found:
        at = np.arange(len(one.data.sizes))
        if len(at) > MANY:
            at = np.argsort(one.data.sizes, kind="stable")[thinned(at.tolist(), MANY)]
        axes.plot(one.data.sizes[at], factor(name) * one.data.values[at], **one.look | DOT)
    return finish(axes, xlabel="training samples of the client", ylabel=label(name))


def size_bars(sizes: Sequence[int]) -> Figure:
    """A bar for each client; of very many clients one line, by size."""
    axes = new_axes()
    if len(sizes) > MANY:
        axes.step(range(len(sizes)), sorted(sizes), where="mid", color="#0072b2")
        axes.set_ylim(bottom=0)
    else:
        axes.bar(range(len(sizes)), sizes, width=1.0, color="#0072b2", linewidth=0)
    return finish(axes, xlabel="client", ylabel="training samples")


def factor(name: str) -> float:
    return 100.0 if name == "accuracy" else 1.0


def label(name: str) -> str:
    return plain(f"{name} (%)" if name == "accuracy" else name.replace("_", " "))
