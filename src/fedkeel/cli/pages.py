"""Help pages: a command's docstring, and examples of how to call it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

import typer

# without defaults: most are None, which older typers show
option = partial(typer.Option, show_default=False)
argument = partial(typer.Argument, show_default=False)


def add(app: typer.Typer, command: Callable[..., None], *examples: str, name: str | None = None) -> None:
    """A command with its help page; paragraphs are filled by the terminal, not by the source's line breaks."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in (inspect.getdoc(command) or "").split("\n\n")]
    app.command(name=name, help="\n\n".join(paragraphs), epilog=shown(*examples))(command)


def help_without_command(context: typer.Context) -> None:
    """A group's name alone shows what is in it."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def shown(*examples: str) -> str:
    return "\n\n".join(["[bold]Examples[/bold]", *(f"[dim]$[/dim] {line}" for line in examples)])
