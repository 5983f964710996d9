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
            say(self.console, record.levelname.lower(), "bold yellow", record.getMessage())
        elif record.getMessage() not in self.noted:  # runs side by side have the same to say
            self.noted.add(record.getMessage())
            say(self.console, "note", "dim", record.getMessage())


@contextlib.contextmanager
def warnings_told() -> Iterator[None]:
    """Within the block warnings are told."""
    handler = Logged(stderr(), logging.WARNING)
    LOG.addHandler(handler)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
