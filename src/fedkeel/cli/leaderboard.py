"""`fedkeel leaderboard`: every method on the same settings, with the same number of tries."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from fedkeel.cli.console import complain, note, say, stderr
from fedkeel.cli.options import Device, Engine, NoProgress, Precision, StudyFolder, Trusting, Workers
from fedkeel.cli.pages import examples, option
from fedkeel.text import split_words


@examples(
    "fedkeel leaderboard --method fedavg,feddyn --device cuda",
    "fedkeel leaderboard --minutes 20 --page docs/leaderboard.md",
    "fedkeel leaderboard --page docs/leaderboard.md --minutes 0",
)
def leaderboard(
    file: Annotated[
        Path | None, typer.Argument(metavar="TABLE.toml", help="Settings and seeds; default: the package's own.")
    ] = None,
    setting: Annotated[str | None, option(metavar="NAME", help="Only this setting.")] = None,
    method: Annotated[str | None, option(metavar="NAMES", help="Only these methods, with commas between.")] = None,
    minutes: Annotated[
        float | None, option(metavar="N", min=0, help="Begin no method after so many minutes; 0 runs nothing.")
    ] = None,
    lines: Annotated[Path, typer.Option(metavar="FILE", help="Where each method's line goes.")] = Path(
        "results/leaderboard.jsonl"
    ),
    page: Annotated[Path | None, option(metavar="FILE.md", help="Also write the table there.")] = None,
    engine: Engine = "auto",
    workers: Workers = None,
    device: Device = "auto",
    precision: Precision = "float32",
    out: StudyFolder = Path("runs/leaderboard"),
    trust: Trusting = False,
    no_progress: NoProgress = False,
) -> None:
    """Tune every method with the same number of tries, run it on fresh seeds and splits, and write the fair table.

    Goes on where it stopped: a method with a line is not run again, and runs that were interrupted are resumed. A
    method whose runs fail gets a line that says so, and the others go on. Several processes may share the work: what
    one is at, the others leave to it.
    """
    from fedkeel.cli.fetching import fetch
    from fedkeel.cli.settings import read_file
    from fedkeel.cli.study_runs import StudyRuns
    from fedkeel.cli.training import Machine
    from fedkeel.core.states import write_text
    from fedkeel.errors import MethodError, ModelError, writing
    from fedkeel.runs.run_folder import BusyError
    from fedkeel.studies.leaderboard import Leaderboard, append_to, read_lines
    from fedkeel.studies.leaderboard_page import write_page

    typed = [] if method is None else list(dict.fromkeys(split_words(method))) or [method]
    data = None if file is None else read_file(file, "give a .toml file with [settings.NAME]")
    board = Leaderboard.load(data, trust=trust, typed=typed)
    methods = typed or board.in_order()
    for name in methods:
        board.build(name)  # a wrong one is refused before anything is trained
    chosen = [board.arena(setting)] if setting is not None else board.arenas
    execute = StudyRuns(Machine(engine, workers, device, precision), not no_progress).into(out)
    known, began = read_lines(lines), time.monotonic()
    asked = [(arena, name) for arena, name in board.missing(known, methods) if arena in chosen]
    had = [name for name in typed if all(name != other for _, other in asked)]
    if had and minutes != 0:
        note(f"not run again, since {lines} has their lines: {', '.join(had)}; delete a line to run its method anew")
    for arena, name in asked:
        known = read_lines(lines)  # another process may add to it
        if (arena, name) not in board.missing(known, [name]):
            continue
        if minutes is not None and time.monotonic() - began >= 60 * minutes:
            break
        fetch([str(arena.experiment.get("dataset"))], not no_progress)
        if any(line.superseded and (line.identity, line.method) == (board.identity(arena), name) for line in known):
            note(f"{name} is run again; finished runs in {out} are taken as they are: another --out trains anew")
        try:
            line = board.run(arena, name, execute)
        except BusyError as error:
            note(f"{arena.name}, {name} is left to another process: {error.message}")
            continue
        except (MethodError, ModelError) as error:  # it does not fit this network: the others go on
            complain(f"{arena.name}, {name}: {error.message}", error.hint)
            line = board.failed(arena, name, reason=error.message)
        if 0 < line.tries < board.tries:
            note(f"{name} had {line.tries} of {board.tries} tries: there are no more in its grid")
        append_to(lines, line)
        last = line.values("last")
        told = ", ".join(f"{100 * value:.2f} %" for value in last.values())
        say(stderr(), "line", "bold green", f"{arena.name}, {name}: {f'last {told}' if told else 'failed'}")
    if page is not None:
        with writing(page):
            write_text(page, write_page(board, read_lines(lines), file, lines, page))
        typer.echo(page)
