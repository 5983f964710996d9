"""The audit log of a federation: a chain of lines, each of which holds the hash of the one before it.

Whoever changes, removes or inserts a line breaks the chain. Whoever makes the whole chain anew has other hashes than
those that the sites were sent with every round and keep in their state-dir.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedkeel.errors import FolderError
from fedkeel.runs.folder import read_text

AUDIT = "-audit.jsonl"
START = "0" * 64
"""What the first line follows."""


def hash_line(line: Mapping[str, Any]) -> str:
    """Compute the hash of a line without its own."""
    text = json.dumps({name: value for name, value in line.items() if name != "hash"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read_chain(file: Path) -> list[dict[str, Any]]:
    """Read an audit log; refuse one that was altered, and name the line. A last line that is half written is left out.

    A server that is killed while it writes leaves such a line; it is replaced at the next start.
    """
    lines, head = list[dict[str, Any]](), START
    *whole, _ = read_text(file).split("\n")
    for number, text in enumerate(whole, 1):
        try:
            line = json.loads(text)
            sound = line["line"] == number and line["before"] == head and line["hash"] == hash_line(line)
        except (ValueError, TypeError, KeyError, RecursionError):
            sound = False
        if not sound:
            raise FolderError(
                f"{file} was altered: line {number} does not follow from those before it.",
                "compare it with a copy, and ask who can write it",
            )
        lines.append(line)
        head = line["hash"]
    return lines


class AuditLog:
    """Appends lines to a chain; one that was altered is not gone on with."""

    def __init__(self, file: Path):
        self.file = file
        lines = read_chain(file) if file.exists() else []
        self.number, self.head = len(lines), lines[-1]["hash"] if lines else START
        if file.exists():
            kept = file.read_bytes()
            if not kept.endswith(b"\n") and kept:  # the server was killed while it wrote
                file.write_bytes(kept[: kept.rfind(b"\n") + 1])

    def write(self, event: str, facts: Mapping[str, Any]) -> None:
        """Append one event, on disk before anything follows from it; if that fails, the file is as long as before."""
        line = {"line": self.number + 1, "time": datetime.now(UTC).isoformat(timespec="seconds"), "event": event}
        line |= {**facts, "before": self.head}
        line["hash"] = hash_line(line)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        left = json.dumps(line, sort_keys=True).encode() + b"\n"
        with self.file.open("ab", buffering=0) as file:  # a buffer would write its rest when the file is closed
            before = file.seek(0, os.SEEK_END)
            try:
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(before)
                raise
        self.number, self.head = self.number + 1, line["hash"]


def check_witness(lines: Sequence[Mapping[str, Any]], file: Path) -> int:
    """Compare a chain with what a site was sent; return how many of its lines the site has seen.

    A site keeps the hash of the last line, with every round that it was asked in. A last line that is half written is
    left out: a node that is killed leaves it, and replaces it in its next round.
    """
    known, latest = {line["hash"]: int(line["line"]) for line in lines}, 0
    *whole, _ = read_text(file).split("\n")
    for number, text in enumerate(whole, 1):
        try:
            head = str(json.loads(text)["head"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise FolderError(f"{file} is damaged in line {number}.", "restore it from a copy") from None
        if head not in known:
            raise FolderError(
                f"the site was sent another audit log: line {number} of {file} is not in this one.",
                "the log was made anew, or is that of another federation",
            )
        latest = max(latest, known[head])
    return latest
