"""`fedkeel report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedkeel.cli.console import note, say, stderr
from fedkeel.cli.pages import argument, examples, option
from fedkeel.text import byte_size, plural, split_words
from fedkeel.written_values import check_accuracy, check_loss


@examples(
    "fedkeel report runs/comparison",
    "fedkeel report runs/fedavg-59601bb60e28 runs/fedsam-91ab5a0c3d27 -o comparison.html",
    "fedkeel report runs/comparison --figures figures --target 0.8",
    "fedkeel report runs/comparison --figures figures --format pdf --style paper",
    "fedkeel report --ledger results/ledger.jsonl -o reproduction.html --figures figures",
)
def report(
    runs: Annotated[
        list[Path] | None, argument(metavar="RUN…", help="Run folders, or folders that hold several.")
    ] = None,
    out: Annotated[
        Path, option("--out", "-o", metavar="FILE.html", help="Where the page goes; default: report.html.")
    ] = Path("report.html"),
    figures: Annotated[
        Path | None, option(metavar="DIR", help="Also draw the charts there, as PNG, SVG and PDF files.")
    ] = None,
    format_: Annotated[
        str, option("--format", metavar="A,B,…", help="Of these files: some of png, svg, pdf; default: all.")
    ] = "png,svg,pdf",
    style: Annotated[
        str, option(metavar="NAME", help="Of these files: page, or paper (serif letters, close margins, 300 dpi).")
    ] = "page",
    target: Annotated[
        float | None,
        option(metavar="X", help="Compare costs at this accuracy, or loss; default: an accuracy that all reach."),
    ] = None,
    title: Annotated[str | None, option(metavar="TEXT", help="The page's title.")] = None,
    ledger: Annotated[
        Path | None, option(metavar="FILE", help="Draw published numbers against this ledger of `reproduce` instead.")
    ] = None,
) -> None:
    """Write one self-contained page about runs: tables, curves, drift, spectra, methods, commands.

    It opens without a network. What `fedkeel analyse` found in a run is part of it. Prints the files that it wrote.
    """
    from fedkeel.cli.training import runs_in
    from fedkeel.errors import RequestError, refuse_folder, writing
    from fedkeel.report.drawing import check_style
    from fedkeel.report.figures import check_kinds, write_figures
    from fedkeel.report.page import write_report

    beside = [name for name, given in (("RUN…", runs), ("--target", target)) if given not in (None, [])]
    if ledger is not None and beside:  # they would be lost
        raise RequestError(
            f"--ledger draws the ledger alone, without {' and '.join(beside)}.",
            "give runs, or --ledger FILE with --out, --title and --figures",
        )
    kinds = check_kinds(split_words(format_))
    check_style(style)
    refuse_folder(out, "report.html")
    if ledger is not None:
        from fedkeel.report.reproduction import write_ledger_figures, write_reproduction

        with writing(out):
            number = write_reproduction(ledger, out, title)
        say(stderr(), "report", "bold green", f"{number} runs of the ledger")
        typer.echo(out)
        drawn = [] if figures is None else write_ledger_figures(ledger, figures, kinds, style)
    else:
        folders = list(dict.fromkeys(path for given in runs or () for path in runs_in(given)))
        check_target(target, folders)
        made = write_report(folders, out, target=target, title=title)
        if again := len(folders) - made.runs:
            note(f"{plural(again, 'run')} left out: another has the same experiment and seeds; the page names them")
        say(stderr(), "report", "bold green", f"{plural(made.runs, 'run')}, {byte_size(out.stat().st_size)}")
        typer.echo(out)
        drawn = [] if figures is None else write_figures(made, figures, kinds, style)
    for file in drawn:
        typer.echo(file)


def check_target(target: float | None, folders: Sequence[Path]) -> None:
    """Refuse what is no accuracy, unless all runs are judged on losses."""
    from fedkeel.runs.folder import read_rounds
    from fedkeel.runs.record import judged_on

    if target is not None:
        losses = all(str(judged_on(read_rounds(folder))).endswith("loss") for folder in folders)
        (check_loss if losses else check_accuracy)(target)
