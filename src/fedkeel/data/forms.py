"""Data as they come: tensors, samples, map-style data sets and tables become tensors of equal length."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    default_convert,
)

from fedkeel.data.class_numbers import check_class_numbers
from fedkeel.data.clients import TARGETS, find_target
from fedkeel.data.samples import collate, walk
from fedkeel.data.table_files import DIVIDE, advise_by_name
from fedkeel.data.table_notes import warn_of_index, warn_of_merged
from fedkeel.data.tables import Label, Table, find_targets, is_frame, open_folder, open_table
from fedkeel.errors import DataError

log = logging.getLogger("fedkeel")

EXPECTED = (
    "tensors or arrays (x, y), a dict of them, a list of samples (x, y), a map-style Dataset, "
    "a DataFrame with a label column, or the path of a CSV or Parquet file"
)
WORDS = "give a tensor, or a tuple or dict of them; words are numbered, texts of unequal length are padded"
SHOWN = 60  # letters of a text
WHOLE = "give one part for each client: clients=[…]"
BATCHES = "give the data set itself, or a Subset of it: the experiment draws the batches"


def copy_containers(given: Any) -> Any:
    """The same data in lists and dicts of their own: the caller may change theirs. Tensors and arrays stay."""
    if isinstance(given, dict):
        return {name: copy_containers(one) for name, one in given.items()}
    if type(given) not in (list, tuple):
        return given
    deeper = not {dict, list, tuple}.isdisjoint(map(type, given))  # numbers in a list are many
    return type(given)(map(copy_containers, given) if deeper else given)


@dataclass(frozen=True)
class Forms:
    """The data of a problem, each part as tensors or as an object that knows its rows, and the inputs of its tables."""

    clients: Any
    test: Any
    tests: Any
    proxy: Any
    columns: tuple[str, ...] | None


def read_forms(
    clients: Any, test: Any, tests: Any, proxy: Any, label: Label | None, columns: Sequence[str] | None = None
) -> Forms:
    """Read all data of a problem; labels in tables are the same in all of them: words, fractions or whole numbers.

    `columns` names the inputs of tables in their order; without it all but the label are, as the first table has them.
    """
    if isinstance(clients, str | Path):
        clients, inside = open_folder(Path(clients).expanduser())
        if test is not None and inside is not None:
            log.warning("%s is not read: test= gives another test set", inside.whose)
        test = inside if test is None else test
    opened = Forms(open_each(clients, "client"), open_one(test), open_each(tests, "test set"), open_one(proxy), None)
    check_class_numbers(name_parts(opened), label)
    of_clients = list_parts(opened.clients)
    others = [*list_parts(opened.tests), *list_parts([opened.test, opened.proxy])]
    tables = [one for one in (*of_clients, *others) if isinstance(one, Table)]
    names = tables[0].columns(label) if tables and columns is None else tuple(columns or ())
    if columns is None:
        warn_of_index(tables, label)
    targets = find_targets(tables, label, sum(isinstance(one, Table) for one in of_clients))
    if targets.words and len(tables) < len(of_clients) + len(others):
        raise DataError(
            "labels of a table are words, and other data of the problem are no tables.",
            "number the labels yourself in all of them, or give all of them as tables",
        )

    def read(one: Any, whose: str) -> Any:
        if isinstance(one, Table):
            table = one if columns is None else one.choose(names, label)
            return table.tensors(label, names, targets)
        return one if hasattr(one, "rows") else read_data(one, whose, label)

    def read_each(part: Any, word: str) -> Any:
        if not isinstance(part, Sequence) or hasattr(part, "sizes"):
            return part
        made = [read(one, f"{word} {i}") for i, one in enumerate(part)]
        return part if all(a is b for a, b in zip(made, part, strict=True)) else made

    def read_one(one: Any, whose: str) -> Any:
        return None if one is None else read(one, whose)

    made = Forms(
        read_each(opened.clients, "client"),
        read_one(opened.test, "the test set"),
        read_each(opened.tests, "the test set of client"),
        read_one(opened.proxy, "the proxy data"),
        names or None,
    )
    warn_of_merged(tables, names)
    return made


def list_parts(part: Any) -> list[Any]:
    """The data of each, without those that are not there; data that know their sizes stay one part."""
    return [one for one in (part if isinstance(part, list) else [part]) if one is not None]


def name_parts(opened: Forms) -> Iterator[tuple[Any, str]]:
    """All data, each with the words for whose they are."""
    for part, word in ((opened.clients, "client"), (opened.tests, "the test set of client")):
        if isinstance(part, Sequence) and not hasattr(part, "sizes"):
            yield from ((one, f"{word} {i}") for i, one in enumerate(part))
    yield from ((opened.test, "the test set"), (opened.proxy, "the proxy data"))


def open_each(part: Any, word: str) -> Any:
    """Open the tables among the data of clients; data that know their sizes stay as they are."""
    if isinstance(part, Tensor | np.ndarray) or is_frame(part):
        hint = DIVIDE if is_frame(part) else WHOLE
        raise DataError(f"clients are a list of the data of each, not one {type(part).__name__}.", hint)
    if not isinstance(part, Sequence) or isinstance(part, str) or hasattr(part, "sizes"):
        return part
    if not any(isinstance(one, str | Path) or is_frame(one) for one in part):
        return part
    return [open_one(one, f"{word} {i}") for i, one in enumerate(part)]


def open_one(one: Any, whose: str = "the test set") -> Any:
    if isinstance(one, str | Path):
        return open_table(Path(one).expanduser())
    return Table(one, whose) if is_frame(one) else one


def read_data(given: Any, whose: str, label: Label | None) -> Any:
    """Return the data of one client as tensors: one, a tuple of them or a dict; refuse what is none of these."""
    if isinstance(given, DataLoader):
        given = read_loader(given, whose)
    if isinstance(given, TensorDataset):
        given = given.tensors
    elif is_list_of_samples(given):
        given = collate(given, whose)
    elif is_map_style(given):
        given = collate(list(walk(given, whose)), whose)
    refuse_words(given, whose)
    if isinstance(given, Mapping):
        return name_target(given if isinstance(given, dict) else dict(given), label, whose)  # a file may be closed
    if isinstance(given, Tensor | np.ndarray | tuple | list):
        return given
    extra = "; one that can only be walked through is given as list(…)" if isinstance(given, IterableDataset) else ""
    raise DataError(
        f"{whose} is of type {type(given).__name__}; expected: {EXPECTED}.", f"clients=[(x0, y0), …]{extra}"
    )


def refuse_words(given: Any, whose: str) -> None:
    """Refuse parts of data that are words, as the names of files are."""
    parts = given.values() if isinstance(given, dict) else given if isinstance(given, tuple | list) else ()
    firsts = (part[0] if isinstance(part, tuple | list) and part else part for part in parts)
    if (word := next((one for one in firsts if isinstance(one, str | Path)), None)) is not None:
        said = str(word)[:SHOWN]
        raise DataError(f"{whose} holds a word where numbers belong: {said}", advise_by_name(Path(word)) or WORDS)


def read_loader(loader: DataLoader[Any], whose: str) -> Any:
    """Return the data set of a loader, or the rows of it that its sampler names; refuse what cannot be kept of it."""
    data = loader.dataset
    if isinstance(data, IterableDataset):
        return data
    if loader.collate_fn not in (default_collate, default_convert):
        raise DataError(
            f"the DataLoader of {whose} joins samples in a way of its own (collate_fn), which would be lost.",
            "call it once with all samples, clients=[collate_fn(list(dataset)), …], or write prepare",
        )
    if loader.batch_size is None and loader.batch_sampler is not None:
        raise DataError(f"the DataLoader of {whose} has a batch sampler of its own, which would be lost.", BATCHES)
    if isinstance(loader.sampler, SequentialSampler):
        return data
    rows = find_rows(loader.sampler, len(data))  # type: ignore[arg-type]
    if rows is None:
        kind = type(loader.sampler).__name__
        raise DataError(f"the DataLoader of {whose} draws other samples each time, or some twice ({kind}).", BATCHES)
    return data if len(rows) == len(data) else Subset(data, rows)  # type: ignore[arg-type]


def find_rows(sampler: Any, size: int) -> list[int] | None:
    """The rows that a sampler goes through each time, in their order; None where it draws others, or one twice."""
    if isinstance(sampler, RandomSampler):
        return list(range(size)) if not sampler.replacement and sampler.num_samples == size else None
    if isinstance(sampler, WeightedRandomSampler):
        return None
    with torch.random.fork_rng(devices=[]):
        first, again = (sorted(map(int, islice(sampler, size + 1))) for _ in range(2))  # it may go on for ever
    return first if first == again and len({*first}) == len(first) else None


def is_list_of_samples(given: Any) -> bool:
    """Whether it is a list of (x, y) or of dicts; a list of tensors is a list of parts."""
    return isinstance(given, list) and bool(given) and all(isinstance(one, tuple | Mapping) for one in given)


def is_map_style(given: Any) -> bool:
    known = isinstance(given, Tensor | np.ndarray | tuple | list | Mapping | str | bytes | IterableDataset)
    return not known and all(hasattr(type(given), name) for name in ("__len__", "__getitem__"))


def name_target(given: Mapping[str, Any], label: Label | None, whose: str) -> Mapping[str, Any]:
    """Call the part that is the label as targets are called, unless it would be taken for the target anyway."""
    if label is None or label == find_target(given):
        return given
    if not isinstance(label, str) or label not in given:
        raise DataError(
            f"{whose} has no part called {label}; it has: {', '.join(map(str, given))}.", "label= names one of them"
        )
    if TARGETS[0] in given:
        raise DataError(
            f"{whose} has a part called {TARGETS[0]}, as targets are, beside the target {label}.",
            f"give {TARGETS[0]} another name, or leave it out",
        )
    return {name: part for name, part in given.items() if name != label} | {TARGETS[0]: given[label]}
