"""How runs are followed: bars in a terminal, else one line per round."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from fedkeel.cli.console import measured, stderr
from fedkeel.cli.telling import LOG, show_log
from fedkeel.text import byte_size, duration

if TYPE_CHECKING:
    from fedkeel.runs.experiment import Experiment
    from fedkeel.runs.finished_run import Run
    from fedkeel.runs.loop import Progress as Watcher
    from fedkeel.runs.record import RoundRecord


ROOM = {"accuracy": 28, "time": 36, "told": 64, "bar": 76}
"""Columns of a window, beside the name, from which on a part of a line is shown."""


def gpu_memory() -> tuple[int, int] | None:
    """Bytes of the GPU's memory that this process holds, and all there are; None when the run is not on one.

    Torch's own allocator counts them: nothing is asked of the driver, so no round waits for it.
    """
    import torch

    if not torch.cuda.is_initialized() or not (held := torch.cuda.memory_reserved()):
        return None
    return held, torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory


def display(progress: bool, labels: list[str]) -> Display:
    """The display that fits: none when it is not wanted, bars in a terminal, else lines."""
    console = stderr()
    if not progress:
        return Display(console)
    width = max(map(len, labels), default=0)
    return Bars(console, width) if console.is_terminal else Lines(console, width)


class Display(contextlib.ExitStack):
    """Follows runs one after another, labels in so many columns; this one shows nothing but warnings."""

    level = logging.WARNING

    def __init__(self, console: Console, width: int = 0):
        super().__init__()
        self.console, self.width = console, width

    def __enter__(self) -> Self:
        self.enter_context(show_log(LOG, self.level, self.console))
        return self

    def watch(self, label: str) -> Watcher | None:
        """Who follows the next run."""
        return None


class Lines(Display):
    """One line per round, for files and pipes."""

    level = logging.INFO

    def watch(self, label: str) -> Watcher | None:
        return Line(self.console, label.ljust(self.width))


class Follower:
    """Who follows one run."""

    rounds = 0

    def finished(self, run: Run) -> None:
        pass


class Line(Follower):
    def __init__(self, console: Console, label: str):
        self.console, self.label = console, label

    def started(self, experiment: Experiment, done: int, engine: str) -> None:
        self.rounds = experiment.plan.rounds
        began = f", resumed after round {done}" if done else ""
        self.tell(f"{self.rounds} rounds on engine {engine}{began}")

    def round(self, record: RoundRecord) -> None:
        number = str(record.round).rjust(len(str(self.rounds)))
        self.tell(f"round {number}/{self.rounds}  {describe_round(record)}  {duration(record.seconds)}")

    def tell(self, text: str) -> None:
        self.console.print(f"{self.label}  {text}", soft_wrap=True)


class Bars(Display):
    """One bar per run. The oldest vanish when there are more than fit below each other."""

    level = logging.INFO

    def __init__(self, console: Console, width: int):
        super().__init__(console, width)
        self.room = max(1, console.height - 4)
        self.bars = Progress(
            *choose_columns(console.width - width),
            console=console,
            expand=True,
            refresh_per_second=5,
        )

    def __enter__(self) -> Self:
        self.enter_context(self.bars)
        return super().__enter__()

    def watch(self, label: str) -> Watcher | None:
        for old in self.bars.tasks[: max(0, len(self.bars.tasks) + 1 - self.room)]:
            self.bars.update(old.id, visible=False)
        task = self.bars.add_task(label.ljust(self.width), total=None, at="", told="preparing", accuracy="preparing")
        return Bar(self.bars, task)


def choose_columns(room: int) -> Iterator[ProgressColumn]:
    """The name and the round are always whole; what a round measured, the time and the bar need room."""
    yield TextColumn("[bold]{task.description}", table_column=Column(no_wrap=True))
    if room > ROOM["bar"]:
        yield BarColumn(bar_width=None, complete_style="cyan", finished_style="green")
    yield TextColumn("{task.fields[at]}", table_column=Column(no_wrap=True))
    if room > ROOM["accuracy"]:
        told = "told" if room > ROOM["told"] else "accuracy"
        yield TextColumn(f"{{task.fields[{told}]}}", table_column=Column(no_wrap=True))
    if room > ROOM["time"]:
        yield TimeRemainingColumn(compact=True, elapsed_when_finished=True)


class Bar(Follower):
    def __init__(self, bars: Progress, task: TaskID):
        self.bars, self.task = bars, task

    def started(self, experiment: Experiment, done: int, engine: str) -> None:
        self.rounds = experiment.plan.rounds
        self.bars.reset(self.task, total=self.rounds, completed=done, at=f"{done}/{self.rounds}", told="", accuracy="")

    def round(self, record: RoundRecord) -> None:
        at = f"{record.round}/{self.rounds}"
        told, accuracy = describe_round(record), describe_round(record, 1)
        self.bars.update(self.task, completed=record.round, at=at, told=told, accuracy=accuracy)


def describe_round(record: RoundRecord, most: int | None = None) -> str:
    """A round in a few words, in columns that stay where they are; only the first so many."""
    found, name = record.extra.get("validation_accuracy"), "validation"
    if not isinstance(found, float):  # where candidates are chosen by it, nobody looks at the test set
        found, name = record.accuracy, "accuracy"
    parts = [f"{name} {measured(found):>7}"] if found is not None else []
    if record.loss is not None:
        parts.append(f"loss {record.loss:<7.3g}")
    if record.drift is not None:
        parts.append(f"drift {record.drift:<7.3g}")
    if (memory := gpu_memory()) is not None:
        parts.append(f"GPU {byte_size(memory[0])} of {byte_size(memory[1])}")
    return "  ".join(parts[:most])
