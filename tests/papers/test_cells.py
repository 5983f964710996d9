"""From layered settings to cells: precedence, the notation of numbers, what cannot be found."""

from __future__ import annotations

from typing import Any

import pytest
from for_each import for_each

from fedkeel.errors import RequestError
from fedkeel.papers import EVALUATIONS, KINDS, PAPERS, checks, choices, find, tables
from fedkeel.papers.cells import Cell, cells, expand, merged, parse, read
from fedkeel.papers.paper_file import FACTS, STRUCTURE

PAPER: dict[str, Any] = {
    "defaults": {
        "dataset": "digits",
        "lr": 0.1,
        "epochs": 5,
        "partition": {"kind": "dirichlet", "alpha": 0.1, "clients": 9},
    },
    "on": {"mnist": {"epochs": 2, "lr": 0.2}},
    "rows": {
        "plain": {"method": "fedavg"},
        "sharp": {"method": {"name": "fedsam", "rho": 0.1}, "on": {"mnist": {"method": {"rho": 0.7}}}},
    },
    "columns": {"mnist": {"dataset": "mnist"}},
}


def made(**table: Any) -> dict[str, Cell]:
    found = expand("paper", PAPER, {"name": "1", "title": "a table"} | table)
    return {cell.label: cell for cell in found.cells}


def test_layers_win_in_order() -> None:
    column = {"digits": {"lr": 0.5}, "mnist": {}}
    values = {"plain": [1, 2], "sharp": [3, 4]}
    single = [{"row": "sharp", "column": "mnist", "epochs": 9, "note": "alone"}]
    cell = made(columns=["digits", "mnist"], values=values, column=column, cell=single, clip=1.0, note="all")
    assert [c.reported for c in cell.values()] == [1, 2, 3, 4]
    assert all(c.experiment["clip"] == 1.0 for c in cell.values())
    assert cell["plain, digits"].experiment["lr"] == 0.5  # column over defaults
    assert cell["plain, mnist"].experiment["lr"] == 0.2  # data set over defaults
    assert cell["plain, mnist"].experiment["epochs"] == 2
    assert cell["sharp, mnist"].experiment["epochs"] == 9  # the cell over its data set
    assert cell["sharp, mnist"].note == "all alone"
    assert cell["sharp, digits"].experiment["method"] == {"name": "fedsam", "rho": 0.1}
    assert cell["sharp, mnist"].experiment["method"] == {"name": "fedsam", "rho": 0.7}  # a row on one data set


def test_tables_merge_unless_they_name_themselves() -> None:
    column = {
        "0.6": {"partition": {"alpha": 0.6}},
        "iid": {"partition": {"kind": "iid", "clients": 3}},
        "wide": {"method": {"rho": 0.9}},
    }
    cell = made(columns=["0.6", "iid", "wide"], rows=["sharp"], column=column)
    assert cell["sharp, 0.6"].experiment["partition"] == {"kind": "dirichlet", "alpha": 0.6, "clients": 9}
    assert cell["sharp, iid"].experiment["partition"] == {"kind": "iid", "clients": 3}
    assert cell["sharp, wide"].experiment["method"] == {"name": "fedsam", "rho": 0.9}
    assert merged({"method": {"name": "a", "x": 1}}, {"method": "b"}) == {"method": {"name": "b"}}


def test_a_row_may_be_like_another() -> None:
    row = {"sharper": {"like": "sharp", "method": {"rho": 0.3}}}
    cell = made(columns=["mnist"], values={"sharper": [7]}, row=row)["sharper, mnist"]
    assert cell.experiment["method"] == {"name": "fedsam", "rho": 0.3}  # the table's row over the paper's


def test_rows_without_numbers_report_nothing() -> None:
    assert made(columns=["mnist"], rows=["plain"])["plain, mnist"].reported is None


def test_damage_in_a_heading_or_in_a_number() -> None:
    column = {"lost": {"uncertain": True}, "kept": {}}
    cell = made(columns=["lost", "kept"], values={"plain": [1, "2?"], "sharp": [3, 4]}, column=column)
    assert [c.label for c in cell.values() if c.uncertain] == ["plain, lost", "plain, kept", "sharp, lost"]


def test_a_row_of_the_wrong_length_or_without_a_meaning_is_refused() -> None:
    with pytest.raises(ValueError, match="longer"):
        made(columns=["mnist"], values={"plain": [1, 2]}, column={})
    with pytest.raises(KeyError, match="fedawv"):
        made(columns=["mnist"], values={"fedawv": [1]})
    with pytest.raises(KeyError, match="minst"):
        made(columns=["minst"], values={"plain": [1]})


