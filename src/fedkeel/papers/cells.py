"""Published tables as data: each cell is an experiment in full, and the number its paper prints for it.

A paper's file gives settings in layers, and each cell is what they add up to, the later ones winning:

[defaults]           the paper's protocol
[on.DATASET]         what it changes for one data set
[[table]]            a table: its name, its title, settings of its own
[rows.NAME]          a row of any table; [table.row.NAME] for one table; `on.DATASET` as above
                     (`like = OTHER` in one table borrows another row or column)
[columns.NAME]       a column of any table; [table.column.NAME] for one table
[[table.cell]]       one cell, by row and column

Settings are the keys of an experiment and the facts of a cell (FACTS). A method that names itself, or a partition that
names its kind, replaces what was there; otherwise the two are merged, so a column may say `partition.alpha = 0.6`.
`evaluation` is the fact; how clients' own models are judged (an experiment's `evaluation`) is called `policy` here.
`seeds` are those that the paper names. `choices` lists what it leaves open, `changed` what we chose otherwise after
runs had been made.
`leads`, of the paper or of a table, lists pairs of rows whose difference is what the table is about; `checks` lists
such differences as others have measured them (Check).
The numbers stand in [table.values], a list for each row: 79.52, "77.02±0.79", "70.07?" (damaged in our text of the
paper), "-" (the paper has none). A table without values is the sweep behind a figure: it lists its rows instead.
A file of the user's own has the same words, but for `lr_matches` and `checks`; `paper_file` checks it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from fedkeel.errors import RequestError, nearest
from fedkeel.papers.paper_file import FACTS, STRUCTURE, check_datasets, check_own, is_own, read_own, split_spec

QUESTIONS = "questions"

PAPERS: dict[str, str] = {
    "fedfft": "FedFFT: spectral filtering of SAM perturbations",
    "specgradfilter": "SpecGradFilter: spectral filtering of gradients",
    "fedscam": "FedSCAM: radius and weight by client heterogeneity",
    "fedwmsam": "FedWMSAM: weighted momentum and SAM",
    "fedfsa": "FedFSA: larger perturbations for sensitive layers",
    QUESTIONS: "Questions the papers leave open",
}

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One number of a paper. `experiment` is plain data for `Experiment.load`.

    `kind` is one of KINDS, `evaluation` one of EVALUATIONS; `target` is the accuracy in % that rounds or seconds lead
    to; `source` is "own run" or "copied" (from another paper). `uncertain`: the number or its setting is damaged in
    our text of the paper, or the setting cannot be guessed, so nothing is judged by it. `unmeasured` says why no run
    here gives the number. `assumed` names a setting that the paper does not print. `lr_matches` names the row whose
    mean step length the learning rate is to match. `note` says what the paper leaves open and what we chose.
    """

    paper: str
    table: str
    row: str
    column: str
    experiment: dict[str, Any]
    reported: float | None = None
    spread: float | None = None
    kind: str = "accuracy"
    evaluation: str = "best"
    target: float | None = None
    source: str = "own run"
    uncertain: bool = False
    unmeasured: str = ""
    lr_matches: str = ""
    assumed: str = ""
    note: str = ""

    @property
    def place(self) -> tuple[str, str, str, str]:
        """Where it stands: the paper, the table, the row and the column."""
        return self.paper, self.table, self.row, self.column

    @property
    def label(self) -> str:
        """What `--cell` names: 'FedFFT-D, cifar10, 0.1'."""
        return f"{self.row}, {self.column}"


@dataclass(frozen=True)
class Table:
    """A table of a paper, the numbers of its text, or the sweep behind one of its figures. `leads` names pairs of rows
    whose difference is what the table is about; `known` and `unknown` say what the paper tells of it, where it does not
    tell enough."""

    paper: str
    name: str
    title: str
    cells: tuple[Cell, ...]
    leads: tuple[tuple[str, str], ...] = ()
    known: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """By how much one row led another at a round when someone else ran them; `note`: in what their runs are unlike."""

    table: str
    row: str
    over: str
    column: str
    round: int
    lead: float
    note: str = ""


def find(spec: str) -> list[Cell]:
    """Find the cells of "fedfft", "fedfft:1" or "mine.toml:1"."""
    return cells(*split_spec(spec))


def cells(paper: str, table: str | None = None) -> list[Cell]:
    """List the cells of one table, or of all."""
    found = [made for made in tables(paper) if table is None or made.name.lower() == table.lower()]
    if table is not None and not found:
        names = [made.name for made in tables(paper)]
        raise RequestError(f"{paper} has no table: {table}", nearest(table, names, "tables"))
    return [cell for made in found for cell in made.cells]


@cache
def tables(paper: str) -> tuple[Table, ...]:
    """List the tables of a paper, in its order; then its text and its figures."""
    data = read(paper)
    made = tuple(expand(paper, data, table) for table in data["table"])
    if is_own(paper):
        every = [cell for table in made for cell in table.cells]
        for cell in every:
            where = f"{cell.label} in table {cell.table} of {paper}"
            check_own(cell.experiment, cell.kind, cell.evaluation, cell.target, where)
        check_datasets(data, {cell.experiment["dataset"] for cell in every}, paper)
    return made


def choices(paper: str) -> tuple[str, ...]:
    """List what a paper leaves open for all its tables, and what we chose."""
    return tuple(read(paper)["choices"])


def seeds_of(paper: str) -> tuple[int, ...]:
    """List the seeds that a paper says it used; none where it does not say."""
    return tuple(read(paper).get("seeds", ()))


