"""Tables of pandas, and CSV and Parquet files: one column is the label, the others are the inputs."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.data.clients import TARGETS
from fedkeel.data.csv_files import name_divider, read_csv
from fedkeel.data.table_files import DIVIDE, SUFFIXES, TEST, advise, holds_tables, is_table, name_owner, refuse_others
from fedkeel.errors import DataError, nearest
from fedkeel.text import in_one_line

log = logging.getLogger("fedkeel")

Label = str | Sequence[str]
WHOLE = re.compile(r"([+-]?\d+)\.0+")
SHOWN = 5  # labels in a warning
INDEX = "Unnamed: 0"
"""What pandas calls a first column without a name."""


def is_frame(given: Any) -> bool:
    """Whether it is a DataFrame; pandas is not imported to find out."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(given, pandas.DataFrame)


def open_folder(folder: Path) -> tuple[list[Table], Table | None]:
    """Open the tables of clients in a folder, a file or a folder of files each, and that of the test set, if any."""
    if not folder.is_dir():
        if is_table(folder) and folder.exists():
            read = f'frame = pandas.read_{folder.suffix[1:].lower()}("{folder}"); {DIVIDE}'
            raise DataError(f"{folder} is one table, not a folder with one for each client.", read)
        files = "clients=FOLDER holds one CSV or Parquet file each"
        raise DataError(f"there is no folder of clients: {folder}", advise(folder) or files)
    refuse_others(folder)
    inside = [one for one in sorted(folder.iterdir()) if is_table(one) or holds_tables(one)]
    owners = list(map(name_owner, inside))
    for owner in owners:
        if (several := [one.name for one in inside if name_owner(one) == owner])[1:]:
            what = "test set" if owner == TEST else f"table of client {owner}"
            raise DataError(f"{folder} holds more than one {what}: {', '.join(several)}.", "keep one")
    found = {owner: open_table(one) for owner, one in zip(owners, inside, strict=True)}
    test = found.pop(TEST, None)
    if not found:
        raise DataError(f"{folder} holds no CSV or Parquet file of a client.", advise(folder) or "one for each")
    return [*found.values()], test


def open_table(path: Path) -> Table:
    """Read a CSV or Parquet file, or all of a folder one behind the other."""
    try:
        import pandas  # noqa: F401
    except ImportError as error:
        raise DataError(f"{path} needs pandas, which is not installed.", "pip install 'fedkeel[pandas]'") from error
    files = sorted(filter(is_table, path.iterdir())) if path.is_dir() else [path]
    if not files or any(one.suffix.lower() not in SUFFIXES for one in files):
        hint = advise(path) or f"give a file that ends in {' or '.join(SUFFIXES)}"
        raise DataError(f"{path} is no table that fedkeel reads.", hint)
    try:
        return Table(read_files(files), str(path), files)
    except ImportError as error:
        raise DataError(f"{path} needs pyarrow, which is not installed.", "pip install 'fedkeel[pandas]'") from error
    except OSError as error:
        where = f"it was looked for in {Path.cwd()}" if not path.is_absolute() else "is its name right?"
        raise DataError(f"cannot read the table {path}: {in_one_line(error)}", where) from None
    except ValueError as error:
        hint = "save it as UTF-8" if isinstance(error, UnicodeError) else "is it a CSV or Parquet file?"
        raise DataError(f"cannot read the table {path}: {in_one_line(error)}", hint) from None


def read_files(files: Sequence[Path], words: str | None = None) -> Any:
    """Read files one behind the other; the column of `words`, if any, as CSV files write it: 007 and not 7."""
    import pandas

    frames = [read_csv(one, words) if one.suffix.lower() == ".csv" else pandas.read_parquet(one) for one in files]
    return frames[0] if len(frames) == 1 else pandas.concat(frames)


