"""The ledger: one line for each run of a published cell, kept with the project. No number in it is typed by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from fedkeel.errors import RequestError

LEDGER = Path("results") / "ledger.jsonl"


@dataclass(frozen=True)
class Entry:
    """What was measured for one cell with one seed, and where."""

    paper: str
    table: str
    row: str
    column: str
    seed: int
    kind: str
    evaluation: str
    reported: float | None
    spread: float | None
    measured: float | None
    best: float | None
    last: float | None
    mean_last: float | None
    rounds: int
    rounds_paper: int
    seconds: float
    fingerprint: str
    model_digest: str
    uncertain: bool = False
    source: str = "own run"
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def shortened(self) -> bool:
        return self.rounds < self.rounds_paper

    @property
    def cell(self) -> tuple[str, str, str, str]:
        return self.paper, self.table, self.row, self.column

    @property
    def identity(self) -> tuple[Any, ...]:
        """Runs of one identity are the same run; the newest counts."""
        return *self.cell, self.seed, self.rounds, self.fingerprint

    def dumps(self) -> str:
        return json.dumps(asdict(self) | {"shortened": self.shortened}, sort_keys=True, ensure_ascii=False)


def append(entry: Entry, path: Path = LEDGER) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as lines:
        lines.write(entry.dumps() + "\n")


def read(path: Path = LEDGER) -> list[Entry]:
    """Every run once, the newest where it was made again."""
    if not path.exists():
        return []
    known = {f.name for f in fields(Entry)}
    found: dict[tuple[Any, ...], Entry] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            entry = Entry(**{name: value for name, value in json.loads(line).items() if name in known})
        except (json.JSONDecodeError, TypeError) as error:
            raise RequestError(
                f"{path} is damaged in line {number}: {error}", "restore it from version control"
            ) from None
        found[entry.identity] = entry
    return list(found.values())


def of_cell(entries: Iterable[Entry], cell: tuple[str, str, str, str], rounds: int | None = None) -> list[Entry]:
    """The runs of one cell; of the longest length made, unless a length is asked for."""
    mine = [entry for entry in entries if entry.cell == cell]
    length = rounds if rounds is not None else max((entry.rounds for entry in mine), default=0)
    return sorted((entry for entry in mine if entry.rounds == length), key=lambda entry: entry.seed)
