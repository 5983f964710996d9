"""`fedkeel`: the commands, and how each of them ends."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedkeel import __version__, importing
from fedkeel.cli import export, pages, site
from fedkeel.cli.analyse import analyse
from fedkeel.cli.compare import compare
from fedkeel.cli.console import complain, say, stderr, tolerate
from fedkeel.cli.datasets import datasets
from fedkeel.cli.doctor import doctor
from fedkeel.cli.leaderboard import leaderboard
from fedkeel.cli.methods import methods
from fedkeel.cli.models import models
from fedkeel.cli.report import report
from fedkeel.cli.reproduce import reproduce
from fedkeel.cli.run import resume, run
from fedkeel.cli.search import search
from fedkeel.cli.stopping import Stopped, stopping
from fedkeel.cli.sweep import sweep
from fedkeel.cli.telling import LOG, show_log
from fedkeel.errors import FedkeelError, RequestError, blame_own_code, nearest
from fedkeel.streams import survive_lost_streams
from fedkeel.text import in_one_line

# from 0.24 on, typer brings a click of its own
CLICK: Any = import_module(TyperGroup.__mro__[1].__module__.rpartition(".")[0] + ".exceptions")

HELP = """Federated learning under client drift: train, compare and look up methods.

Results go to stdout, progress to stderr. Exit codes: 0 done; 1 the run failed; 2 the request was wrong;
130 interrupted (Ctrl-C), 143 terminated (SIGTERM), both with the checkpoint written.
"""

app = typer.Typer(
    help=HELP.replace(";\n", "; "),
    epilog=pages.shown(
        "fedkeel run",
        "fedkeel run --dataset cifar10 --method fedavg,scaffold --rounds 100",
        "fedkeel methods fedfft-d",
    ),
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
pages.add(app, run, resume, compare, sweep, search, leaderboard, reproduce, report, analyse, methods, datasets, models)
app.add_typer(export.group, name="export")
app.add_typer(site.group, name="site")
pages.add(app, export.cite, doctor)


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedkeel {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def fedkeel(
    context: typer.Context,
    show: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pages.help_without_command(context)


def call(arguments: Sequence[str]) -> int:
    """Run one command line; every end is an exit code and, where something is wrong, a message on stderr."""
    tolerate()
    with survive_lost_streams() as streams, show_log(LOG, logging.WARNING):
        code = end_of(arguments)
        streams.out.flush()
        if streams.out.problem is not None and code == 0:
            code = 1
            if not isinstance(streams.out.problem, BrokenPipeError):  # `fedkeel methods | head`
                complain(f"cannot write to stdout: {streams.out.problem.strerror}", "all else was done")
    return code


def end_of(arguments: Sequence[str]) -> int:
    """The exit code of a command."""
    try:
        with stopping(), show_log(importing.log, logging.INFO):
            require_text(arguments)
            command = typer.main.get_command(app)
            pages.hide_types_of_flags(command)
            code = command.main(list(arguments), prog_name="fedkeel", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except FedkeelError as error:
        complain(error.message, error.hint)
        return error.exit_code
    except CLICK.UsageError as error:
        complain(*usage(error))
        return 2
    except CLICK.ClickException as error:
        complain(error.format_message())
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except Stopped as stopped:
        say(stderr(), str(stopped), "bold yellow", "the same command again goes on with what is not finished")
        return stopped.exit_code
    except ImportError as error:
        if error.name is None or os.environ.get("FEDKEEL_TRACEBACK"):
            return unexpected(error)
        missing = isinstance(error, ModuleNotFoundError)
        complain(
            f"a package that is needed {'is not installed' if missing else 'cannot be imported'}: {error.name}",
            f"pip install {error.name.partition('.')[0]}" if missing else in_one_line(error),
        )
        return 2
    except OSError as error:
        if is_folder_gone():  # PyTorch asks for it when it is imported
            complain("the current folder is gone.", "change to one that exists: cd ~")
            return 2
        if error.filename is None or os.environ.get("FEDKEEL_TRACEBACK"):
            return unexpected(error)
        complain(f"{os.fsdecode(error.filename)}: {error.strerror}", "see that it can be read, or written, as asked")
        return 2
    except Exception as error:
        return unexpected(error)


def require_text(arguments: Sequence[str]) -> None:
    """Refuse a word that is no text, such as half of a surrogate pair: no file can have that name."""
    for word in arguments:
        try:
            os.fsencode(word)
        except UnicodeEncodeError:
            raise RequestError(f"a word of the command line is no text: {word!a}", "type it again") from None


def is_folder_gone() -> bool:
    """Whether the folder in which the command was called was removed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def unexpected(error: Exception) -> int:
    """An error that nobody thought of, or one of the user's code, in one line."""
    if os.environ.get("FEDKEEL_TRACEBACK"):
        traceback.print_exc()
    if (own := blame_own_code(error)) is not None:
        complain(own.message, own.hint)
        return own.exit_code
    complain(
        f"unexpected error: {type(error).__name__}: {in_one_line(error)} (set FEDKEEL_TRACEBACK=1 to see it)",
    )
    return 1


def usage(error: Any) -> tuple[str, str]:
    """A wrong command line in one line, and where to look."""
    path = error.ctx.command_path if error.ctx is not None else "fedkeel"
    message = error.format_message().splitlines()[0]
    if isinstance(error, CLICK.NoSuchOption) and error.ctx is not None:
        known = [name for one in error.ctx.command.params for name in one.opts if name.startswith("-")]
        return f"{path} has no option: {error.option_name}", f"{nearest(error.option_name, known, 'options')}"
    group = error.ctx.command if error.ctx is not None else None
    if isinstance(group, TyperGroup) and message.startswith("No such command"):
        word = message.split("'")[1]
        return f"{path} has no command: {word}", nearest(word, group.commands, "commands")
    return message[:1].lower() + message[1:], f"`{path} --help` shows what it takes, with examples"
