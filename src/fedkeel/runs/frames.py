"""Runs as tables of pandas, which is optional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedkeel.errors import RequestError
from fedkeel.runs.record import RoundRecord

if TYPE_CHECKING:
    import pandas

FACTS = ("accuracy", "loss", "drift", "backward_passes", "bytes_down", "bytes_up", "seconds")


def make_frame(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Make a DataFrame of rows; say what to install where there is no pandas."""
    try:
        import pandas
    except ImportError as error:
        raise RequestError("a DataFrame needs pandas, which is not installed.", "pip install pandas") from error
    return pandas.DataFrame(list(rows))


def round_rows(records: Sequence[RoundRecord], **named: Any) -> list[dict[str, Any]]:
    """One row for each round: what it measured and what it cost."""
    return [
        {**named, "round": record.round, **{name: getattr(record, name) for name in FACTS}, **record.extra}
        for record in records
    ]


def client_rows(
    records: Sequence[RoundRecord], sizes: Sequence[int] | None = None, **named: Any
) -> list[dict[str, Any]]:
    """One row for each client and evaluated round, with its scores; `sizes` are of their training data."""
    rows = []
    for record in records:
        for client in range(max(map(len, record.clients.values()), default=0)):
            scores = {name: values[client] for name, values in record.clients.items()}
            if any(value is not None for value in scores.values()):
                size = {} if sizes is None or client >= len(sizes) else {"size": sizes[client]}
                rows.append({**named, "round": record.round, "client": client, **size, **scores})
    return rows