@dataclass(frozen=True, eq=False)
class Table:
    """A DataFrame, whose it is, and the files that it was read from, if any.

    `index` names the columns that were its index: they are labels or inputs where they are asked for.
    """

    frame: Any
    whose: str
    files: Sequence[Path] = ()
    index: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known, names = {*map(str, self.frame.columns)}, list(map(str, self.frame.index.names))
        levels = [
            level
            for level, name in enumerate(self.frame.index.names)
            if name is not None and str(name) not in (*known, *names[:level])
        ]
        if levels and self.frame.columns.nlevels == 1:
            named = self.frame.set_axis(self.frame.columns.astype(object), axis=1)  # categories take no new name
            object.__setattr__(self, "frame", named.reset_index(level=levels))
            object.__setattr__(self, "index", tuple(names[level] for level in levels))

    def labels(self, label: Label | None) -> list[str]:
        """The columns that are predicted: those named, or the one that is called as targets are."""
        known = list(map(str, self.frame.columns))
        divider = name_divider(known)
        if label is None:
            called = [name for name in TARGETS if name in known]
            found = sorted(called, key=self.index.__contains__)[:1]
            if not found:
                raise DataError(
                    f"{self.whose} has no label column; its columns are: {', '.join(known)}.",
                    divider
                    or f'name it: Problem(…, label="{known[-1] if known else "diagnosis"}"), '
                    f"or call it one of {', '.join(TARGETS)}",
                )
            return found
        several = isinstance(label, Iterable) and not isinstance(label, str)
        wanted = list(map(str, label if several else [label]))  # a frame may number its columns
        if not wanted:
            raise DataError(f"label= names no column of {self.whose}.", nearest("", known, "columns"))
        if isinstance(label, Set) or len({*wanted}) < len(wanted):
            raise DataError("label= names columns in no order, or one of them twice.", f"label={sorted({*wanted})}")
        for name in wanted:
            if name not in known:
                raise DataError(f"{self.whose} has no column: {name}", divider or nearest(name, known, "columns"))
        return wanted

    def columns(self, label: Label | None) -> tuple[str, ...]:
        """The columns that are inputs."""
        left = (*self.labels(label), *self.index)
        return tuple(name for name in map(str, self.frame.columns) if name not in left)

    def choose(self, columns: Sequence[str], label: Label | None) -> Table:
        """The table with these inputs and its labels alone."""
        labels, known = self.labels(label), list(map(str, self.frame.columns))
        for place, name in enumerate(columns):
            if name not in known:
                raise DataError(f"{self.whose} has no column: {name}", nearest(name, known, "columns"))
            if name in labels or name in columns[:place]:
                what = "the label" if name in labels else "one column twice"
                raise DataError(f"columns= names {what}: {name}", "name each input once")
        wanted = {*columns, *labels}
        return replace(self, frame=self.frame.loc[:, [str(one) in wanted for one in self.frame.columns]], index=())

    def column(self, name: str) -> Any:
        found = self.frame.loc[:, [one for one in self.frame.columns if str(one) == name]]
        if found.shape[1] != 1:
            raise DataError(f"{self.whose} has more than one column called {name}.", "give each its own name")
        return found.iloc[:, 0]

    def label(self, name: str) -> Any:
        """A column of labels; numbers are such also where they are objects, as of a data base, or a category."""
        from pandas.api.types import is_integer_dtype

        column = self.column(name)
        plain = column if is_numeric(column) else column.astype(object).infer_objects()
        if is_integer_dtype(plain):
            return plain
        cells = column.tolist() if column.dtype == object else []
        fractions = bool(cells) and all(isinstance(one, Real | Decimal) for one in cells)
        return column.astype(float) if fractions and not all(isinstance(one, int) for one in cells) else column

    def words(self, name: str) -> list[str]:
        """A column of labels as words."""
        column = self.column(name)
        if self.files and not all(isinstance(word, str) for word in column.unique().tolist()):
            column = Table(read_files(self.files, name), self.whose).column(name)
        return list(map(spell, column))

    def tensors(self, label: Label | None, columns: Sequence[str], targets: Targets) -> tuple[Tensor, Tensor]:
        """Inputs as floats; labels as classes, or as one column for each where they are fractions or several."""
        here = self.columns(label)
        if set(here) != set(columns):
            other = sorted({*here} ^ {*columns})
            raise DataError(
                f"the columns of {self.whose} are not those of the first table: {', '.join(other)}.",
                "give all tables the same columns: encode words in one table of all clients, then divide it",
            )
        if not columns:
            raise DataError(f"{self.whose} has no column beside its label.", "inputs are the other columns")
        if INDEX in columns:
            raise DataError(
                f"{self.whose} has a column without a name, as the row numbers that pandas writes.",
                "write it with index=False, or give the column a name",
            )
        for name in columns:
            if len(self.frame) and not is_numeric(self.column(name)):
                raise DataError(
                    f"column {name} of {self.whose} holds no real numbers.",
                    "encode it for all clients together (pandas.get_dummies of one table), or leave it out",
                )
        for name in (*columns, *self.labels(label)):
            self.refuse_empty(name)
        inputs = np.stack([self.column(name).to_numpy(np.float32) for name in columns], 1)
        return torch.from_numpy(inputs), self.target(self.labels(label), targets)

    def refuse_empty(self, name: str) -> None:
        """Refuse a column with empty cells, and name words such as NA that count as empty."""
        column = self.column(name)
        empty = column.isna().to_numpy()
        if not is_numeric(column):
            empty = empty | np.array([isinstance(cell, str) and not cell.strip() for cell in column], bool)
        if not empty.any():
            return
        cells = read_files(self.files, name) if self.files else self.frame
        said = sorted(
            {cell for cell in Table(cells, self.whose).column(name)[empty] if isinstance(cell, str) and cell.strip()}
        )
        raise DataError(
            f"column {name} of {self.whose} is empty in {int(empty.sum())} of {len(empty)} rows"
            + (f", as {' and '.join(said)} counts." if said else "."),
            "fill them (frame.fillna), or leave them out (frame.dropna)"
            + (", or write another word if it is a class" if said else ""),
        )

    def target(self, names: Sequence[str], targets: Targets) -> Tensor:
        if len(names) > 1:
            try:
                return torch.from_numpy(np.stack([self.column(name).to_numpy(np.float32) for name in names], 1))
            except (TypeError, ValueError) as error:
                raise DataError(
                    f"the labels of {self.whose} are not all numbers: {in_one_line(error)}",
                    "several labels are one target of numbers: 1 where a label holds, 0 where it does not",
                ) from None
        if targets.words:
            places = {word: place for place, word in enumerate(targets.words)}
            return torch.tensor([places[word] for word in self.words(names[0])], dtype=torch.int64)
        column = self.label(names[0])
        if targets.fractions:
            return torch.from_numpy(np.array(column.to_numpy(np.float32))[:, None])
        if len(column) and (most := int(column.max())) > np.iinfo(np.int64).max:
            raise DataError(f"{self.whose} holds the label {most}, too large for a class.", "number the classes from 0")
        return torch.from_numpy(np.array(column.to_numpy(np.int64)))


