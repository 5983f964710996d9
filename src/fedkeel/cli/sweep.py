"""`fedkeel sweep`: tune every method alike, then compare what each can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedkeel.cli.callbacks import Metrics, read_metrics
from fedkeel.cli.compare import Baseline, Csv, Latex, TargetAccuracy, form_of, show
from fedkeel.cli.console import complain, describe_score, in_json, note, stdout, table
from fedkeel.cli.options import Device, Engine, NoProgress, On, Precision, StudyFolder, Trusting, Workers
from fedkeel.cli.pages import Json, examples
from fedkeel.errors import RunError, require_known

if TYPE_CHECKING:
    from fedkeel.runs.finished_run import Run
    from fedkeel.studies.optimiser_grids import Grids
    from fedkeel.studies.sweep import Sweep, Tuned


@examples(
    "fedkeel sweep sweep.toml",
    "fedkeel sweep sweep.toml --out runs/tuned --device cuda",
    "fedkeel sweep sweep.toml --baseline fedavg --latex > table.tex",
    "fedkeel sweep specgradfilter-tuning --device cuda",
)
def sweep(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="SWEEP.toml",
            help="Experiment, grids, methods and seeds; or a paper's own tuning: specgradfilter-tuning.",
        ),
    ],
    engine: Engine = "auto",
    workers: Workers = None,
    device: Device = "auto",
    precision: Precision = "float32",
    out: StudyFolder = Path("runs/sweep"),
    on: On = "here",
    target: TargetAccuracy = None,
    baseline: Baseline = None,
    metrics: Metrics = "",
    trust: Trusting = False,
    json: Json = False,
    latex: Latex = False,
    csv: Csv = False,
    no_progress: NoProgress = False,
) -> None:
    """Give every method the same data, starts, participants and tuning budget, and compare their best settings.

    Settings are chosen on the validation share with the first seed; a grid grows where its optimum lies on the edge,
    and methods with smaller grids try values between, until all have tried equally many. The chosen setting of each
    method is then run with every seed and scored on the test set. Where the engine stacks, runs that differ in seed or
    learning rate train as one.

    A grid may vary the optimizer too; each is then tuned on learning rates of its own, unless the file gives some.
    """
    from fedkeel.cli.fetching import fetch
    from fedkeel.cli.settings import read_file
    from fedkeel.cli.study_runs import StudyRuns, open_cluster
    from fedkeel.cli.training import Machine
    from fedkeel.papers.reproduce import place_of
    from fedkeel.runs.experiment import note_new_default
    from fedkeel.studies.choice import Choice, write_choice
    from fedkeel.studies.presets import find_preset
    from fedkeel.studies.samplers import propose
    from fedkeel.studies.sweep import Sweep, finals, tune, tune_all

    form = form_of(json, latex, csv)
    data = read_file(find_preset(file), "give a .toml file with the keys of an experiment, [grid] and [methods.NAME]")
    asked = Sweep.load(data, trust=trust)
    note_new_default(asked.base)
    machine = Machine(engine, workers, device, precision, metrics=read_metrics(metrics))
    cluster = open_cluster(on, machine)
    check_baseline(asked, baseline)
    fetch([str(asked.base.get("dataset"))], not no_progress)
    with cluster as crew:
        runs = StudyRuns(machine, not no_progress, crew)
        execute = runs.into(out)
        tuned = tune_all(asked, execute, propose if asked.sampler == "optuna" else tune)
        if not form:
            show_tuning(tuned, asked.grids)
        tell_tuning(tuned, asked.sampler)
        last = [request for one in tuned for request in finals(asked, one)]
        write_choice(out, Choice([place_of(experiment) for _, experiment in last], asked.tuned))
        ends = execute(last)
    tuning = [one.save() | {"grid": dict(asked.grids[one.method])} for one in tuned]
    show_ends([run for run in ends if run is not None], asked, tuning, target, baseline, form)
    for one in (one for one in tuned if one.best is None):
        reason, hint = reason_of(one, runs.errors)
        complain(f"every setting of {one.method} failed: {reason}", hint)
    if None in ends or any(one.best is None for one in tuned):
        raise typer.Exit(1)


def check_baseline(asked: Sweep, baseline: str | None) -> None:
    """Refuse one that is not swept, before anything is trained."""
    from fedkeel.studies.grids import settings_of

    if baseline is not None:
        firsts = [(method, settings_of(grid)[0]) for method, grid in asked.grids.items()]
        names = [asked.experiment(*first, asked.seeds[0]).plan.method.name for first in firsts]
        require_known(baseline, names, "this sweep has no method", "methods")


def tell_tuning(tuned: Sequence[Tuned], sampler: str) -> None:
    """What was left unequal or open, on stderr."""
    from fedkeel.studies.sweep import unequal

    for told in unequal(tuned):
        note(f"{told}: nothing is left between its values, so give its grid more")
    for one in (one for one in tuned if one.edge):
        if sampler == "optuna":
            edge = f"the best {one.edge} of {one.method} lies at an end of its interval: widen the grid"
        else:
            edge = f"the best {one.edge} of {one.method} still lies on the edge of its grid, but the budget is spent: "
            edge += "raise it, or shift the grid"
        note(edge)


def show_ends(
    runs: Sequence[Run],
    asked: Sweep,
    tuned: Sequence[Mapping[str, Any]],
    target: float | None,
    baseline: str | None,
    form: str,
) -> None:
    """The final runs held against each other, as far as there are any."""
    from fedkeel.studies.run_groups import group_runs

    tuning, groups = {"tuning": tuned}, group_runs(runs, asked.seeds)
    if baseline is not None and groups and baseline not in [group.label for group in groups]:
        note(f"{baseline} has no run, so differences are to {groups[0].label}")
        baseline = None
    if groups:
        show(groups, target, baseline, form, tuning, asked.tuned)
    elif form == "json":
        typer.echo(in_json({"methods": []} | tuning))


def reason_of(tuned: Tuned, broken: Mapping[str, RunError]) -> tuple[str, str | None]:
    """Why its first setting has no score, and a hint: `broken` tells of the runs that broke off here."""
    from fedkeel.runs.finished_run import NO_SAMPLE, RAISE_SHARE
    from fedkeel.studies.grids import label_of

    setting, reason = next(iter(tuned.reasons.items()))
    if (error := broken.get(label_of(tuned.method, setting))) is not None:
        return error.message, error.hint
    return reason, RAISE_SHARE if reason == NO_SAMPLE else None


def show_tuning(tuned: Sequence[Tuned], grids: Grids) -> None:
    from fedkeel.studies.grids import describe
    from fedkeel.studies.optimiser_grids import describe_grid

    made = table(["method!", "grid", "settings>", "chosen", "on validation>", "grid grew by", "refined>"])
    for one in tuned:
        best = one.best
        came = describe_score(None if best is None else one.scores[best])
        chosen = "all failed" if best is None else describe(best) or "as it is"
        grew = ", ".join(one.widened)
        tried = (describe_grid(grids[one.method]), str(len(one.scores)))
        made.add_row(one.method, *tried, chosen, came, grew, str(one.refined) if one.refined else "")
    stdout().print(made)
