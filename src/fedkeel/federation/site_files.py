"""A site's own files as tensors: CSV and Parquet tables with named columns, and images in a folder for each class."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.data.csv_files import name_divider, refuse_numbers
from fedkeel.data.storage.pictures import decode_image
from fedkeel.data.table_files import SUFFIXES, is_hidden, lies_hidden, refuse_others
from fedkeel.errors import DataError, nearest
from fedkeel.text import first_line, plural, split_words

IMAGES = (".png", ".jpg", ".jpeg")
OTHER_IMAGES = (".bmp", ".dcm", ".gif", ".tif", ".tiff", ".webp")
LABEL = "label"
FILES = "data-dir is a folder of CSV or Parquet files, or of images in a folder for each class: 0/one.png, 1/two.png"
EXACT = (1 << 53) - 1  # up to here a float64, as which cells are read, holds every whole number
Sample = tuple[Tensor, ...]


class Column(NamedTuple):
    """A column of inputs, and between what its values lie."""

    name: str
    low: float = -np.inf
    high: float = np.inf


def read_column(word: str) -> Column:
    """Read a column as it is named: `age`, or `age=0:120` where its values lie in a range."""
    if "=" not in word:
        return Column(word)
    name, _, ends = word.rpartition("=")
    try:
        low, high = map(float, ends.split(":"))
    except ValueError:
        low = high = 0.0
    if not low < high:
        raise DataError(f"the range of column {name} is not low:high: {ends}", f"for example {name}=0:120")
    return Column(name.strip(), low, high)


def read_columns(words: Sequence[str], label: str) -> list[Column]:
    """Read all columns of inputs: each is there once, and the label is none of them."""
    columns = [read_column(word) for word in words]
    names = [column.name for column in columns]
    if twice := next((name for place, name in enumerate(names) if name in names[:place]), None):
        raise DataError(f"--columns names {twice} twice.", "name each column of inputs once")
    if label in names:
        raise DataError(f"--columns names the label, {label}, as an input.", "leave it out, or give another --label")
    return columns


def write_columns(names: Sequence[str]) -> str:
    """Write names of columns as `read_columns` reads them."""
    if unfit := next((name for name in names if split_words(name) != [name] or "=" in name), None):
        raise DataError(f"the column {unfit!r} cannot be named to sites.", "leave out commas, = and spaces at its ends")
    return ",".join(names)


def check_order(columns: Sequence[Column], inputs: Sequence[str]) -> None:
    """Refuse the inputs of the problem's own tables in another order: its test set would be read otherwise."""
    names = [column.name for column in columns]
    if names != [*inputs] and sorted(names) == sorted(inputs):
        line = f"--columns has the inputs in another order than the problem's tables: {', '.join(names)}."
        raise DataError(line, f"the problem's order is {', '.join(inputs)}")


def check_count(columns: Sequence[Column], like: Sample) -> None:
    """Refuse another number of named columns than a sample has inputs."""
    width = like[0].shape[1:].numel()
    if columns and len(columns) != width:
        line = f"--columns names {plural(len(columns), 'column')}, and the problem takes {width}."
        raise DataError(line, f"a sample's inputs have the shape {tuple(like[0].shape[1:])}")


def read_site_files(folder: Path, columns: Sequence[str], label: str, like: Sample) -> Sample:
    """Read all files of a folder as inputs and labels of the form of `like`, one sample of the problem."""
    if len(like) != 2:
        raise DataError(
            f"files give inputs and a label, and a sample of this problem has {len(like)} parts.",
            "write a loader: --data module:function",
        )
    if (targets := like[1].shape[1:].numel()) != 1:
        raise DataError(
            f"files give one label for each sample, and a sample of this problem has {targets} targets.",
            "write a loader: --data module:function",
        )
    try:
        inside = list_visible(folder)
        files = list_tables(folder)
        classes = [path for path in inside if path.is_dir() and path.name.isdecimal()]
        refuse_others(folder)
        refuse_folders(folder, [path for path in inside if path.is_dir() and path not in classes])
    except OSError as error:
        raise DataError(f"cannot read the data of this node: {folder}: {error.strerror}", FILES) from None
    if not files and not classes:
        raise DataError(f"{folder} holds neither tables nor classes of images.", FILES)
    if files and classes:
        raise DataError(f"{folder} holds tables and classes of images.", "keep one kind: data-dir is a folder of one")
    if classes:
        refuse_unread(folder, classes)
        return read_images(classes, like)
    named = read_columns(columns, label)
    check_count(named, like)
    named = named or [Column(name) for name in name_inputs(files, label)]
    parts = [read_table(file, named, label, like) for file in files]
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


