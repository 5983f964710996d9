"""What a report shows, gathered once for the page and for the figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedkeel.problems.metrics import lower_is_better
from fedkeel.report.labels import Labels, label_tables
from fedkeel.report.series import Row, common_target, row, spent_by, thinned
from fedkeel.report.source import Group, Source, groups_of

# Okabe and Ito's colours, told apart by all common forms of colour vision; yellow is too light for lines on white
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#3a3f45")
DASHES = 4
MANY = 14  # more lines than this hide each other: a page begins with the best SHOWN of them
SHOWN = 8
SPENT = 100  # rounds by which a page knows what a method has spent


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

    def data(self) -> dict[str, Any]:
        """What the switches of a page need: the methods' names and looks, and what each has spent by which round."""
        return {"settings": [{"groups": group_data(setting)} for setting in self.settings]}


def content(sources: Sequence[Source], target: float | None = None, asked: Sequence[int] = ()) -> Content:
    groups = [replace(group, asked=asked) for group in groups_of(sources)]
    tables, notes = label_tables(sources)
    settings = []
    for index, name in enumerate(dict.fromkeys(group.setting for group in groups)):
        here = [group for group in groups if group.setting == name]
        aim = target if target is not None else common_target(here)
        rows = [row(group, aim) for group in here]
        settings.append(Setting(index, name, here, rows, [table for table in tables if table.setting == name], aim))
    return Content(settings, notes, sum(len(group.runs) for group in groups))


def look(number: int) -> tuple[str, int]:
    """Colour and dashes of the n-th line: colours first, then the same colours dashed."""
    return PALETTE[number % len(PALETTE)], number // len(PALETTE) % DASHES


def ranked(setting: Setting) -> list[int]:
    """The numbers of the groups, best first; those without a result last."""
    bests = [row.results["best"] for row in setting.rows]
    sign = -1 if lower_is_better(setting.groups[0].measure or "loss") else 1
    score = [-math.inf if best is None else sign * best.mean for best in bests]
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


def group_data(setting: Setting) -> list[dict[str, Any]]:
    first, found = shown_first(setting), []
    for i, (group, (colour, dash)) in enumerate(zip(setting.groups, looks(setting), strict=True)):
        rounds = thinned(range(1, max(len(run.records) for run in group.runs) + 1), SPENT)
        spent = {part: rounded(spent_by(group, part, rounds), 8) for part in ("seconds", "bytes")}
        facts = {
            "id": group_id(setting.index, i),
            "label": group.label,
            "color": colour,
            "dash": dash,
            "on": i in first,
        }
        found.append(facts | {"rounds": rounds} | spent)
    return found


def rounded(values: Sequence[float], digits: int) -> list[float | None]:
    """Numbers in so many digits; none for one that is not finite."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]
