"""The numbers of a figure's lines as a sentence compares them: at the same round, over the same seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

from fedkeel.papers.figure_readings import Numbers
from fedkeel.papers.figures import Panel
from fedkeel.papers.verdicts import Judgement, bring_together
from fedkeel.report.figure_runs import FigureRuns
from fedkeel.report.numbers import read_number
from fedkeel.report.series import curve
from fedkeel.report.shared_runs import is_at_chance, keep_common_rounds, keep_common_seeds, read_accuracy
from fedkeel.report.source import Group
from fedkeel.text import plural


def look_up(runs: FigureRuns, names: Sequence[str]) -> list[Numbers]:
    """The numbers of some lines by panel: of two lines at every place that both have, of one at all its places."""
    found: list[Numbers] = []
    for number, panel in enumerate(runs.figure.panels):
        title = panel.title or f"panel {number + 1}"
        if panel.kind == "charts":
            found += [read_runs(runs, panel, names, f"{panel.title} {name}".strip(), name) for name in panel.numbers]
        elif panel.kind == "curves" and panel.measure != "accuracy":
            found.append(read_runs(runs, panel, names, title))
        elif panel.kind in ("parameter", "curves", "bars"):
            found.append(read_cells(runs, panel, names, title))
    return found


def read_cells(runs: FigureRuns, panel: Panel, names: Sequence[str], title: str) -> Numbers:
    """Numbers that the ledger has, by place; what is compared with each other is brought together as in a lead."""
    lines: dict[str, dict[str, list[Judgement]]] = {name: {} for name in names}
    for cell in panel.cells:
        sides = runs.sides_of(panel, cell)
        if panel.line_of(cell) in lines and all(one.entries for one in sides):
            lines[panel.line_of(cell)][panel.point_of(cell)] = sides
    first, *others = lines.values()
    shared = [place for place in first if all(place in other for other in others)]
    compared = [[place] for place in shared] if others else [shared] if shared else []
    values: dict[str, dict[str, float]] = {name: {} for name in names}
    cut, seeds = set[int](), list[list[set[int]]]()
    for places in compared:
        every = [(name, place, one) for place in places for name in names for one in lines[name][place]]
        together = bring_together(*(one for _, _, one in every))
        if any(one.mean is None or None in one.values for one in together):
            continue
        for (name, place, _), one in zip(every, together, strict=True):
            number = one.mean or 0.0
            known = values[name].get(place)
            values[name][place] = number if known is None else known - number  # the second is what it is a gain over
        lengths = {one.rounds for _, _, one in every}
        cut |= {min(lengths)} if len(lengths) > 1 else set()
        seeds.append([{entry.seed for entry in one.entries} for one in together])
    at = f"at round{'s' * (len(cut) > 1)} {join_ends(cut)}" if cut else ""
    return Numbers(title, values, ", ".join(filter(None, [at, describe_seeds(seeds)])), have_several(seeds))


def read_runs(runs: FigureRuns, panel: Panel, names: Sequence[str], title: str, number: str = "") -> Numbers:
    """A number of a diagnostic, or without one the mean of a measure, of the rounds and seeds that the lines share.
    Beside what is tracked in models stands their accuracy; models at chance decide nothing."""
    read: Callable[[Group], float | None] = (
        partial(read_number, name=number) if number else partial(average, measure=panel.measure)
    )
    able = [
        replace(group, runs=[run for run in group.runs if read(replace(group, runs=[run])) is not None])
        for group in runs.group_runs(panel)
        if group.label in names
    ]
    groups = keep_common_seeds([group for group in able if group.runs])
    values = {group.label: read(group) for group in keep_common_rounds(groups, panel)}
    lines = {name: {} if (one := values.get(name)) is None else {number or "mean over rounds": one} for name in names}
    seeds = [[{run.seed for run in group.runs} for group in groups]] if groups else []
    named = [(f"{group.label}: " * (len(groups) > 1), group.runs) for group in groups if number]
    learnt = "; ".join(
        f"{name}{accuracy}" + ", near chance" * is_at_chance(models)
        for name, models in named
        if (accuracy := read_accuracy(models))
    )
    lost = any(is_at_chance(models) for _, models in named)
    words = ", ".join(filter(None, [describe_seeds(seeds), learnt]))
    return Numbers(title, lines, words, have_several(seeds) and not lost)


def average(group: Group, measure: str) -> float | None:
    """The mean of a measure over rounds and seeds."""
    found = curve(group, measure)
    return fmean(found.mean) if found and found.mean else None


def describe_seeds(compared: Sequence[Sequence[set[int]]]) -> str:
    """Say how many seeds there are on the sides of each comparison, and whether they are others on each."""
    counts = {len(side) for sides in compared for side in sides}
    if not counts:
        return ""
    words = plural(max(counts), "seed") if len(counts) == 1 else f"{join_ends(counts)} seeds"
    other = any(side != sides[0] for sides in compared for side in sides)
    return words + ", others on each side" * other


def have_several(compared: Sequence[Sequence[set[int]]]) -> bool:
    """Whether there is more than one seed on every side: one decides nothing."""
    return all(len(side) > 1 for sides in compared for side in sides)


def join_ends(numbers: Iterable[int]) -> str:
    low, *_, high = sorted({*numbers}) * 2
    return str(low) if low == high else f"{low} to {high}"
