"""The order in which the ledger is filled: parts of `order.toml`, each a list of cells of several papers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedkeel.errors import require_known
from fedkeel.papers.cells import Cell, each_once, find, read_file

ORDER = "order"
"""What `fedkeel reproduce order:a` names in place of a paper."""


def parts() -> dict[str, Any]:
    """Read the file as it is."""
    return read_file(ORDER)


def in_order(part: str | None = None) -> list[Cell]:
    """List the cells of one part, or of all, each once."""
    known = parts()
    names = known if part is None else [require_known(part, known, "the order has no part", "parts")]
    return each_once(cell for name in names for entry in known[name]["cells"] for cell in list_cells(entry))


def list_cells(entry: Mapping[str, Any]) -> list[Cell]:
    """List the cells of a `table`, or of some `rows` and `columns` of it: column by column, in the order given."""
    cells = {(cell.row, cell.column): cell for cell in find(entry["table"])}
    rows = entry.get("rows") or list(dict.fromkeys(row for row, _ in cells))
    columns = entry.get("columns") or list(dict.fromkeys(column for _, column in cells))
    return [cells[row, column] for column in columns for row in rows]
