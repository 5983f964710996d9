"""Tables of pandas, and CSV and Parquet files: one column is the label, the others are the inputs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.data.clients import TARGETS
from fedkeel.errors import DataError, nearest
from fedkeel.text import in_one_line

Label = str | Sequence[str]
SUFFIXES = (".csv", ".parquet")
OTHERS = (".tsv", ".xls", ".xlsx", ".ods", ".feather", ".arrow", ".orc", ".pq", ".gz", ".bz2", ".xz", ".zst")
"""How files end that are likely to be tables, too."""
TEST = "test"
"""A file of this name in a folder of clients, in small or capital letters, is the test set."""
SEMICOLONS = "semicolons divide its cells: write it with commas, and numbers with points"


def is_frame(given: Any) -> bool:
    """Whether it is a DataFrame; pandas is not imported to find out."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(given, pandas.DataFrame)


def open_folder(folder: Path) -> tuple[list[Table], Table | None]:
    """Open the tables of clients in a folder, a file or a folder of files each, and that of the test set, if any."""
    if not folder.is_dir():
        raise DataError(f"there is no folder of clients: {folder}", "clients=FOLDER holds one CSV or Parquet file each")
    refuse_others(folder)
    inside = [one for one in sorted(folder.iterdir()) if is_table(one) or holds_tables(one)]
    clients = [one for one in inside if one.stem.lower() != TEST]
    if not clients:
        raise DataError(f"{folder} holds no CSV or Parquet file of a client.", "one file, or one folder, for each")
    tests = [one for one in inside if one.stem.lower() == TEST]
    if len(tests) > 1:
        raise DataError(f"{folder} holds more than one test set: {', '.join(one.name for one in tests)}.", "keep one")
    return [open_table(one) for one in clients], open_table(tests[0]) if tests else None


def refuse_others(folder: Path) -> None:
    """Refuse a folder with tables of other kinds, beside those that are read or in a folder of a client."""
    files = [one for one in sorted([*folder.glob("*"), *folder.glob("*/*")]) if one.suffix.lower() in OTHERS]
    if names := [str(one.relative_to(folder)) for one in files if one.is_file() and not is_hidden(one)]:
        raise DataError(
            f"{folder} holds files that would not be read: {', '.join(names)}.",
            f"write tables as {' or '.join(SUFFIXES)}, and keep other files elsewhere",
        )


def is_hidden(path: Path) -> bool:
    """Whether a program left a file or a folder for itself, as macOS and editors do."""
    return path.name[0] in ".~"


