"""How a run in Python is followed: one line, written again after every round, in a terminal or a notebook."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TextIO

from fedkeel.errors import RequestError
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.finished_run import Run
from fedkeel.runs.loop import Progress
from fedkeel.runs.record import RoundRecord, describe_stop
from fedkeel.text import duration

WIDTH = 24


def follow(progress: Progress | bool | None) -> Progress | None:
    """Return who follows a run: a line where someone looks at it (None), always (True), or never (False)."""
    if not isinstance(progress, bool) and progress is not None:
        if not hasattr(progress, "started"):
            raise RequestError(
                f"progress is True, False, None or a follower, not {type(progress).__name__}.",
                "a follower has the methods started, round and finished",
            )
        return progress
    return ProgressLine(sys.stderr) if progress or (progress is None and is_watched()) else None


def is_watched() -> bool:
    """Whether someone looks on: in a terminal, or in a notebook."""
    with contextlib.suppress(AttributeError, ValueError):  # none, or a closed one
        return sys.stderr.isatty() or "ipykernel" in sys.modules
    return False


class ProgressLine:
    """A bar, what the last round reached, and how long the rest will take."""

    def __init__(self, stream: TextIO):
        self.stream, self.began, self.first = stream, 0.0, 0
        self.label, self.rounds, self.length = "", 0, 0

    def started(self, experiment: Experiment, done: int, engine: str) -> None:
        self.label, self.rounds = experiment.plan.method.name, experiment.plan.rounds
        self.began, self.first = time.monotonic(), done
        self.write(done, f"engine {engine}")

    def round(self, record: RoundRecord) -> None:
        parts = [] if record.accuracy is None else [f"accuracy {100 * record.accuracy:.1f} %"]
        parts += [] if record.loss is None else [f"loss {record.loss:.3g}"]
        each = (time.monotonic() - self.began) / max(1, record.round - self.first)
        left = self.rounds - record.round
        self.write(record.round, "  ".join([*parts, f"{duration(each * left)} left" if left else ""]).rstrip())

    def finished(self, run: Run) -> None:
        stopped = describe_stop(run.result)
        self.put(f"  {stopped}\n" if stopped else "\n")
        self.length = 0

    def end(self) -> None:
        """End the progress line of a run that was interrupted, so that the next words begin a new line."""
        if self.length:
            self.put("\n")
            self.length = 0

    def write(self, done: int, text: str) -> None:
        filled = WIDTH * done // max(1, self.rounds)
        line = f"{self.label} [{'#' * filled}{'.' * (WIDTH - filled)}] {done}/{self.rounds}  {text}"
        self.put(f"\r{line.ljust(self.length)}")
        self.length = len(line)

    def put(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a closed stream ends no run
            self.stream.write(text)
            self.stream.flush()
