"""What a report shows, gathered once for the page and for the figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedkeel.report.labels import Labels, label_tables
from fedkeel.report.series import POINTS, Row, common_target, critical, curve, measures, row, spectra, spent_by, thinned
from fedkeel.report.source import Group, Source, groups_of

# Okabe and Ito's colours, told apart by all common forms of colour vision; yellow is too light for lines on white
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#3a3f45")
DASHES = 4
MANY = 14  # more lines than this hide each other: a page begins with the best SHOWN of them
SHOWN = 8
BULKY = {"spectrum": ("layers", "layer_deviation"), "cka": ("layers",)}  # left out where a page would grow too large


@dataclass(frozen=True, eq=False)
class Setting:
    """Runs that learn the same from the same clients: they are compared with each other, not with others."""

    index: int
    name: str
    groups: Sequence[Group]
    rows: Sequence[Row]
    labels: Sequence[Labels]
    target: float | None


@dataclass(frozen=True, eq=False)
class Content:
    settings: Sequence[Setting]
    notes: Sequence[str]
    runs: int

    @property
    def repeated(self) -> bool:
        """Whether any experiment was run with several seeds."""
        return any(len(group.runs) > 1 for setting in self.settings for group in setting.groups)

    def data(self, points: int = POINTS, layers: bool = True) -> dict[str, Any]:
        """Plain data for the page's charts; tables by layer are the bulk of it."""
        return {"settings": [setting_data(i, setting, points, layers) for i, setting in enumerate(self.settings)]}


def content(sources: Sequence[Source], target: float | None = None) -> Content:
    groups = groups_of(sources)
    tables, notes = label_tables(sources)
    settings = []
    for index, name in enumerate(dict.fromkeys(group.setting for group in groups)):
        here = [group for group in groups if group.setting == name]
        aim = target if target is not None else common_target(here)
        rows = [row(group, aim) for group in here]
        settings.append(Setting(index, name, here, rows, [table for table in tables if table.setting == name], aim))
    return Content(settings, notes, len(sources))


def look(number: int) -> tuple[str, int]:
    """Colour and dashes of the n-th line: colours first, then the same colours dashed."""
    return PALETTE[number % len(PALETTE)], number // len(PALETTE) % DASHES


def ranked(setting: Setting) -> list[int]:
    """The numbers of the groups, best first; those without a result last."""
    sign = -1 if (setting.groups[0].measure or "loss").endswith("loss") else 1
    score = [-math.inf if row.best is None else sign * row.best.mean for row in setting.rows]
    return sorted(range(len(score)), key=lambda i: -score[i])


def looks(setting: Setting) -> list[tuple[str, int]]:
    """One for each group, in order; where there are more groups than looks, the best have looks of their own."""
    count = len(setting.groups)
    order = ranked(setting) if count > len(PALETTE) * DASHES else list(range(count))
    return [look(order.index(i)) for i in range(count)]


def shown_first(setting: Setting) -> set[int]:
    """The groups that charts begin with: all, or the best of many."""
    count = len(setting.groups)
    return set(range(count)) if count <= MANY else set(ranked(setting)[:SHOWN])


def group_id(setting: int, number: int) -> str:
    return f"g{setting}-{number}"


def setting_data(index: int, setting: Setting, points: int, layers: bool) -> dict[str, Any]:
    names, styles, first = measures(setting.groups), looks(setting), shown_first(setting)
    return {
        "name": setting.name,
        "measures": names,
        "groups": [
            {"id": group_id(index, i), "color": styles[i][0], "dash": styles[i][1], "on": i in first}
            | group_data(group, names, points, layers)
            for i, group in enumerate(setting.groups)
        ],
        "labels": [
            {
                "seed": table.seed, "clients": table.clients, "group": table.group, "shares": rounded(table.shares),
                "sizes": table.sizes, "score": rounded(table.score),
            }
            for table in setting.labels
        ],
    }  # fmt: skip


def group_data(group: Group, names: Sequence[str], points: int, layers: bool) -> dict[str, Any]:
    longest = max(len(run.records) for run in group.runs)
    rounds = thinned(range(1, longest + 1), points)
    curves = {name: found for name in names if (found := curve(group, name, points))}
    return {
        "label": group.label,
        "rounds": rounds,
        "seconds": rounded(spent_by(group, "seconds", rounds)),
        "bytes": rounded(spent_by(group, "bytes", rounds), 8),
        "curves": {n: {"r": c.rounds, "m": rounded(c.mean), "d": rounded(c.deviation, 3)} for n, c in curves.items()},
        "spectra": rounded(spectra(group)),
        "critical": rounded(critical(group)),
        "diagnostics": rounded(group.diagnostics if layers else without_layers(group.diagnostics)),
    }


def without_layers(diagnostics: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    def lighter(value: Any, names: Sequence[str]) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {name: lighter(item, names) for name, item in value.items() if name not in names}

    return {name: lighter(data, BULKY.get(name, ())) for name, data in diagnostics.items()}


def rounded(value: Any, digits: int = 5) -> Any:
    """Numbers in as many digits as a chart can show."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        short = float(f"{value:.{digits}g}")
        return int(short) if short.is_integer() and abs(short) < 2**53 else short
    if isinstance(value, list | tuple):
        return [rounded(item, digits) for item in value]
    if hasattr(value, "items"):
        return {name: rounded(item, digits) for name, item in value.items()}
    return value
