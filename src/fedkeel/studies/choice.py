"""What a sweep or a search chose, kept in its folder: its final runs, and the keys that every method could choose.

Tuning scores settings on validation data and with one seed. Their runs stand beside the final ones, but a comparison on
the test set is of the final ones alone.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedkeel.core.states import write_text
from fedkeel.runs.folder import read_json

CHOICE = "sweep.json"


@dataclass(frozen=True)
class Choice:
    """The final runs by the names of their folders, in its order, and what was `tuned` for each method."""

    runs: Sequence[str]
    tuned: Collection[str]

    def pick(self, found: Sequence[Path]) -> list[Path]:
        """Take the final runs of those that were found."""
        by_name = {path.name: path for path in found}
        return [by_name[name] for name in self.runs if name in by_name]


def write_choice(folder: Path, choice: Choice) -> None:
    """Note what was chosen; the last sweep or search of a folder counts."""
    data = {"runs": list(choice.runs), "tuned": sorted(choice.tuned)}
    write_text(folder / CHOICE, json.dumps(data, indent=2) + "\n")


def read_choice(folder: Path) -> Choice | None:
    """Read what was chosen; nothing where there was no sweep or search, or an older version made it."""
    data = read_json(folder / CHOICE)
    lists = [data.get(name) for name in ("runs", "tuned")]
    runs, tuned = ([one for one in found if isinstance(one, str)] if isinstance(found, list) else [] for found in lists)
    return Choice(runs, tuned) if runs else None
