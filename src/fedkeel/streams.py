"""The standard streams of a process: one that is closed or full loses what is written to it, and nothing else."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple


def open_missing() -> None:
    """Give a process that was started without a standard stream an empty one: the next file would take its number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number is this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))


class LastingStream(io.TextIOBase):
    """A stream that drops what cannot be written any more; `problem` says why it could not."""

    def __init__(self, stream: Any):
        self.stream = stream
        self.problem: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return str(self.stream.encoding or "utf-8")

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        errors: str | None = self.stream.errors
        return errors

    @property
    def buffer(self) -> Any:
        return self.stream.buffer

    def isatty(self) -> bool:
        return bool(self.stream.isatty())

    def fileno(self) -> int:
        return int(self.stream.fileno())

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        try:
            if not getattr(self.stream, "closed", False):
                self.stream.write(text)
        except OSError as error:
            self.give_up(error)
        return len(text)

    def flush(self) -> None:
        try:
            if not getattr(self.stream, "closed", False):  # Python 3.13 flushes what it collects
                self.stream.flush()
        except OSError as error:
            self.give_up(error)

    def give_up(self, error: OSError) -> None:
        """Send what is still in the buffer, and all that follows, nowhere."""
        self.problem = self.problem or error
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())
            os.close(nowhere)


class Streams(NamedTuple):
    out: LastingStream
    err: LastingStream


@contextlib.contextmanager
def survive_lost_streams() -> Iterator[Streams]:
    """Within the block, a stream that is closed or full does not end the process."""
    open_missing()
    before, streams = (sys.stdout, sys.stderr), Streams(LastingStream(sys.stdout), LastingStream(sys.stderr))
    sys.stdout, sys.stderr = streams
    try:
        yield streams
    finally:
        for stream in streams:
            stream.flush()
        sys.stdout, sys.stderr = before