@dataclass(frozen=True)
class Targets:
    """What the labels of all tables of a problem are: words, fractions, or else whole numbers."""

    words: Sequence[str] = ()
    fractions: bool = False


def find_targets(tables: Sequence[Table], label: Label | None, clients: int) -> Targets:
    """Decide for all tables together: where one has words, numbers are words, too; fractions in one are so in all.

    The first tables are those of clients. Their words come first, so that others do not change their classes.
    """
    single = [
        (table, names[0], place < clients)
        for place, table in enumerate(tables)
        if len(names := table.labels(label)) == 1 and len(table.frame)
    ]
    columns = [table.label(name) for table, name, _ in single]
    if all(map(is_numeric, columns)):
        return Targets(fractions=any(map(is_fraction, columns)))
    words = [({*table.words(name)}, of_client) for table, name, of_client in single]
    known = {word for some, of_client in words if of_client for word in some}
    new = sorted({word for some, _ in words for word in some} - known)
    warn_of_untrained(new)
    return Targets(words=[*sorted(known), *new])


def warn_of_untrained(labels: Sequence[Any]) -> None:
    """Name the labels that test data hold and no client, if there are any."""
    if labels:
        shown = ", ".join(map(str, labels[:SHOWN])) + (" …" if len(labels) > SHOWN else "")
        log.warning("no client trains on labels that the test data hold: %s; are labels written alike?", shown)


def spell(label: Any) -> str:
    """A label as a word without spaces at its ends; a whole number has no point, also where it was read as a word."""
    whole = WHOLE.fullmatch(word := str(label).strip())
    return whole[1] if whole else word


def is_numeric(column: Any) -> bool:
    from pandas.api.types import is_any_real_numeric_dtype, is_bool_dtype

    return bool(is_any_real_numeric_dtype(column) or is_bool_dtype(column))


def is_fraction(column: Any) -> bool:
    from pandas.api.types import is_float_dtype

    return bool(is_float_dtype(column))