@for_each(
    ("written", "meant"),
    [
        (79.52, (79.52, None, False)),
        (800, (800.0, None, False)),
        ("77.02±0.79", (77.02, 0.79, False)),
        ("70.07?", (70.07, None, True)),
        ("51.02±2.21?", (51.02, 2.21, True)),
        ("-", (None, None, False)),
    ],
)
def test_notation_of_numbers(written: float | str, meant: tuple[float | None, float | None, bool]) -> None:
    assert parse(written) == meant


@for_each("wrong", ["", "±0.3", "70,1", "70.1±"])
def test_other_notations_are_errors(wrong: str) -> None:
    with pytest.raises(ValueError, match="float"):
        parse(wrong)


# ---- finding -------------------------------------------------------------------------------------------------------


def test_find_by_paper_table_and_label() -> None:
    assert find("fedfft:1") == cells("fedfft", "1")
    assert find("specgradfilter:iii") == cells("specgradfilter", "III")
    assert find("fedscam") == [cell for table in tables("fedscam") for cell in table.cells]
    (cell,) = (cell for cell in find("fedfft:1") if cell.label == "FedFFT-D, cifar10, 0.1")
    assert (cell.paper, cell.table, cell.row, cell.column) == ("fedfft", "1", "FedFFT-D", "cifar10, 0.1")


@for_each(
    ("spec", "message", "hint"),
    [
        ("fedft", "unknown paper: fedft", "fedfft"),
        ("", "unknown paper: ", "fedfft"),
        ("specgradfilter:XI", "specgradfilter has no table: XI", "X"),
        ("fedfft:", "fedfft has no table: ", "1"),
    ],
)
def test_what_cannot_be_found_is_named(spec: str, message: str, hint: str) -> None:
    with pytest.raises(RequestError) as refused:
        find(spec)
    assert refused.value.message == message
    assert hint in (refused.value.hint or "")


@for_each("paper", PAPERS)
def test_names_are_unique_and_words_are_known(paper: str) -> None:
    names = [table.name for table in tables(paper)]
    assert len(set(names)) == len(names)
    assert not any(" " in name for name in names)
    for table in tables(paper):
        labels = [cell.label for cell in table.cells]
        assert len(set(labels)) == len(labels) > 0
        assert {cell.kind for cell in table.cells} <= set(KINDS)
        assert {cell.evaluation for cell in table.cells} <= set(EVALUATIONS)
        assert {cell.source for cell in table.cells} <= {"own run", "copied"}
    assert choices(paper)


@for_each("paper", PAPERS)
def test_files_hold_nothing_that_no_cell_uses(paper: str) -> None:
    """A misspelt name would otherwise be a setting without effect."""
    data = read(paper)
    assert data.keys() <= {
        "title",
        "cite",
        "seeds",
        "choices",
        "changed",
        "leads",
        "checks",
        "defaults",
        "on",
        "rows",
        "columns",
        "table",
    }
    used_rows, used_columns = set(), set()
    for table in data["table"]:
        rows, columns = list(table.get("values", table.get("rows"))), table["columns"]
        assert ("values" in table) != ("rows" in table)
        assert table.get("row", {}).keys() <= set(rows)
        assert table.get("column", {}).keys() <= set(columns)
        assert all(cell["row"] in rows and cell["column"] in columns for cell in table.get("cell", ()))
        used_rows |= {table.get("row", {}).get(row, {}).get("like", row) for row in rows}
        used_columns |= {table.get("column", {}).get(column, {}).get("like", column) for column in columns}
        assert all({one, other} <= set(rows) for one, other in table.get("leads", ()))
    assert {tuple(pair) for pair in data.get("leads", ())} <= {pair for made in tables(paper) for pair in made.leads}
    for check in checks(paper):
        assert (
            len(
                [
                    c
                    for c in find(f"{paper}:{check.table}")
                    if c.column == check.column and c.row in (check.row, check.over)
                ]
            )
            == 2
        )
    assert data.get("rows", {}).keys() <= used_rows
    assert data.get("columns", {}).keys() <= used_columns
    datasets = {cell.experiment["dataset"] for cell in find(paper)}
    assert data.get("on", {}).keys() <= datasets
    for row in data.get("rows", {}).values():
        assert row.get("on", {}).keys() <= datasets
    assert not set(FACTS) & set(STRUCTURE)
