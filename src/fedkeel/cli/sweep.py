"""`fedkeel sweep`: tune every method alike, then compare what each can do."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedkeel.cli import pages
from fedkeel.cli.compare import Baseline, Target, show
from fedkeel.cli.console import say, stderr, stdout, table
from fedkeel.cli.run import Device, Engine, Json, NoProgress, Precision, Workers
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
    target: Target = None,
    baseline: Baseline = None,
    json: Json = False,
    no_progress: NoProgress = False,
) -> None:
    """Give every method the same data, starts, participants and tuning budget, and compare their best settings.

    Settings are chosen on the validation share with the first seed; a grid grows where its optimum lies on the edge,
    and methods with smaller grids try values between, until all have tried equally many. The chosen setting of each
    method is then run with every seed and scored on the test set. Where the engine stacks, runs that differ in seed or
    learning rate train as one.
    """
    from fedkeel.cli.fetching import fetch
    from fedkeel.cli.progress import display
    from fedkeel.cli.settings import read
    from fedkeel.cli.training import Machine, Plan, train
    from fedkeel.comparison import grouped
    from fedkeel.reproduce import place_of
    from fedkeel.sampling import propose, tuner
    from fedkeel.sweep import Sweep, finals, tune, tune_all

    data = read(file)
    asked, find = Sweep.load(data), propose if tuner(data) == "optuna" else tune
    machine = Machine(engine, workers, device, precision)

    if on not in ("here", "ray"):
        raise RequestError(f"a sweep runs here or on ray, not on: {on}", "leave --on out, or write --on ray")

    def execute(requests: Sequence[tuple[str, Experiment]]) -> list[Run | None]:
        with display(not no_progress, [label for label, _ in requests]) as shown:
            if on == "ray":
                from fedkeel.sweeps_ray import runs_on_ray

                return runs_on_ray(requests, lambda exp: out / place_of(exp), engine, device, precision=precision)
            plans = [Plan(label, experiment, out / place_of(experiment)) for label, experiment in requests]
            return [outcome.run for outcome in train(plans, machine, shown)]

    fetch([str(asked.base.get("dataset"))], not no_progress)
    with cluster(on):
        tuned = tune_all(asked, execute, find)
        if not json:
            show_tuning(tuned)
        for one in (one for one in tuned if one.edge):
            edge = f"the best {one.edge} of {one.method} still lies on the edge of its grid, but the budget is spent"
            say(stderr(), "note", "bold yellow", f"{edge}: raise it, or shift the grid")
        runs = [run for run in execute([request for one in tuned for request in finals(asked, one)]) if run is not None]
    if runs:
        show(grouped(runs), target, baseline, json, {"tuning": [one.save() for one in tuned]})


def cluster(on: str) -> contextlib.AbstractContextManager[object]:
    """Ray, started once for all that is asked of it; or nothing."""
    if on == "here":
        return contextlib.nullcontext()
    from fedkeel.sweeps_ray import connected

    return connected()


def show_tuning(tuned: Sequence[Tuned]) -> None:
    from fedkeel.sweep import describe

    made = table(["method!", "settings>", "chosen", "on validation>", "grid grew by", "refined>"])
    for one in tuned:
        best = one.best
        score = None if best is None else one.scores[best]
        came = "–" if score is None else f"{100 * score:.2f} %" if score >= 0 else f"loss {-score:.4g}"
        chosen = "all failed" if best is None else describe(best) or "as it is"
        grew = ", ".join(one.widened)
        made.add_row(one.method, str(len(one.scores)), chosen, came, grew, str(one.refined) if one.refined else "")
    stdout().print(made)
