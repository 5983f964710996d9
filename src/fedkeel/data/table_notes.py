"""Warnings about tables: an index that is no input, and whole numbers that float32 merges."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from fedkeel.data.tables import Label, Table, is_numeric

log = logging.getLogger("fedkeel")

EXACT = 2**24
"""Up to here float32 tells all whole numbers apart."""


def warn_of_index(tables: Sequence[Table], label: Label | None) -> None:
    """Name the index of a table, which is no input unless it is asked for."""
    for table in tables:
        if left := [name for name in table.index if name not in table.labels(label)]:
            log.warning(
                "the index of %s is no input: %s; columns= or label= may name it, and frame.reset_index() makes it a "
                "column",
                table.whose,
                ", ".join(left),
            )
            return


def warn_of_merged(tables: Sequence[Table], columns: Sequence[str]) -> None:
    """Name the inputs with whole numbers that are different, and the same as float32."""
    filled = [table for table in tables if len(table.frame)]
    if not filled:
        return
    import pandas

    for name in columns:
        cells = pandas.concat([table.column(name) for table in filled])
        if not is_numeric(cells) or cells.dtype == bool or not max(cells.max(), -cells.min()) > EXACT:
            continue
        kept, distinct = len(np.unique(cells.to_numpy(np.float32))), cells.nunique()
        if kept < distinct and bool((cells % 1 == 0).all()):
            log.warning(
                "column %s holds whole numbers above 2^24, and float32 merges its %d distinct values into %d; "
                "columns=[…] leaves out ids, and amounts may be scaled before",
                name,
                distinct,
                kept,
            )