def each_once(cells: Iterable[Cell]) -> list[Cell]:
    """Keep every cell once, in the order in which they come first."""
    return list({cell.place: cell for cell in cells}.values())


def collect_notes(some: Sequence[Cell]) -> list[str]:
    """List the notes of cells, each once, with the row or column that it is about where it is about one."""
    found: dict[str, list[Cell]] = {}
    for cell in some:
        if cell.note:
            found.setdefault(cell.note, []).append(cell)
    told = []
    for note, cells in found.items():
        rows, columns = {cell.row for cell in cells}, {cell.column for cell in cells}
        about = "" if len(cells) == len(some) else cells[0].row if len(rows) == 1 else cells[0].column
        told.append(f"{about}: {note}" if about and 1 in (len(rows), len(columns)) else note)
    return told


def changes(paper: str) -> tuple[str, ...]:
    """What we chose otherwise after runs had been made, and what those had."""
    tables(paper)
    return tuple(read(paper).get("changed", ()))


def checks(paper: str) -> tuple[Check, ...]:
    """List differences between two rows that others have measured."""
    return tuple(Check(**found) for found in read(paper).get("checks", ()))


def read(paper: str) -> dict[str, Any]:
    """Read a paper's file as it is, or one of the user's own."""
    if is_own(paper):
        return read_own(paper)
    if paper not in PAPERS:
        hint = nearest(paper, PAPERS, "papers")
        own = "" if hint.endswith("?") else "; a paper of your own is a file whose name ends in .toml"
        raise RequestError(f"unknown paper: {paper}", hint + own)
    return read_file(paper)


def read_file(name: str) -> dict[str, Any]:
    """Read a TOML file of this folder as it is."""
    return tomllib.loads((files("fedkeel.papers") / f"{name}.toml").read_text(encoding="utf-8"))


def expand(paper: str, data: Settings, table: Settings) -> Table:
    """Make a table of a paper's file with its cells."""
    values: Settings = table.get("values", dict.fromkeys(table.get("rows", ())))
    single = {(cell["row"], cell["column"]): cell for cell in table.get("cell", ())}
    made = []
    for row, numbers in values.items():
        for column, number in zip(table["columns"], numbers or ["-"] * len(table["columns"]), strict=True):
            own = {
                word: value for word, value in single.get((row, column), {}).items() if word not in ("row", "column")
            }
            made.append(_cell(paper, table["name"], row, column, number, _layers(data, table, row, column, own)))
    leads = [(one, other) for one, other in table.get("leads", data.get("leads", ())) if {one, other} <= values.keys()]
    told = tuple(table.get("known", ())), tuple(table.get("unknown", ()))
    return Table(paper, table["name"], table["title"], tuple(made), tuple(leads), *told)


def _layers(data: Settings, table: Settings, row: str, column: str, own: Settings) -> list[Settings]:
    shared = {word: value for word, value in table.items() if word not in STRUCTURE}
    rows = _named(data.get("rows", {}), table.get("row", {}), row)
    columns = _named(data.get("columns", {}), table.get("column", {}), column)
    plain: list[Settings] = [data["defaults"], shared, *rows, *columns, own]
    dataset = next((layer["dataset"] for layer in reversed(plain) if "dataset" in layer), None)
    on_rows = [part for layer in rows for part in (layer, layer.get("on", {}).get(dataset, {}))]
    return [data["defaults"], data.get("on", {}).get(dataset, {}), shared, *on_rows, *columns, own]


def _named(shared: Settings, local: Settings, name: str) -> list[Settings]:
    """List the layers of a row or column: the paper's for its name (or the one it is `like`), then the table's."""
    own = local.get(name, {})
    like = own.get("like", name)
    if like not in shared and name not in local:
        raise KeyError(f"nothing says what {name!r} is")
    return [shared.get(like, {}), own]


def merged(base: Settings, more: Settings) -> dict[str, Any]:
    """Put `more` on top of `base`: tables within are merged too, unless the upper one names itself."""
    result = dict(base)
    for word, value in more.items():
        value = {"name": value} if word == "method" and isinstance(value, str) else value
        below = result.get(word)
        if isinstance(value, Mapping) and isinstance(below, Mapping) and not value.keys() & {"name", "kind"}:
            value = merged(below, value)
        result[word] = value
    return result


def _cell(paper: str, table: str, row: str, column: str, number: float | str, layers: list[Settings]) -> Cell:
    settings: dict[str, Any] = {}
    for layer in layers:
        settings = merged(settings, {word: value for word, value in layer.items() if word not in ("like", "on")})
    facts = {word: settings.pop(word) for word in FACTS if word in settings}
    if "policy" in settings:
        settings["evaluation"] = settings.pop("policy")
    reported, spread, damaged = parse(number)
    facts["note"] = " ".join(dict.fromkeys(layer["note"] for layer in layers if "note" in layer))
    facts["uncertain"] = damaged or facts.get("uncertain", False)
    return Cell(paper, table, row, column, settings, reported, spread, **facts)


def parse(number: float | str) -> tuple[float | None, float | None, bool]:
    """Read 79.52, "77.02±0.79", "70.07?" or "-" as (number, its ±, whether it is damaged)."""
    text = str(number)
    text, damaged = text.removesuffix("?"), text.endswith("?")
    if text == "-":
        return None, None, damaged
    value, sign, spread = text.partition("±")
    return float(value), float(spread) if sign else None, damaged
