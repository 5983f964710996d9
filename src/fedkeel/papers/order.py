"""The order in which the ledger is filled: parts of `order.toml`, each a list of cells of several papers."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from fedkeel.errors import RequestError, nearest
from fedkeel.papers.cells import Cell, find

ORDER = "order"
"""What `fedkeel reproduce order:a` names in place of a paper."""


@cache
def parts() -> dict[str, Any]:
    """The file as it is."""
    return tomllib.loads((files("fedkeel.papers") / "order.toml").read_text(encoding="utf-8"))


def in_order(part: str | None = None) -> list[Cell]:
    """The cells of one part, or of all, each once."""
    known = parts()
    if part is not None and part not in known:
        raise RequestError(f"the order has no part: {part}", nearest(part, known, "parts"))
    found: dict[tuple[str, str, str], Cell] = {}
    for name in [part] if part is not None else known:
        for entry in known[name]["cells"]:
            for cell in _cells(entry["table"], entry.get("rows"), entry.get("columns")):
                found.setdefault((entry["table"], cell.row, cell.column), cell)
    return list(found.values())


def _cells(table: str, rows: list[str] | None, columns: list[str] | None) -> list[Cell]:
    """Column by column, the rows in the order given."""
    cells = {(cell.row, cell.column): cell for cell in find(table)}
    rows = rows or list(dict.fromkeys(row for row, _ in cells))
    columns = columns or list(dict.fromkeys(column for _, column in cells))
    return [cells[row, column] for column in columns for row in rows]
