"""`fedkeel site`: what a site of a federation does by itself."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from fedkeel.cli import pages
from fedkeel.cli.pages import argument, examples, option
from fedkeel.cli.run import Trusting

group = typer.Typer(
    help="Prepare a site of a real federation.",
    callback=pages.help_without_command,
    invoke_without_command=True,
)
COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}


@examples(
    "fedkeel site check keys 3 server.example.org:8000",
    "fedkeel site check keys 3 server.example.org:8000 --app app --node 'data-dir=\"/data\"'",
)
def check(
    keys: Annotated[Path, argument(metavar="KEYS", help="The folder with this node's key and certificates.")],
    client: Annotated[int, argument(metavar="CLIENT", help="This node's number, as given to supernode.sh.")],
    superlink: Annotated[
        str | None, argument(metavar="[HOST:PORT]", help="The server; without it no connection is tried.")
    ] = None,
    app: Annotated[
        Path | None, option(metavar="DIR", help="The exported app: data, device and disk are checked for it.")
    ] = None,
    node: Annotated[str, option(metavar="SETTINGS", help="Further settings, as given to supernode.sh.")] = "",
    trust: Trusting = False,
) -> None:
    """Check a site before the day of training: keys, certificates, clock, connection, data, device and disk.

    Each line says what was found; where something is wrong, the next one says what to do. Exit code 1: something fails.
    """
    from rich.text import Text

    from fedkeel.cli.console import stdout
    from fedkeel.errors import RequestError
    from fedkeel.federation.site_check import FAILED, check_site

    if find_spec("flwr") is None:
        raise RequestError("a site of a federation needs Flower.", 'pip install "fedkeel[flower]"')
    if not keys.is_dir():
        raise RequestError(
            f"there is no folder {keys}", "give the folder that holds node-CLIENT, ca.crt and loopback.crt"
        )
    findings, console = check_site(keys, client, superlink, app, node, trust=trust), stdout()
    for one in findings:
        console.print(Text.assemble((f"{one.state:8}", COLOURS[one.state]), f" {one.what}: {one.line}"))
        if one.hint and one.state != "ok":
            console.print(Text(f"         hint: {one.hint}"))
    if any(one.state == FAILED for one in findings):
        raise typer.Exit(1)


pages.add(group, check)
