"""`fedkeel reproduce --try`: a cell with several other choices, each named by what is tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import product

from fedkeel.cli.settings import parse_assignment
from fedkeel.errors import RequestError
from fedkeel.papers import Cell
from fedkeel.papers.reproduce import varied


@dataclass(frozen=True)
class TriedCell(Cell):
    """A cell with settings changed. Its label says which; the ledger keeps it under the same row and column."""

    choice: str = ""

    @property
    def label(self) -> str:
        return f"{super().label} ({self.choice})"


def try_choices(cells: Sequence[Cell], texts: Sequence[str]) -> list[Cell]:
    """The cells with each value of `lr=0.01,0.05` in turn; of several such texts, with every combination."""
    keys = [text.partition("=")[0].strip() for text in texts]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise RequestError(f"given twice: --try {twice[0]}=…", f"write its values once: --try {twice[0]}=A,B")
    return [
        TriedCell(**{one.name: getattr(cell, one.name) for one in fields(Cell)}, choice=", ".join(choices))
        for choices in product(*map(list_alternatives, texts))
        for cell in varied(cells, [parse_assignment(choice) for choice in choices])
    ]


def list_alternatives(text: str) -> list[str]:
    """`lr=0.01,0.05` as one assignment for each value."""
    key, _, values = text.partition("=")
    if not all(part.strip() for part in (*key.split("."), values)):
        raise RequestError(f"--try needs key=values: {text}", "for example --try lr=0.01,0.05")
    return [f"{key.strip()}={value.strip()}" for value in values.split(",")]
