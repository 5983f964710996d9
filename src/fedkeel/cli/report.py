"""`fedkeel report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedkeel.cli.console import byte_size, say, stderr
from fedkeel.cli.run import examples


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "fedkeel report runs/comparison",
            "fedkeel report runs/fedavg-0f3c runs/fedsam-91ab -o comparison.html",
            "fedkeel report runs/comparison --figures figures --target 0.8",
        )
    )(report)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders, or folders that hold several.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.html", help="Where the page goes.")] = Path(
        "report.html"
    ),
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also draw the charts there, as PNG, SVG and PDF files.")
    ] = None,
    target: Annotated[
        float | None, typer.Option(metavar="X", help="Compare costs at this accuracy; default: one that all reach.")
    ] = None,
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="The page's title.")] = None,
) -> None:
    """Write one self-contained page about runs: tables, curves, drift, spectra, methods, commands.

    It opens without a network. Print the file's name to stdout; `fedkeel analyse` adds spectra and landscapes to runs.
    """
    from fedkeel.cli.training import runs_in
    from fedkeel.report.figures import write_figures
    from fedkeel.report.page import write_report

    folders = list(dict.fromkeys(path for given in runs for path in runs_in(given)))
    made = write_report(folders, out, target=target, title=title)
    say(stderr(), "report", "bold green", f"{len(folders)} runs, {byte_size(out.stat().st_size)}")
    typer.echo(out)
    for file in write_figures(made, figures) if figures is not None else ():
        typer.echo(file)