def is_table(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not is_hidden(path)


def holds_tables(path: Path) -> bool:
    return path.is_dir() and not is_hidden(path) and any(map(is_table, path.iterdir()))


def open_table(path: Path) -> Table:
    """Read a CSV or Parquet file, or all of a folder one behind the other."""
    try:
        import pandas
    except ImportError as error:
        raise DataError(f"{path} needs pandas, which is not installed.", "pip install 'fedkeel[pandas]'") from error
    files = sorted(filter(is_table, path.iterdir())) if path.is_dir() else [path]
    if not files or any(one.suffix.lower() not in SUFFIXES for one in files):
        raise DataError(f"{path} is no table that fedkeel reads.", f"give a file that ends in {' or '.join(SUFFIXES)}")
    try:
        frames = [pandas.read_csv(f) if f.suffix.lower() == ".csv" else pandas.read_parquet(f) for f in files]
    except ImportError as error:
        raise DataError(f"{path} needs pyarrow, which is not installed.", "pip install 'fedkeel[pandas]'") from error
    except OSError as error:
        where = f"it was looked for in {Path.cwd()}" if not path.is_absolute() else "is its name right?"
        raise DataError(f"cannot read the table {path}: {in_one_line(error)}", where) from None
    except ValueError as error:
        hint = "save it as UTF-8" if isinstance(error, UnicodeError) else "is it a CSV or Parquet file?"
        raise DataError(f"cannot read the table {path}: {in_one_line(error)}", hint) from None
    return Table(frames[0] if len(frames) == 1 else pandas.concat(frames, ignore_index=True), str(path))


@dataclass(frozen=True, eq=False)
class Table:
    """A DataFrame, and whose it is."""

    frame: Any
    whose: str

    def labels(self, label: Label | None) -> list[str]:
        """The columns that are predicted: those named, or the one that is called as targets are."""
        known = list(map(str, self.frame.columns))
        if label is None:
            found = [name for name in TARGETS if name in known][:1]
            if not found:
                raise DataError(
                    f"{self.whose} has no label column; its columns are: {', '.join(known)}.",
                    f'name it: Problem(…, label="{known[-1] if known else "diagnosis"}"), '
                    f"or call it one of {', '.join(TARGETS)}",
                )
            return found
        wanted = [label] if isinstance(label, str) else list(label)
        for name in wanted:
            if name not in known:
                hint = SEMICOLONS if len(known) == 1 and ";" in known[0] else nearest(name, known, "columns")
                raise DataError(f"{self.whose} has no column: {name}", hint)
        return wanted

    def columns(self, label: Label | None) -> tuple[str, ...]:
        """The columns that are inputs."""
        labels = self.labels(label)
        return tuple(name for name in map(str, self.frame.columns) if name not in labels)

    def column(self, name: str) -> Any:
        found = self.frame.loc[:, [one for one in self.frame.columns if str(one) == name]]
        if found.shape[1] != 1:
            raise DataError(f"{self.whose} has more than one column called {name}.", "give each its own name")
        return found.iloc[:, 0]

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
        for name in columns:
            if len(self.frame) and not is_numeric(self.column(name)):
                raise DataError(
                    f"column {name} of {self.whose} holds no numbers.",
                    "encode it for all clients together (pandas.get_dummies of one table), or leave it out",
                )
        for name in (*columns, *self.labels(label)):
            if missing := int(self.column(name).isna().sum()):
                raise DataError(
                    f"column {name} of {self.whose} is empty in {missing} of {len(self.frame)} rows.",
                    "fill them (frame.fillna), or leave them out (frame.dropna)",
                )
        inputs = np.stack([self.column(name).to_numpy(np.float32) for name in columns], 1)
        return torch.from_numpy(inputs), self.target(self.labels(label), targets)

    def target(self, names: Sequence[str], targets: Targets) -> Tensor:
        if len(names) > 1:
            return torch.from_numpy(np.stack([self.column(name).to_numpy(np.float32) for name in names], 1))
        column = self.column(names[0])
        if targets.words:
            places = {word: place for place, word in enumerate(targets.words)}
            return torch.tensor([places[spell(word)] for word in column], dtype=torch.int64)
        if targets.fractions:
            return torch.from_numpy(np.array(column.to_numpy(np.float32))[:, None])
        return torch.from_numpy(np.array(column.to_numpy(np.int64)))


@dataclass(frozen=True)
class Targets:
    """What the labels of all tables of a problem are: words, fractions, or else whole numbers."""

    words: Sequence[str] = ()
    fractions: bool = False


def find_targets(tables: Sequence[Table], label: Label | None) -> Targets:
    """Decide for all tables together: where one has words, numbers are words, too; fractions in one are so in all."""
    columns = [table.column(names[0]) for table in tables if len(names := table.labels(label)) == 1]
    columns = [column for column in columns if len(column)]
    if not all(map(is_numeric, columns)):
        return Targets(words=sorted({spell(word) for column in columns for word in column.unique().tolist()}))
    return Targets(fractions=any(map(is_fraction, columns)))


def spell(label: Any) -> str:
    """A label as a word; a whole number is written without a point."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def is_numeric(column: Any) -> bool:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return bool(is_numeric_dtype(column) or is_bool_dtype(column))


def is_fraction(column: Any) -> bool:
    from pandas.api.types import is_float_dtype

    return bool(is_float_dtype(column))
