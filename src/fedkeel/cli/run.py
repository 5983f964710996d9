"""`fedkeel run` and `fedkeel resume`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedkeel.cli.callbacks import CallbackNames, Keep, Metrics, Patience, go_on_with, read_callbacks, read_metrics
from fedkeel.cli.completion import complete_datasets, complete_methods, complete_models, complete_partitions
from fedkeel.cli.console import say, stderr, stdout
from fedkeel.cli.options import Device, Engine, NoProgress, OwnProblem, Precision, Trusting, Workers
from fedkeel.cli.pages import Json, argument, examples, option
from fedkeel.cli.stopping import Stopped
from fedkeel.cli.tracking import ToMlflow, ToTensorBoard, ToWandb, Track, Tracking
from fedkeel.text import split_words

if TYPE_CHECKING:
    from fedkeel.cli.training import Machine, Outcome, Target


@examples(
    "fedkeel run",
    "fedkeel run --method fedavg,scaffold --seeds 0,1,2 --out runs/comparison",
    "fedkeel run --dataset cifar10 --method fedfft-d --set method.rho=0.05 --set partition.alpha=0.3",
    "fedkeel run experiment.toml --rounds 200",
)
def run(
    file: Annotated[Path | None, argument(metavar="[EXPERIMENT.toml]", help="Settings of an experiment.")] = None,
    method: Annotated[
        str | None,
        option(metavar="A,B,…", help="One or several; see `fedkeel methods`.", autocompletion=complete_methods),
    ] = None,
    dataset: Annotated[
        str | None,
        option(
            metavar="NAME",
            help="Alone: with that data set's own model, partition and rates; hf:NAME is one on the hub, or a folder "
            "of pictures.",
            autocompletion=complete_datasets,
        ),
    ] = None,
    problem: OwnProblem = None,
    model: Annotated[
        str | None, option(metavar="NAME", help="See `fedkeel models`.", autocompletion=complete_models)
    ] = None,
    partition: Annotated[
        str | None,
        option(
            metavar="KIND:…",
            help="dirichlet:alpha=0.1,clients=100, iid:clients=10 …",
            autocompletion=complete_partitions,
        ),
    ] = None,
    rounds: Annotated[int | None, option(metavar="N", help="Rounds of training.")] = None,
    settings: Annotated[
        list[str] | None,
        option("--set", metavar="KEY=VALUE", help="Any key: lr=0.05, optimizer=adamw, partition.alpha=0.3 …"),
    ] = None,
    seeds: Annotated[
        str | None, option(metavar="0-4", help="Repeat each method with these seeds: 0,1,2 or 0-4.")
    ] = None,
    engine: Engine = "auto",
    workers: Workers = None,
    device: Device = "auto",
    precision: Precision = "float32",
    keep: Keep = None,
    patience: Patience = None,
    callback: CallbackNames = None,
    metrics: Metrics = "",
    track: Track = "",
    tensorboard: ToTensorBoard = False,
    mlflow: ToMlflow = False,
    wandb: ToWandb = False,
    out: Annotated[
        Path | None, option(metavar="DIR", help="The run's folder; for several runs DIR/METHOD/SEED. Default: runs/…")
    ] = None,
    trust: Trusting = False,
    json: Json = False,
    no_progress: NoProgress = False,
) -> None:
    """Train one method or several side by side, and print what they reached.

    Without arguments: the quick start. Six methods, from FedAvg to FedFFT-D, on real handwritten digits that are very
    unevenly divided among 20 clients; no download, under a minute on two CPU cores.

    A file may list several methods or seeds: method = ["fedavg", "fedsam"], seeds = [0, 1]. A run that is finished in
    its folder is shown, not repeated; one that is unfinished goes on from its last checkpoint.
    """
    from fedkeel.cli.settings import Request, parse_seeds, read_request
    from fedkeel.cli.training import Machine, Target, folder_of

    request = Request(
        file=file,
        methods=tuple(split_words(method or "")),
        dataset=dataset,
        problem=problem,
        model=model,
        partition=partition,
        rounds=rounds,
        seeds=() if seeds is None else parse_seeds(seeds),
        assignments=tuple(settings or ()),
        trust=trust,
    )
    asked = read_request(request)
    targets = [
        Target(one.experiment, folder_of(one.label, one.experiment, out, len(asked) == 1), one.label) for one in asked
    ]
    tracking, callbacks = Tracking.of(track, tensorboard, mlflow, wandb), read_callbacks(keep, patience, callback)
    carry_out(
        targets,
        Machine(engine, workers, device, precision, tracking, callbacks, read_metrics(metrics)),
        json=json,
        progress=not no_progress,
        below=None if len(targets) == 1 else out,
    )
    if request == Request() and not json:
        report_on([target.folder for target in targets], (out or Path("runs")) / "quickstart.html")


@examples("fedkeel resume runs/comparison", "fedkeel resume runs/fedavg-59601bb60e28 --rounds 200")
def resume(
    folder: Annotated[Path, argument(metavar="DIR", help="A run's folder, or one that holds several.")],
    problem: OwnProblem = None,
    rounds: Annotated[int | None, option(metavar="N", help="Go on to round N; a larger one extends.")] = None,
    engine: Engine = "auto",
    workers: Workers = None,
    device: Device = "auto",
    precision: Annotated[
        str | None, option(metavar="NAME", help="float32, float64 or bfloat16; default: as the run began.")
    ] = None,
    keep: Keep = None,
    patience: Patience = None,
    callback: CallbackNames = None,
    metrics: Metrics = "",
    track: Track = "",
    tensorboard: ToTensorBoard = False,
    mlflow: ToMlflow = False,
    wandb: ToWandb = False,
    trust: Trusting = False,
    json: Json = False,
    no_progress: NoProgress = False,
) -> None:
    """Go on with a run from its last checkpoint, or extend it.

    DIR is a run's folder, or one that holds several; of these also runs that `fedkeel run` had not begun are made. The
    result is the same, bit for bit, as without the pause; what was tracked is tracked on, and callbacks go on;
    --patience N takes the place of the one before.
    """
    from fedkeel.cli.training import Machine, Target, read_planned, runs_in
    from fedkeel.problems.given import find_problem
    from fedkeel.runs.environment import names_before
    from fedkeel.runs.experiment import Experiment
    from fedkeel.runs.folder import read_experiment
    from fedkeel.runs.following import warn_of_stop

    targets, folders = [], runs_in(folder)
    below = None if folders == [folder] else folder
    planned = {} if below is None else read_planned(below)
    arithmetic = precision or precision_of(folders)
    tracked = ",".join(dict.fromkeys(name for path in folders for name in names_before(path, "track")))
    for path, data in ({path: read_experiment(path) for path in folders} | planned).items():
        data |= {} if rounds is None else {"rounds": rounds}
        own = {} if problem is None else {"problem": find_problem(problem)}
        experiment = Experiment.load(data | own, trust=trust)
        targets.append(Target(experiment, path, experiment.plan.method.name))
    tracking = Tracking.of(track or tracked, tensorboard, mlflow, wandb)
    callbacks = go_on_with(read_callbacks(keep, patience, callback), folders, trust, patience)
    outcomes = carry_out(
        targets,
        Machine(engine, workers, device, arithmetic, tracking, callbacks, read_metrics(metrics, folders, trust)),
        json=json,
        progress=not no_progress,
        below=below,
    )
    for outcome in outcomes:
        if outcome.found and outcome.run is not None:
            warn_of_stop(
                outcome.target.folder, outcome.run.result.get("stopped"), outcome.target.experiment.plan.rounds
            )


def precision_of(folders: list[Path]) -> str:
    """What the runs were made in."""
    from fedkeel.errors import RequestError
    from fedkeel.runs.environment import precision_before

    found = sorted({precision_before(path) or "float32" for path in folders})
    if len(found) > 1:
        raise RequestError(
            f"these runs were begun in {' and '.join(found)}.", "resume them one by one, or give all --precision NAME"
        )
    return found[0]


def carry_out(
    targets: list[Target], machine: Machine, *, json: bool, progress: bool, below: Path | None
) -> Sequence[Outcome]:
    """Train, then print; a signal ends the training with its checkpoint written. `below` is the folder of several runs,
    which knows those that have not begun."""
    from fedkeel.cli import results
    from fedkeel.cli.fetching import fetch
    from fedkeel.cli.progress import display
    from fedkeel.cli.training import name_runs, note_planned, train

    try:
        fetch(sorted({target.experiment.dataset or "" for target in targets}), progress)
        with display(progress, name_runs(targets)) as shown:
            if below is not None:
                note_planned(below, targets)
            outcomes = train(targets, machine, shown)
            if below is not None:
                note_planned(below)
    except Stopped as stopped:
        say(stderr(), str(stopped), "bold yellow", how_to_go_on(targets))
        raise typer.Exit(stopped.exit_code) from None
    if json:
        typer.echo(results.write_document(outcomes))
    else:
        results.show(outcomes, stdout())
    if any(outcome.run is None for outcome in outcomes):
        raise typer.Exit(1)
    return outcomes


def report_on(folders: list[Path], page: Path) -> None:
    """The quick start's page."""
    from fedkeel.report.page import write_report

    write_report(folders, page, title="fedkeel: the quick start")
    stdout().print(f"\nCurves, drift and the clients' labels: {page}", soft_wrap=True)


def how_to_go_on(targets: list[Target]) -> str:
    """Where the interrupted run stands, and the command that goes on with it."""
    from fedkeel.methods.named import own_names
    from fedkeel.runs.checkpoint import list_checkpoints

    target = next((target for target in targets if not (target.folder / "result.json").exists()), targets[-1])
    saved = list_checkpoints(target.folder / "checkpoint")
    if not saved:
        return f"{target.label} had not begun. The same command again goes on."
    done, again = int(saved[0].stem), " (or the same command again, for all runs)" if len(targets) > 1 else ""
    stands = f"{target.label} stands at round {done} of {target.experiment.plan.rounds}, checkpoint written."
    trust = " --trust" if any(own_names(target.experiment.save())) else ""
    return f"{stands} Go on with: fedkeel resume {shlex.quote(str(target.folder))}{trust}{again}"
