"""The papers' figures as data: what each shows in our words, and the runs and charts that make it again.

A figure of `figures.toml` has its `paper`, its `number`, what it `says`, and either `schematic = true` (nothing to
measure) or panels:

kind       one of KINDS
cells      lists of cells as in `order.toml`: a `table` ("fedfft:1"), of it some `rows` and `columns`
lines      "row" (the default) or "column": what one line, or one bar, of the chart is
x          kind "parameter": the setting on the x axis, such as "method.ratio"
over       kind "parameter": numbers are gains over this row of another table, in the same column
measure    kind "curves": what is drawn by round; kind "bars": "seconds" for the time of a round
charts     kind "charts": files of a report, such as "landscape-surface", of all runs in one frame
numbers    kind "charts": numbers of diagnostics, by their names in a report, that `expects` is held against
track      what runs measure while they train, and `analyse` what is looked at when they are done
extent     fields of `fedkeel.studies.extent.Extent` for `analyse`; `shared = true`: embeddings of all runs in one plane
keep       "best": runs keep their best model, too
expects    what the paper says of the figure, for `figure_readings`
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from fedkeel.errors import RequestError, nearest
from fedkeel.papers.cells import PAPERS, QUESTIONS, Cell, each_once, find, read_file
from fedkeel.papers.order import list_cells
from fedkeel.typed_values import flatten

KINDS: dict[str, str] = {
    "parameter": "a number against a setting",
    "curves": "a measure by round",
    "bars": "a number for each method",
    "labels": "the classes and sizes of the clients' data, without a run",
    "charts": "diagnostics of the trained models",
}


@dataclass(frozen=True)
class Panel:
    """One frame of a figure."""

    title: str
    kind: str
    cells: tuple[Cell, ...]
    lines: str = "row"
    x: str = ""
    over: tuple[Cell, ...] = ()
    measure: str = "accuracy"
    charts: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()

    def line_of(self, cell: Cell) -> str:
        """Name the line that a cell belongs to."""
        return cell.row if self.lines == "row" else cell.column

    def point_of(self, cell: Cell) -> str:
        """Name a cell's place on its line."""
        return cell.column if self.lines == "row" else cell.row

    def value_of(self, cell: Cell) -> float:
        """Read a cell's value of the setting on the x axis."""
        return float(flatten(cell.experiment)[self.x])

    def base_of(self, cell: Cell) -> Cell | None:
        """Find the cell whose number is taken off this one's."""
        return next((base for base in self.over if base.column == cell.column), None)


@dataclass(frozen=True)
class Figure:
    """A figure of a paper; without panels it is a schematic."""

    paper: str
    number: str
    says: str
    panels: tuple[Panel, ...] = ()
    expects: tuple[Mapping[str, Any], ...] = ()
    track: tuple[str, ...] = ()
    analyse: tuple[str, ...] = ()
    extent: Mapping[str, Any] = field(default_factory=dict)
    shared: bool = False
    keep: str | None = None
    note: str = ""

    @property
    def name(self) -> str:
        """What `reproduce` calls it: fedfft:figure-2."""
        return f"{self.paper}:figure-{self.number}"

    @property
    def schematic(self) -> bool:
        return not self.panels

    @property
    def needs_runs(self) -> bool:
        return any(panel.kind != "labels" for panel in self.panels)

    @property
    def cells(self) -> list[Cell]:
        """The cells that make it, each once."""
        return each_once(cell for panel in self.panels for cell in (*panel.cells, *panel.over))

    def with_cells(self, cells: Sequence[Cell]) -> Figure:
        """The same figure of these cells alone, which may have other settings."""
        given = {cell.place: cell for cell in cells}

        def kept(some: Sequence[Cell]) -> tuple[Cell, ...]:
            return tuple(given[cell.place] for cell in some if cell.place in given)

        panels = [replace(panel, cells=kept(panel.cells), over=kept(panel.over)) for panel in self.panels]
        return replace(self, panels=tuple(panel for panel in panels if panel.cells))


@cache
def read_figures() -> tuple[Figure, ...]:
    """Every figure of the five papers, in their order."""
    found = [_figure(dict(given)) for given in read_file("figures")["figure"]]
    papers = [paper for paper in PAPERS if paper != QUESTIONS]
    return tuple(sorted(found, key=lambda figure: (papers.index(figure.paper), int(figure.number))))


def find_figure(spec: str) -> Figure | None:
    """Find what "fedfft:figure-3" names, or one panel of it ("fedfft:figure-3a"); None where it names no figure."""
    paper, _, part = spec.partition(":")
    if not part.startswith("fig") or paper not in PAPERS or paper == QUESTIONS:
        return None
    named = re.fullmatch(r"figure-(\d+)([a-z]?)", part)
    known = {figure.number: figure for figure in read_figures() if figure.paper == paper}
    figure = known.get(named[1]) if named else None
    if named is None or figure is None:
        names = [one.name for one in known.values()]
        raise RequestError(f"{paper} has no figure: {named[1] if named else part}", nearest(spec, names, "figures"))
    if not named[2]:
        return figure
    panels = [panel for panel in figure.panels if any(cell.table == part for cell in panel.cells)]
    if not panels:
        raise RequestError(f"{figure.name} has no panel {named[2]}.", f"the whole figure is {figure.name}")
    return replace(figure, number=f"{named[1]}{named[2]}", panels=tuple(panels))


def find_needs(figure: Figure | None) -> tuple[list[str], str | None]:
    """Find what runs of a figure track and keep: also what other figures of the same experiments need, so that one run
    serves them all."""
    if figure is None:
        return [], None
    mine = [cell.experiment for cell in figure.cells]
    others = [one for one in read_figures() if any(cell.experiment in mine for cell in one.cells)]
    track = list(dict.fromkeys(name for one in (figure, *others) for name in one.track))
    return track, next((one.keep for one in (figure, *others) if one.keep), None)


def _figure(given: dict[str, Any]) -> Figure:
    panels = [panel for one in given.pop("panel", ()) for panel in _panels(dict(one))]
    given.pop("schematic", None)
    for name in ("expects", "track", "analyse"):
        given[name] = tuple(given.get(name, ()))
    return Figure(**given, panels=tuple(panels))


def _panels(given: dict[str, Any]) -> list[Panel]:
    """One panel, or one for each column where a chart shows one column at a time."""
    cells = [cell for part in given.pop("cells") for cell in list_cells(part)]
    over = given.pop("over", None)
    if over:
        given["over"] = tuple(cell for cell in find(over["table"]) if cell.row == over["row"])
    given |= {name: tuple(given.get(name, ())) for name in ("charts", "numbers")}
    title = given.pop("title", "")
    alone = given["kind"] == "parameter" or given.get("lines") == "column" or given["kind"] == "charts"
    if alone:
        return [Panel(title, cells=tuple(cells), **given)]
    columns = dict.fromkeys(cell.column for cell in cells)
    return [
        Panel(title or column, cells=tuple(cell for cell in cells if cell.column == column), **given)
        for column in columns
    ]
