"""What the library logs, on stderr: warnings while any command works, and more while a run is followed."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from rich.console import Console

from fedkeel.cli.console import say, stderr

LOG = logging.getLogger("fedkeel")


class Logged(logging.Handler):
    """What the library logs, above the bars if there are any."""

    def __init__(self, console: Console, level: int):
        super().__init__(level)
        self.console, self.noted = console, set[str]()

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            say(self.console, getattr(record, "word", record.levelname.lower()), "bold yellow", record.getMessage())
        elif record.getMessage() not in self.noted:  # runs side by side have the same to say
            self.noted.add(record.getMessage())
            say(self.console, "note", "dim", record.getMessage())


@contextlib.contextmanager
def show_log(log: logging.Logger, level: int, console: Console | None = None) -> Iterator[None]:
    """Within the block, what is logged from a level on is shown: here alone, not by the blocks around it."""
    handlers, before, propagate = log.handlers[:], log.level, log.propagate
    ours = [handler for handler in log.handlers if isinstance(handler, Logged)]
    log.handlers = [handler for handler in log.handlers if handler not in ours]
    log.addHandler(Logged(console or stderr(), level))
    log.setLevel(level)
    log.propagate = log.propagate and log is LOG
    try:
        yield
    finally:
        log.handlers, log.propagate = handlers, propagate
        log.setLevel(before)  # a plain assignment would leave the logger's cache of levels as it is
