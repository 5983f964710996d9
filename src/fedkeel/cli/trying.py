"""`fedkeel reproduce --try`: a cell with several other choices, each named by what is tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from fedkeel.cli.settings import parse_assignment
from fedkeel.errors import RequestError
from fedkeel.papers import Cell
from fedkeel.papers.reproduce import varied


@dataclass(frozen=True)
class TriedCell(Cell):
    """A cell with one setting changed. Its label says which; the ledger keeps it under the same row and column."""

    choice: str = ""

    @property
    def label(self) -> str:
        return f"{super().label} ({self.choice})"


def try_choices(cells: Sequence[Cell], text: str) -> list[Cell]:
    """The cells with each value of `lr=0.01,0.05` in turn."""
    return [
        TriedCell(**{one.name: getattr(cell, one.name) for one in fields(Cell)}, choice=choice)
        for choice in list_alternatives(text)
        for cell in varied(cells, [parse_assignment(choice)])
    ]


def list_alternatives(text: str) -> list[str]:
    """`lr=0.01,0.05` as one assignment for each value."""
    key, _, values = text.partition("=")
    if not values.strip():
        raise RequestError(f"--try needs key=values: {text}", "for example --try lr=0.01,0.05")
    return [f"{key.strip()}={value.strip()}" for value in values.split(",")]
