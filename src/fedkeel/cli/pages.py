"""Help pages: a command's docstring, and examples of how to call it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

# without defaults: most are None, which older typers show
option = partial(typer.Option, show_default=False)
argument = partial(typer.Argument, show_default=False)


Json = Annotated[bool, option("--json", help="Print one JSON document instead of the table.")]

Command = Callable[..., None]
EXAMPLES: dict[Command, tuple[str, ...]] = {}


def examples(*lines: str) -> Callable[[Command], Command]:
    """Note how a command is called, for its help page."""

    def note(command: Command) -> Command:
        EXAMPLES[command] = lines
        return command

    return note


def add(app: typer.Typer, *commands: Command) -> None:
    """Commands with their help pages; paragraphs are filled by the terminal, not by the source's line breaks."""
    for command in commands:
        paragraphs = [" ".join(paragraph.split()) for paragraph in (inspect.getdoc(command) or "").split("\n\n")]
        app.command(help="\n\n".join(paragraphs), epilog=shown(*EXAMPLES[command]))(command)


def hide_types_of_flags(command: Any) -> None:
    """A flag takes no value: newer typers write <bool> beside it, as if it did."""
    for parameter in command.params:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    for below in getattr(command, "commands", {}).values():
        hide_types_of_flags(below)


def help_without_command(context: typer.Context) -> None:
    """A group's name alone shows what is in it."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def shown(*examples: str) -> str:
    return "\n\n".join(["[bold]Examples[/bold]", *(f"[dim]$[/dim] {line}" for line in examples)])
