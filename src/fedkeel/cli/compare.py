"""`fedkeel compare`: runs held against each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedkeel.cli import pages
from fedkeel.cli.console import count, duration, megabytes, say, stderr, stdout, table

if TYPE_CHECKING:
    from fedkeel.comparison import Group


def add_to(app: typer.Typer) -> None:
    pages.add(app, compare, "fedkeel compare runs/comparison", "fedkeel compare runs/a runs/b --target 0.75")


def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders, or folders that hold several.")],
    target: Annotated[
        float | None, typer.Option(metavar="ACC", help="An accuracy; default: the lowest best of all.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="METHOD", help="Differences are to this one; default: the first.")
    ] = None,
) -> None:
    """Mean and spread over seeds, paired differences with confidence intervals, and the cost to a target.

    Costs are rounds, megabytes both ways, seconds and gradient evaluations until the target accuracy is first reached.
    """
    from fedkeel.cli.training import runs_in
    from fedkeel.comparison import grouped, unfair
    from fedkeel.errors import RequestError, nearest
    from fedkeel.runs import load_run

    groups = grouped([load_run(path) for folder in folders for path in runs_in(folder)])
    for key in unfair(groups):
        say(stderr(), "note", "bold yellow", f"the runs differ in {key}, so more than their methods is compared")
    names = [group.label for group in groups]
    if baseline is not None and baseline not in names:
        raise RequestError(f"none of these runs is: {baseline}", nearest(baseline, names, "runs"))
    base = groups[names.index(baseline)] if baseline is not None else groups[0]
    show_accuracy(groups, base)
    show_cost(groups, target)


def show_accuracy(groups: list[Group], base: Group) -> None:
    from fedkeel.comparison import mean_and_std, paired

    made = table(["method!", "seeds>", "best>", "last>", "mean of last>", f"to {base.label}>", "95 % interval>"])
    for group in groups:
        cells = []
        for name in ("best", "last", "mean_last"):
            mean, std = mean_and_std(list(group.values(name).values()))
            spread = "" if std is None else f" ± {100 * std:.2f}"
            cells.append("–" if mean is None else f"{100 * mean:.2f}{spread} %")
        told = None if group is base else paired(group, base)
        difference = "" if told is None else f"{100 * told.mean:+.2f}"
        interval = ""
        if told is not None and told.low is not None and told.high is not None:
            interval = f"{100 * told.low:+.2f} … {100 * told.high:+.2f}"
        made.add_row(group.label, str(len(group.runs)), *cells, difference, interval)
    stdout().print(made)


def show_cost(groups: list[Group], target: float | None) -> None:
    from fedkeel.comparison import cost_to

    bests = [value for group in groups for value in group.values("best").values()]
    if target is None:
        target = min(bests, default=0.0)
    made = table(["method!", "reached>", "rounds>", "MB>", "time>", "gradients>"], f"to {100 * target:.2f} % accuracy")
    for group in groups:
        cost = cost_to(group, target)
        if cost is None:
            made.add_row(group.label, f"0 of {len(group.runs)}", *["–"] * 4)
            continue
        made.add_row(
            group.label, f"{cost.reached} of {len(group.runs)}", f"{cost.rounds:.0f}", megabytes(cost.megabytes * 1e6),
            duration(cost.seconds), count(round(cost.gradients)),
        )  # fmt: skip
    stdout().print(made)
