"""`fedkeel site`: what a site of a federation does by itself."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from fedkeel.cli import pages
from fedkeel.cli.options import Trusting
from fedkeel.cli.pages import argument, examples, option

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


Out = Annotated[Path, argument(metavar="OUT", help="The server's run folder, as `out` of the app names it.")]


@examples("fedkeel site rollback runs/wards", "fedkeel site rollback runs/wards 40")
def rollback(
    out: Out,
    to: Annotated[
        int | None, argument(metavar="[ROUND]", help="The round to go back to; without it they are listed.")
    ] = None,
) -> None:
    """Bring a federation back to an older round; the next `flwr run` goes on from there.

    The server keeps every tenth checkpoint (`history` in the app's pyproject.toml). What is undone is put aside, not
    removed. A site whose state is newer begins from the server's copy of it, or from zero.
    """
    from fedkeel.cli.console import stderr
    from fedkeel.core.states import beside
    from fedkeel.federation.audit import AUDIT, AuditLog
    from fedkeel.federation.history import list_rounds, roll_back
    from fedkeel.federation.server_lock import hold_place
    from fedkeel.runs.folder import read_experiment
    from fedkeel.text import plural

    read_experiment(out)  # what is no run is refused
    if to is None:
        for number in list_rounds(out):
            typer.echo(number)
        return
    with hold_place(out, wait=False):
        log = AuditLog(beside(out, AUDIT))  # one that was altered is refused before anything is undone
        undone = roll_back(out, to)
        log.write("rolled back", {"round": to, "undone": undone})
    stderr().print(f"{out} is at round {to}; {plural(undone, 'round')} {'is' if undone == 1 else 'are'} undone.")


@examples("fedkeel site audit runs/wards", "fedkeel site audit runs/wards --witness client-000003-audit.jsonl")
def audit(
    out: Out,
    witness: Annotated[
        list[Path] | None, option(metavar="FILE", help="What a site was sent: …-audit.jsonl in its state-dir.")
    ] = None,
    as_json: Annotated[bool, option("--json", help="Print the events, a JSON object a line.")] = False,
) -> None:
    """Verify the audit log of a federation: who joined, what was counted or refused, hashes of models.

    Each line holds the hash of the one before it. A log that was made anew as a whole is noticed by the sites, which
    keep the hash that they were sent with every round. Exit code 2: it was altered.
    """
    import json

    from fedkeel.core.states import beside
    from fedkeel.federation.audit import AUDIT, check_witness, read_chain

    lines = read_chain(beside(out, AUDIT))
    seen = {file: check_witness(lines, file) for file in witness or ()}
    if as_json:
        for line in lines:
            typer.echo(json.dumps(line))
        return
    for line in lines:
        facts = {name: value for name, value in line.items() if name not in ("line", "time", "event", "before", "hash")}
        told = ", ".join(
            f"{name} {value if isinstance(value, str) else json.dumps(value)}" for name, value in facts.items()
        )
        typer.echo(f"{line['time']} {line['event']}: {told}")
    typer.echo(f"{len(lines)} lines, unaltered; the last one is {lines[-1]['hash'] if lines else 'none'}")
    for file, latest in seen.items():
        typer.echo(f"{file} has witnessed it up to line {latest}")


@examples("fedkeel site status runs/wards", "fedkeel site status runs/wards --silent 7200 || page-the-operator")
def status(
    out: Out,
    silent: Annotated[float, option(metavar="SECONDS", help="How long nothing may happen.")] = 3600.0,
) -> None:
    """Say how a federation is, for alerts: by a line and by the exit code.

    0: it runs or has finished; 3: the server stopped with an error; 4: nothing has happened for too long; 5: the last
    round counted fewer clients than it asked; 2: there is nothing to read. The numbers are those of OUT.prom, which
    Prometheus reads through the textfile collector of its node exporter.
    """
    import time

    from fedkeel.core.states import beside
    from fedkeel.errors import RequestError
    from fedkeel.federation.gauges import METRICS, judge, read_gauges
    from fedkeel.ranges import NonNegative
    from fedkeel.typed_values import read_values

    read_values({"--silent": silent}, {"--silent": NonNegative}, RequestError, examples={"--silent": 3600})
    code, line = judge(read_gauges(beside(out, METRICS)), silent, time.time())
    typer.echo(line)
    raise typer.Exit(code)


pages.add(group, check, rollback, audit, status)
