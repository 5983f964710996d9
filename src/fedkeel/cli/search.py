"""`fedkeel search`: look for a composition of rules that beats published methods tuned with the same tries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from fedkeel.cli.compare import show
from fedkeel.cli.console import complain, count, describe_score, in_json, note, say, stderr, stdout, table
from fedkeel.cli.options import Device, Engine, NoProgress, On, Precision, StudyFolder, Trusting, Workers
from fedkeel.cli.pages import Json, examples
from fedkeel.cli.search_folder import (
    claim,
    find_place,
    keep_tuning,
    read_reached,
    write_tries,
    write_winner,
)
from fedkeel.text import plural

if TYPE_CHECKING:
    from fedkeel.errors import RunError
    from fedkeel.runs.experiment import Experiment
    from fedkeel.runs.finished_run import Run
    from fedkeel.studies.compare import Comparison
    from fedkeel.studies.search import Rung


@examples(
    "fedkeel search search.toml",
    "fedkeel search search.toml --out runs/search --device cuda",
)
def search(
    file: Annotated[Path, typer.Argument(metavar="SEARCH.toml", help="Experiment, parts, grid, published methods.")],
    engine: Engine = "auto",
    workers: Workers = None,
    device: Device = "auto",
    precision: Precision = "float32",
    out: StudyFolder = Path("runs/search"),
    on: On = "here",
    trust: Trusting = False,
    json: Json = False,
    no_progress: NoProgress = False,
) -> None:
    """Try compositions of rules and published methods alike, and hold the winner against the best published one.

    Both sides get the same number of tries. They are halved by rounds: each rung trains the better ones of the rung
    before for longer, judged on the validation share, never on the test set. The winner of each side is then trained
    anew on fresh seeds and splits and scored on the test set once. DIR gets winner.toml (an experiment to run),
    search.jsonl (every try) and report.html.
    """
    from fedkeel.cli.fetching import fetch
    from fedkeel.cli.settings import read_file
    from fedkeel.cli.study_runs import StudyRuns, open_cluster
    from fedkeel.cli.training import Machine, Target
    from fedkeel.papers.reproduce import folder_of
    from fedkeel.report.page import write_report
    from fedkeel.studies.choice import Choice, write_choice
    from fedkeel.studies.run_groups import group_runs
    from fedkeel.studies.samplers import propose_candidates
    from fedkeel.studies.search import COMPOSED, PUBLISHED, Search, halve

    data = read_file(file, "give a .toml file with [parts.NAME], [published.METHOD] and [grid]")
    asked = Search.load(data, trust=trust)
    machine = Machine(engine, workers, device, precision)
    cluster = open_cluster(on, machine)

    def execute(requests: Sequence[tuple[str, Experiment]]) -> list[Run | None]:
        """Read what stands in its folder for as long or longer, and train the rest."""
        targets = [Target(one, find_place(one, out / "tries"), label) for label, one in requests]
        runs = [read_reached(target) for target in targets]
        missing = [target for target, run in zip(targets, runs, strict=True) if run is None]
        trained = iter(train(missing) if missing else ())
        made = [next(trained) if run is None else run for run in runs]
        for target, run in zip(targets, made, strict=True):
            keep_tuning(target.folder, run)
        return made

    claim(out, data)
    fetch([str(asked.base.get("dataset"))], not no_progress)
    sides: dict[str, list[Rung]] = {}
    with cluster as crew:
        train = StudyRuns(machine, not no_progress, crew)
        for side in (COMPOSED, PUBLISHED):
            proposed = asked.sampler == "optuna"
            drawn = propose_candidates(asked, side, execute) if proposed else asked.draw(side)
            if len(drawn) < asked.candidates:
                tries = f"the {side} side has {plural(len(drawn), 'candidate')} of {asked.candidates}"
                note(f"{tries}: {'Optuna found no more' if proposed else 'there are no more in its grid'}")
            sides[side] = halve(asked, drawn, execute)
            write_tries(out / "search.jsonl", sides)
        if not json:
            show_rungs(sides)
        told = {"search": {side: [describe_rung(rung) for rung in rungs] for side, rungs in sides.items()}}
        if lost := [(side, rungs[-1]) for side, rungs in sides.items() if not rungs[-1].ranked]:
            give_up([explain_failures(*one, train.errors) for one in lost], told if json else None)
        winners = [rungs[-1].ranked[0] for rungs in sides.values()]
        finals = [
            Target(one, folder_of(one, out / "final"), label)
            for winner in winners
            for label, one in asked.finals(winner)
        ]
        # the published one first: differences are to what comes first
        named = sorted(finals, key=lambda target: target.label != winners[1].label)
        write_choice(out, Choice([target.folder.name for target in named], asked.sweep.tuned))
        ends = train(finals)
    write_winner(out / "winner.toml", winners[0].experiment.with_(validation=0.0), asked.base.get("problem"))
    published = winners[1].experiment.plan.method.name
    form = "json" if json else ""
    groups = group_runs([run for run in ends if run], asked.seeds)
    if len(groups) < len(winners):
        why = "every final run of one side failed.", "lower the rates of the grid, or give other seeds"
        give_up([why], told if json else None)
    made = show(groups, None, published, form, told, asked.sweep.tuned, "last")
    if not json:
        stdout().print(conclude(made), soft_wrap=True)
    trained = {target.folder for target, run in zip(finals, ends, strict=True) if run}
    page = out / "report.html"
    title = "Search: the winner against the best published method"
    write_report([target.folder for target in named if target.folder in trained], page, title=title, asked=asked.seeds)
    say(stderr(), "report", "bold green", str(page))
    if None in ends:
        raise typer.Exit(1)


def give_up(reasons: Sequence[tuple[str, str | None]], told: Mapping[str, Any] | None) -> NoReturn:
    """End without a comparison: what was tried as a JSON document, if it was asked for, and why it led to nothing."""
    if told is not None:
        typer.echo(in_json({"methods": []} | dict(told)))
    for what, hint in reasons:
        complain(what, hint)
    raise typer.Exit(1)


def explain_failures(side: str, rung: Rung, broken: Mapping[str, RunError]) -> tuple[str, str | None]:
    """Why no candidate of a rung has a score, by its first one, and a hint: `broken` tells of runs that broke off."""
    from fedkeel.runs.finished_run import NO_SAMPLE, RAISE_SHARE

    first, reason = next(iter(rung.reasons.items()))
    what = f"every candidate of the {side} side that trained for {plural(rung.rounds, 'round')} failed"
    if (error := broken.get(first.name_try(rung.rounds))) is not None:
        return f"{what}: {error.message}", error.hint
    return f"{what}: {reason}.", RAISE_SHARE if reason == NO_SAMPLE else "lower the rates of the grid"


def conclude(made: Comparison) -> str:
    """What the final runs say of the winner, in a sentence."""
    from fedkeel.analysis.intervals import ALIKE
    from fedkeel.problems.metrics import lower_is_better
    from fedkeel.problems.problem import Problem
    from fedkeel.studies.run_groups import measure_of

    winner = next(group for group in made.groups if group is not made.baseline)
    found, names = made.difference(winner), f"{winner.label} and {made.baseline.label}"
    for side in (winner, made.baseline):
        if (having := len(side.values(made.compared_by))) < len(side.seeds):
            return f"{names}: not decided, since {side.label} has numbers for {having} of {len(side.seeds)} seeds"
    if found is None or found.low is None or found.high is None:
        alike = found is not None and found.reason == ALIKE
        why = "all seeds differ alike, which gives no interval" if alike else "one seed decides nothing"
        return f"{names}: not decided, since {why}"
    if found.low <= 0 <= found.high:
        return f"{names}: not decided, since the interval of their difference holds 0"
    better = (found.mean > 0) != lower_is_better(measure_of(made.groups) or "loss")
    ahead, behind = (winner, made.baseline) if better else (made.baseline, winner)
    own = all(isinstance(run.plan.source, Problem) for run in winner.runs.values())  # its clients are what they are
    return f"{ahead.label} is ahead of {behind.label} on fresh seeds{'' if own else ' and splits'}"


def describe_rung(rung: Rung) -> dict[str, Any]:
    """A rung as plain data."""
    return {
        "rounds": rung.rounds,
        "backward_passes": rung.passes,
        "scores": [{"candidate": one.label, "score": score} for one, score in rung.scores.items()],
    }


def show_rungs(sides: Mapping[str, Sequence[Rung]]) -> None:
    """The best candidate of every rung, and what those that did not break off have cost."""
    made = table(["side!", "rounds>", "candidates>", "failed>", "best on validation>", "which", "clients' gradients>"])
    for side, rungs in sides.items():
        for rung in rungs:
            best = rung.ranked[0] if rung.ranked else None
            came = describe_score(None if best is None else rung.scores[best])
            failed = len(rung.scores) - len(rung.ranked)
            name = "" if best is None else best.label
            made.add_row(side, str(rung.rounds), str(len(rung.scores)), str(failed), came, name, count(rung.passes))
    stdout().print(made)
    if broken := sum(rung.broken for rungs in sides.values() for rung in rungs):
        stdout().print(f"gradients of {plural(broken, 'candidate')} that broke off are not counted", style="dim")
