"""Files of lines that several processes append to, and that a killed one may leave with half a line at the end."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable
from pathlib import Path

from filelock import lock_descriptor

log = logging.getLogger("fedkeel")
Reader = Callable[[bytes], object]
"""Reads a line; what is none raises a ValueError, TypeError or RecursionError."""


def is_torn(last: bytes, read: Reader) -> bool:
    """Whether what follows the last end of a line is not a line of the file."""
    try:
        read(last)
    except (ValueError, TypeError, RecursionError):
        return True
    return False


def append_line(path: Path, text: str, read: Reader) -> None:
    """Add a line. Half a line at the end, which a process that was killed leaves behind, is put aside first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+", buffering=0) as lines:  # a buffer would write its rest when the file is closed
        lock_descriptor(lines.fileno())  # until the file is closed
        last = read_last(lines)
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


def read_last(lines: io.FileIO, step: int = 1 << 16) -> bytes:
    """What follows the last end of a line."""
    start, tail = lines.seek(0, os.SEEK_END), b""
    while start and b"\n" not in tail:
        count = min(step, start)
        start = lines.seek(start - count)
        tail = lines.read(count) + tail
    return tail.rpartition(b"\n")[2]


def read_whole_lines(path: Path, read: Reader) -> list[bytes]:
    """Return the lines of a file; half a line at its end is left out, with a warning."""
    *lines, last = path.read_bytes().split(b"\n")
    if last.strip() and is_torn(last, read):
        log.warning("the last line of %s is not whole, and is left out", path)
    else:
        lines.append(last)
    return lines
