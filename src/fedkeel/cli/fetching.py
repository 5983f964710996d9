"""Data sets that are not here yet, fetched or imported with their progress shown."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedkeel.cli.console import complain, stderr
from fedkeel.data import load
from fedkeel.data.storage.loading import is_here as present
from fedkeel.data.storage.loading import is_known
from fedkeel.errors import DataError


def fetch(names: Iterable[str], progress: bool) -> None:
    """Fill the data folder before the first run starts."""
    for name in names:
        if is_known(name) and not present(name):
            with following(name, progress) as follow:
                load(name, progress=follow)


def fetched(names: Collection[str], progress: bool) -> set[str]:
    """Fetch several data sets and return those that are here; say why of the others, and raise it of an only one."""
    had = set()
    for name in names:
        try:
            fetch([name], progress)
            had.add(name)
        except DataError as error:
            if len(names) == 1:
                raise
            complain(f"{name}: {error.message}", error.hint)
    return had


@contextmanager
def following(name: str, progress: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar per array in a terminal, else one line when each begins."""
    console = stderr()
    if not progress:
        yield lambda what, done, of: None
        return
    seen: set[str] = set()
    if not console.is_terminal:

        def line(what: str, done: int, of: int) -> None:
            if what not in seen:
                seen.add(what)
                console.print(f"{name}: {what}", soft_wrap=True)

        yield line
        return
    columns = (TextColumn("{task.description}", style="bold"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bars:
        waiting = bars.add_task(f"{name}: preparing", total=None)
        tasks: dict[str, object] = {}

        def bar(what: str, done: int, of: int) -> None:
            bars.update(waiting, visible=False)
            if what not in tasks:
                tasks[what] = bars.add_task(f"{name}: {what}", total=of or None)
            bars.update(tasks[what], completed=done)  # type: ignore[arg-type]

        yield bar