def list_columns(folder: Path, columns: Sequence[str], label: str) -> list[str]:
    """List the columns of a folder's tables that are read as inputs, in their order; none of images."""
    named = [column.name for column in read_columns(columns, label)]
    files = list_tables(folder)
    return (named or name_inputs(files, label)) if files else []


def list_tables(folder: Path) -> list[Path]:
    return [path for path in list_visible(folder) if path.suffix.lower() in SUFFIXES and path.is_file()]


def list_visible(folder: Path) -> list[Path]:
    """List what is in a folder, but for what other programs hide there: ._one.csv, .~lock.one.csv, ~one.csv."""
    return sorted(path for path in folder.iterdir() if not is_hidden(path))


def refuse_folders(folder: Path, others: Sequence[Path]) -> None:
    """Refuse folders with tables or images that would not be read."""
    kinds = (*SUFFIXES, *IMAGES)
    if names := [one.name for one in others if any(path.suffix.lower() in kinds for path in list_visible(one))]:
        raise DataError(f"{folder} holds folders that would not be read: {', '.join(names)}.", FILES)


def refuse_unread(folder: Path, classes: Sequence[Path]) -> None:
    """Refuse images of other kinds and tables beside images, and images elsewhere than in the folder of a class."""
    found = [path for path in folder.rglob("*") if path.suffix.lower() in (*IMAGES, *OTHER_IMAGES, *SUFFIXES)]
    found = [path for path in found if path.parent not in classes or path.suffix.lower() not in IMAGES]
    inside = sorted(path.relative_to(folder) for path in found if path.is_file())
    if names := [str(path) for path in inside if not lies_hidden(path)]:
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        raise DataError(f"{folder} holds files that would not be read: {', '.join(names[:5])}{more}.", FILES)


# ---- tables --------------------------------------------------------------------------------------------------------
def name_inputs(files: Sequence[Path], label: str) -> list[str]:
    """Name all columns but the label's, in the order of the alphabet; refuse tables that differ in them."""
    found = [sorted(name for name in read_cells(file, names_only=True) if name != label) for file in files]
    for file, names in zip(files, found, strict=True):
        if differing := sorted({*names} ^ {*found[0]}):
            raise DataError(
                f"{file} has other columns than {files[0].name}: they differ in {', '.join(differing[:20])}.",
                "give the columns the same names in all tables, or name those of inputs with --columns",
            )
    return found[0]


def read_table(file: Path, columns: Sequence[Column], label: str, like: Sample) -> Sample:
    """Read one table: the columns of inputs in their order, and the label's."""
    table, wanted = read_cells(file), [column.name for column in columns]
    for name in (*wanted, label):
        if name not in table:
            raise DataError(f"{file} has no column: {name}", nearest(name, list(table), "columns"))
    numbers = {name: to_numbers(file, name, table[name]) for name in (*wanted, label)}
    for column in columns:
        check_range(file, column, numbers[column.name])
    width = like[0].shape[1:].numel()
    if len(wanted) != width:
        raise DataError(
            f"{file} has {len(wanted)} columns of inputs, and the problem takes {width}.",
            f"name them with --columns; there are: {', '.join(wanted[:20])}",
        )
    inputs, target = np.stack([numbers[name] for name in wanted], 1), numbers[label]
    if not like[1].is_floating_point() and not np.array_equal(target, np.round(target)):
        line = f"column {label} of {file} holds fractions, and the label of this problem is a class."
        raise DataError(line, "write classes as 0, 1, 2, or name another column with --label")
    for name in wanted:
        check_type(f"column {name} of {file}", numbers[name], like[0].dtype)
    check_type(f"column {label} of {file}", target, like[1].dtype)
    return (
        torch.from_numpy(inputs).reshape(-1, *like[0].shape[1:]).to(like[0].dtype),
        torch.from_numpy(target).reshape(-1, *like[1].shape[1:]).to(like[1].dtype),
    )


def check_type(whose: str, values: NDArray[np.float64], dtype: torch.dtype) -> None:
    """Refuse numbers that the whole or logical numbers of a problem's sample would change."""
    if dtype.is_floating_point or dtype.is_complex:
        return
    low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    low, high = max(low, -EXACT), min(high, EXACT)
    if changed := int(((values != np.round(values)) | (values < low) | (values > high)).sum()):
        kind = str(dtype).removeprefix("torch.")
        raise DataError(
            f"{whose} has {changed} of {len(values)} values that {kind} cannot hold.",
            f"the problem's sample has whole numbers from {low} to {high}: correct the values, or give it another type",
        )


