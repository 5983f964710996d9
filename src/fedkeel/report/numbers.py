"""What `fedkeel analyse` found, as a table: one row per method, mean ± standard deviation over the seeds analysed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from typing import Any

from fedkeel.analysis.filtered import RATIO
from fedkeel.report.content import Setting, group_id
from fedkeel.report.series import Spread, diverged, probed
from fedkeel.report.source import Group, Source
from fedkeel.report.tables import sortable_table, td

Found = Mapping[str, Any]
"""A diagnostic of one run, as its file holds it."""


def low_share(found: Found) -> float | None:
    low, high = found["heterogeneity"]["low"], found["heterogeneity"]["high"]
    return low / (low + high) if low + high else None


def accuracy(name: str) -> Callable[[Found], float | None]:
    return lambda found: (found["accuracy_spread"] or {}).get(name)


def embedded(name: str, *kinds: str) -> Callable[[Found], float | None]:
    """A number of the first of these kinds that was embedded."""
    return lambda found: next((found["kinds"][kind].get(name) for kind in kinds if kind in found["kinds"]), None)


def share(value: float) -> str:
    return f"{100 * value:.1f}"


def short(value: float) -> str:
    return f"{value:.3g}"


Column = tuple[str, str, Callable[[Found], float | None], Callable[[float], str]]
"""The diagnostic, the column's name, the number in it, and how it is written."""

COLUMNS: tuple[Column, ...] = (
    ("drift", "drift ‖Δ‖", lambda found: found["mean"], short),
    ("drift", "cosine of updates", lambda found: found["cosine"], short),
    ("drift", "client accuracy, %", accuracy("mean"), share),
    ("drift", "its spread, %", accuracy("deviation"), share),
    ("drift", "worst client, %", accuracy("least"), share),
    ("spectrum", "disagreement below the cut, δ²", lambda found: found["heterogeneity"]["low"], short),
    ("spectrum", "above it, δ²", lambda found: found["heterogeneity"]["high"], short),
    ("spectrum", "share below, %", low_share, share),
    ("embedding", "spread of perturbations", embedded("spread", "perturbation"), short),
    ("embedding", "spread of parameters", embedded("spread", "parameter"), short),
    ("embedding", "spread of features", embedded("spread", "feature"), short),
    ("embedding", "silhouette of classes", embedded("separation", "sample", "feature"), short),
    ("cka", "CKA of the last layer", lambda found: next(reversed(found["mean"].values()), None), short),
    ("hessian", "top eigenvalue", lambda found: found["eigenvalues"][0], short),
    ("hessian", "trace", lambda found: found["trace"], short),
    ("hessian", "sharpness", lambda found: found["sharpness"], short),
)


def compare_lowest_band(kind: str, measure: str, group: Group) -> float | None:
    """How much more clients differ in the lowest band than in a mean other one."""
    row = (probed(group, kind) or {}).get(measure, ())
    others = [value for value in row[1:] if value == value]
    return row[0] * len(others) / sum(others) if others and sum(others) else None


def measure_lowest_band(group: Group) -> float | None:
    """How far apart clients' gradients are in the lowest band."""
    row = (probed(group, "gradient") or {}).get("distance", ())
    return row[0] if row else None


def measure_lost_divergence(group: Group) -> float | None:
    """How much less clients diverge behind the filter, in %: the mean over the layers that it changes."""
    if (found := diverged(group)) is None:
        return None
    before, after = found["divergence"]["before"], found["divergence"]["after"]
    changed = [after[layer] / far for layer, far in before.items() if far not in (0, after[layer])]
    return 100 * (1 - sum(changed) / len(changed)) if changed else None


TRACKED: dict[str, Callable[[Group], float | None]] = {
    "lowest band of gradients over the others": partial(compare_lowest_band, "gradient", "distance"),
    "lowest band of perturbations over the others": partial(compare_lowest_band, "perturbation", "variance"),
    "the same by Dist": partial(compare_lowest_band, "perturbation", "distance"),
    "Dist of gradients in the lowest band": measure_lowest_band,
    "less divergence without low frequencies, %": measure_lost_divergence,
}
"""Numbers of what was tracked."""


def read_number(group: Group, name: str) -> float | None:
    """One number of a group by its name: a column here, or one of what was tracked."""
    if name in TRACKED:
        return TRACKED[name](group)
    spread = spread_of(group, next(column for column in COLUMNS if column[1] == name))
    return None if spread is None else spread.mean


def spread_of(group: Group, column: Column) -> Spread | None:
    diagnostic, _, number, _ = column
    return Spread.of(number(found) for found in alike(group, diagnostic))


def alike(group: Group, diagnostic: str) -> list[Found]:
    """A diagnostic of the seeds that have it of the same model, on the same samples and at the same radius as the
    first: others are another number."""
    found = [(conditions(run, one), one) for run in group.runs if (one := run.diagnostics.get(diagnostic)) is not None]
    return [one for taken, one in found if taken == found[0][0]]


def conditions(run: Source, found: Found) -> tuple[str, float | None]:
    """What a diagnostic was taken of, in words, and its radius where it has one."""
    which, round = found.get("which", "last"), found.get("round", len(run.records))
    model = f"{which} model" if which != "last" or round == len(run.records) else f"model of round {round}"
    return model + (" on test samples" if found.get("split") == "test" else ""), found.get("rho")


def numbers(setting: Setting) -> str:
    """The table of a setting; nothing where none of its runs was analysed."""
    table = [[spread_of(group, column) for column in COLUMNS] for group in setting.groups]
    there = [k for k in range(len(COLUMNS)) if any(row[k] is not None for row in table)]
    if not there:
        return ""
    heads = ["method", *(COLUMNS[k][1] for k in there)]
    rows = {
        group_id(setting.index, i): f"<td>{escape(group.label)}</td>"
        + "".join(cell(table[i][k], COLUMNS[k][3]) for k in there)
        for i, group in enumerate(setting.groups)
        if any(value is not None for value in table[i])
    }
    return sortable_table(setting.index, [note(setting)], heads, rows, ' class="static"')


def cell(value: Spread | None, write: Callable[[float], str]) -> str:
    if value is None:
        return td("–", None)
    text = write(value.mean) + (f" ± {write(value.deviation)}" if value.count > 1 else "")
    return td(text, value.mean)


def note(setting: Setting) -> str:
    """Under what conditions the numbers were taken."""
    found = [group.diagnostics for group in setting.groups]
    places: dict[str, list[str]] = {}
    for group in setting.groups:
        for name in dict.fromkeys(column[0] for column in COLUMNS):
            run = next((run for run in group.runs if name in run.diagnostics), None)
            if run is not None:
                places.setdefault(conditions(run, run.diagnostics[name])[0], []).append(f"{name} of {group.label}")
    several = [f"At the {place}: {', '.join(names)}." for place, names in places.items()]
    parts = several if len(several) > 1 else [f"At the {place}, as fedkeel analyse left them." for place in places]
    if any("spectrum" in one for one in found):
        parts.append(f"The cut is that of the method's own filter, else at {100 * RATIO:g} % of the frequencies.")
    radii = sorted({one["hessian"]["rho"] for one in found if "hessian" in one})
    if radii:
        parts.append(f"Sharpness is the rise of the loss at radius {', '.join(f'{rho:g}' for rho in radii)}.")
    return " ".join(parts)
