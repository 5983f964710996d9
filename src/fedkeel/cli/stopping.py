"""Signals that end a command: an exception that leaves every block in order, so that checkpoints are written."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """The user (Ctrl-C) or the system (SIGTERM) wants the command to end; click would keep a KeyboardInterrupt."""

    def __init__(self, number: int):
        super().__init__(number)
        self.exit_code = 128 + number

    def __str__(self) -> str:
        return "interrupted" if self.exit_code == 130 else "terminated"


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """Within the block SIGINT and SIGTERM raise `Stopped`.

    Also in a process that a script started in the background, with SIGINT ignored: stopping loses nothing.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