def check_range(file: Path, column: Column, values: NDArray[np.float64]) -> None:
    """Refuse a column with values outside of its range, as another unit gives."""
    name, low, high = column
    if outside := int(((values < low) | (values > high)).sum()):
        line = f"column {name} of {file} has {outside} of {len(values)} values outside of {low:g} … {high:g}."
        raise DataError(line, "is it in another unit? correct such values, or leave such samples out")


def read_cells(file: Path, *, names_only: bool = False) -> Mapping[str, Sequence[Any]]:
    """Read the cells of a table by the names of its columns; `names_only` leaves the cells out."""
    return (read_csv if file.suffix.lower() == ".csv" else read_parquet)(file, names_only)


def read_csv(file: Path, names_only: bool) -> Mapping[str, Sequence[Any]]:
    """Read a CSV file with a line of names; every other line has as many cells."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            names, *rows = [*islice(csv.reader(lines), 1 if names_only else None)] or [[]]
    except (OSError, UnicodeError, csv.Error) as error:
        raise DataError(f"{file} is not a CSV file: {error}", "its first line has the names, in UTF-8") from None
    if not names:
        raise DataError(f"{file} is not a CSV file: its first line is empty.", "it has the names, in UTF-8")
    refuse_numbers(file, names)
    if divider := name_divider(names):
        raise DataError(f"the cells of {file} are not divided by commas.", divider)
    names = [name.strip() for name in names]
    if len({*names}) < len(names):
        raise DataError(f"{file} names a column twice.", "give each column its own name")
    for number, row in enumerate(rows, 2):
        if row and len(row) != len(names):
            raise DataError(f"line {number} of {file} has {len(row)} cells, not {len(names)}.", "is it cut short?")
    return {name: [row[place] for row in rows if row] for place, name in enumerate(names)}


def read_parquet(file: Path, names_only: bool) -> Mapping[str, Sequence[Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise DataError(f"{file} needs the package pyarrow.", "pip install pyarrow, or write CSV files") from None
    try:
        names: list[str] = parquet.read_schema(file).names
        return dict.fromkeys(names, ()) if names_only else dict(parquet.read_table(file).to_pydict())
    except (OSError, ArrowException) as error:
        raise DataError(f"{file} is not a Parquet file: {first_line(error)}", "write it anew, or as CSV") from None


def to_numbers(file: Path, name: str, cells: Sequence[Any]) -> NDArray[np.float64]:
    """Turn the cells of a column into numbers; refuse a cell that is missing or is no number, and say where."""
    found = np.empty(len(cells), dtype=np.float64)
    for place, cell in enumerate(cells):
        text = "" if cell is None else str(cell).strip()
        try:
            found[place] = float("word" if "_" in text else cell if text else "nan")  # Python would read 1_0 as ten
        except (TypeError, ValueError):
            raise DataError(
                f"column {name} of {file} holds a word in sample {place + 1}.",
                f"write it as a number: {text[:20]!r}",  # a hint stays at the site
            ) from None
    if missing := int((~np.isfinite(found)).sum()):
        raise DataError(
            f"column {name} of {file} lacks {missing} of {len(found)} values.", "leave such samples out, or fill them"
        )
    return found


# ---- images --------------------------------------------------------------------------------------------------------
def read_images(classes: Sequence[Path], like: Sample) -> Sample:
    """Read images from a folder for each class, which its number names; all are brought to the problem's size."""
    shape = tuple(like[0].shape[1:])
    if len(shape) != 3 or shape[0] not in (1, 3):
        line = f"images have the shape (1 or 3, height, width), and a sample of this problem {shape}."
        raise DataError(line, "put tables there, or write a loader: --data module:function")
    pictures, labels = list[Tensor](), list[int]()
    for folder in classes:
        for file in [path for path in list_visible(folder) if path.suffix.lower() in IMAGES]:
            image = torch.from_numpy(decode_image(str(file), file.read_bytes(), shape, resize=True).copy())
            pictures.append(image.unsqueeze(0) if image.dim() == 2 else image.permute(2, 0, 1))
            labels.append(int(folder.name))
    if not pictures:
        raise DataError(f"{classes[0].parent} holds no image.", f"they end in {', '.join(IMAGES)}")
    check_type(f"the classes of {classes[0].parent}", np.array(labels, np.float64), like[1].dtype)
    inputs = torch.stack(pictures)
    if like[0].is_floating_point():
        inputs = inputs.to(like[0].dtype) / 255
    return inputs, torch.tensor(labels).reshape(-1, *like[1].shape[1:]).to(like[1].dtype)
