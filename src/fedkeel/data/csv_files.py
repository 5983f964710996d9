"""CSV files: the first line has the names of the columns, every other line a cell for each."""

from __future__ import annotations

import csv
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

from fedkeel.errors import DataError

ONCE = "give each column a name of its own: a second column of labels would be an input"
SEMICOLONS = "semicolons divide its cells: write it with commas, and numbers with points"
TABS = "tabs divide its cells: write it with commas, and numbers with points"
NAMES = "name every column, and leave out row names and commas at the end of lines"
FIRST = "write a line of names above it: age,pressure,label"


def read_csv(file: Path, words: str | None = None) -> Any:
    """Read a file as a DataFrame; the column of `words`, if any, as the file writes it: 007 and not 7.

    pandas would take cells without a name for names of rows, and all others for those of the next column. It looks at
    the first row, and refuses later ones that are longer.
    """
    import pandas

    check_first_lines(file)
    types = None if words is None else {words: str}
    return pandas.read_csv(file, dtype=types, keep_default_na=words is None, index_col=False)


def check_first_lines(file: Path) -> None:
    """Refuse a file without names, or that names a column twice, or whose first row has more cells than names."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.reader(lines)
            first = [(reader.line_num, row) for row in islice(filter(is_row, reader), 2)]
    except csv.Error as error:
        raise ValueError(str(error)) from error
    (_, names), (line, cells) = [*first, (0, list[str]()), (0, list[str]())][:2]
    refuse_numbers(file, names)
    often = Counter(name.strip() for name in names)
    if twice := next((name for name, times in often.items() if name and times > 1), None):
        raise DataError(f"{file} has more than one column called {twice}.", ONCE)
    if len(cells) > len(names):
        raise DataError(
            f"line {line} of {file} has more cells than there are names: {len(cells)}, not {len(names)}.",
            name_divider(names) or NAMES,
        )


def refuse_numbers(file: Path, names: list[str]) -> None:
    """Refuse a first line of numbers: it is a row, which would be lost as the names of the columns."""
    given = [name for name in names if name.strip()]
    if given and all(map(is_number, given)):
        raise DataError(f"the first line of {file} holds numbers, and no names of columns.", FIRST)


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def is_row(cells: list[str]) -> bool:
    """Whether a line is more than space."""
    return len(cells) > 1 or any(cell.strip() for cell in cells)


def name_divider(names: list[str]) -> str | None:
    """Say what divides the names, where it is no comma: tabs, or semicolons, as a spreadsheet writes them where numbers
    have commas."""
    one = names[0] if len(names) == 1 else ""
    return TABS if "\t" in one else SEMICOLONS if ";" in one else None
