"""Checksums of a run's plain files, in a file beside them: the files themselves stay as they are.

    1 8c736521            of the first line of rounds.jsonl
    2 0d4a1185            of the first two
    result.json 5ed1ab2f

A line follows what it covers. Folders of older versions have no such file, and are read without it.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from fedkeel.errors import FolderError, explain_os_errors

SUMS = "sums.txt"


def read_text(path: Path, hint: str = "restore it from a copy") -> str:
    """Read a file of a run as text; what cannot be read is an error in one line."""
    try:
        with explain_os_errors(f"cannot read {path}", "put the file back, or allow it to be read; nothing was changed"):
            return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FolderError(f"{path} is damaged: it is not text ({error.reason}).", hint) from None


def checksum(text: str, before: int = 0) -> int:
    """Compute the checksum of a text that follows what has the checksum `before`."""
    return zlib.crc32(text.encode("utf-8", "surrogateescape"), before)


def line_of(name: object, total: int) -> str:
    return f"{name} {total:08x}\n"


def read_sums(folder: Path) -> dict[str, str]:
    """Read the checksum of each name; a half-written last line does not count."""
    file = folder / SUMS
    if not file.exists():
        return {}
    text = read_text(file, "restore it from a copy, or remove it: rounds are then read unchecked")
    pairs = (line.split(" ", 1) for line in text.split("\n")[:-1])
    return {pair[0]: pair[-1] for pair in pairs}
