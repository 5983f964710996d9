"""`fedkeel sweep`: tune every method alike, then compare what each can do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedkeel.cli import pages
from fedkeel.cli.console import stdout, table
from fedkeel.cli.run import Device, Engine, NoProgress, Precision, Workers
from fedkeel.errors import RequestError

if TYPE_CHECKING:
    from fedkeel.experiment import Experiment
    from fedkeel.runs import Run
    from fedkeel.sweep import Tuned


def add_to(app: typer.Typer) -> None:
    pages.add(app, sweep, "fedkeel sweep sweep.toml", "fedkeel sweep sweep.toml --out runs/tuned --device cuda")


def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP.toml", help="Experiment, grids, methods and seeds.")],
    engine: Engine = "auto",
    workers: Workers = None,
    device: Device = "auto",
    precision: Precision = "float32",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the runs stand; the same again resumes.")] = Path(
        "runs/sweep"
    ),
    on: Annotated[str, typer.Option(metavar="WHERE", help="here, or ray: spread runs over a Ray cluster.")] = "here",
    no_progress: NoProgress = False,
) -> None:
    """Give every method the same data, starts, participants and tuning budget, and compare their best settings.

    Settings are chosen on the validation share with the first seed; a grid grows where its optimum lies on the edge.
    The chosen setting of each method is then run with every seed and scored on the test set.
    """
    from fedkeel.cli.compare import show_accuracy, show_cost
    from fedkeel.cli.progress import display
    from fedkeel.cli.settings import read
    from fedkeel.cli.training import Machine, Plan, train
    from fedkeel.comparison import grouped
    from fedkeel.reproduce import place_of
    from fedkeel.sampling import propose, tuner
    from fedkeel.sweep import Sweep, finals, tune

    data = read(file)
    asked, find = Sweep.load(data), propose if tuner(data) == "optuna" else tune
    machine = Machine(engine, workers, device, precision)

    if on not in ("here", "ray"):
        raise RequestError(f"a sweep runs here or on ray, not on: {on}", "leave --on out, or write --on ray")

    def execute(requests: Sequence[tuple[str, Experiment]]) -> list[Run | None]:
        if on == "ray":
            from fedkeel.sweeps_ray import runs_on_ray

            return runs_on_ray(requests, lambda experiment: out / place_of(experiment), engine, device)
        plans = [Plan(label, experiment, out / place_of(experiment)) for label, experiment in requests]
        with display(not no_progress, [plan.label for plan in plans]) as shown:
            return [outcome.run for outcome in train(plans, machine, shown)]

    tuned = [find(asked, method, execute) for method in asked.grids]
    show_tuning(tuned)
    runs = [run for one in tuned for run in execute(finals(asked, one)) if run is not None]
    if runs:
        groups = grouped(runs)
        show_accuracy(groups, groups[0])
        show_cost(groups, None)


def show_tuning(tuned: Sequence[Tuned]) -> None:
    from fedkeel.sweep import describe

    made = table(["method!", "settings>", "chosen", "on validation>", "grid grew by"])
    for one in tuned:
        best = one.best
        score = None if best is None else one.scores[best]
        shown = "–" if score is None else f"{100 * score:.2f} %" if score >= 0 else f"loss {-score:.4g}"
        chosen = "all failed" if best is None else describe(best) or "as it is"
        made.add_row(one.method, str(len(one.scores)), chosen, shown, ", ".join(one.widened))
    stdout().print(made)
