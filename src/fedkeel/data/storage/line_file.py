"""Files of lines that several processes append to, and that a killed one may leave with half a line at the end."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from filelock import lock_descriptor

log = logging.getLogger("fedkeel")
Reader = Callable[[bytes], object]
"""Reads a line; what is none raises a ValueError, TypeError or RecursionError."""
UNREADABLE = (ValueError, TypeError, RecursionError)


def is_torn(last: bytes, read: Reader) -> bool:
    """Whether what follows the last end of a line is not a line of the file."""
    try:
        read(last)
    except UNREADABLE:
        return True
    return False


def append_line(path: Path, text: str, read: Reader, is_known: Callable[[bytes], bool] | None = None) -> None:
    """Add a line, unless one that is there is known for the same. Half a line at the end, which a process that was
    killed leaves behind, is put aside first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+", buffering=0) as lines:  # a buffer would write its rest when the file is closed
        lock_descriptor(lines.fileno())  # until the file is closed
        lines.seek(0)
        *whole, last = lines.read().split(b"\n")
        if is_known is not None and any(_is_one(line, is_known) for line in [*whole, last]):
            return
        end = lines.seek(0, os.SEEK_END)
        if last and is_torn(last, read):
            aside = path.with_name(f"{path.name}.torn")
            with aside.open("ab") as kept:
                kept.write(last + b"\n")
            end = lines.truncate(end - len(last))
            log.warning("the last line of %s was not whole: it was put aside in %s", path, aside)
            last = b""
        try:
            line = (b"\n" if last else b"") + f"{text}\n".encode()  # an editor may leave out the end of the last line
            while line:
                line = line[lines.write(line) :]
        except OSError:  # no half line stays behind
            lines.truncate(end)
            raise


def _is_one(line: bytes, is_known: Callable[[bytes], bool]) -> bool:
    try:
        return bool(line.strip()) and is_known(line)
    except UNREADABLE:
        return False


def read_whole_lines(path: Path, read: Reader) -> list[bytes]:
    """Return the lines of a file; half a line at its end is left out, with a warning."""
    *lines, last = path.read_bytes().split(b"\n")
    if last.strip() and is_torn(last, read):
        _warn_of_half(path, last)
    else:
        lines.append(last)
    return lines


@cache
def _warn_of_half(path: Path, last: bytes) -> None:
    """Warn of half a line: once, though a command reads its file several times."""
    log.warning("the last line of %s is not whole, and is left out", path)
