"""The end of `run` and `resume`: a table, or one JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from fedkeel.cli.console import count, in_json, measured, table
from fedkeel.cli.training import Outcome
from fedkeel.runs.finished_run import Run
from fedkeel.runs.record import MEANINGS, describe_stop
from fedkeel.text import byte_size

NUMBERS = ("best", "last", "mean_last")


def show(outcomes: Sequence[Outcome], console: Console) -> None:
    """One row per run, and below it the folders."""
    seeds = len({outcome.target.experiment.seed for outcome in outcomes}) > 1
    over = {outcome.run.result.get("mean_last_over") for outcome in outcomes if outcome.run}
    last = f"mean of\nlast {over.pop()}" if len(over) == 1 else "mean of\nlast"
    personal = any(outcome.run and "reported" in outcome.run.result for outcome in outcomes)
    names = (*NUMBERS, "reported") if personal else NUMBERS
    titles = [last if name == "mean_last" else name for name in names]
    columns = ["seed", *titles, "rounds", "up", "down", "seconds"]
    made = table(["method!", *(f"{name}>" for name in columns if seeds or name != "seed")])
    leader = find_leader(outcomes)
    for outcome in outcomes:
        cells = [
            outcome.target.label,
            *([str(outcome.target.experiment.seed)] if seeds else []),
            *write_numbers(outcome, names),
        ]
        made.add_row(*cells, style="bold" if outcome is leader else "")
    console.print(made)
    console.print()
    for line in list_notes(outcomes):
        console.print(Text(line, "dim"))
    console.print()
    console.print("Written to")
    width = max(len(outcome.target.label) for outcome in outcomes)
    for outcome in outcomes:
        state = "  (found finished)" if outcome.found else ""
        state = state if outcome.run else "  (failed)"
        console.print(f"  {outcome.target.label.ljust(width)}  {outcome.target.folder}{state}", soft_wrap=True)


def write_numbers(outcome: Outcome, names: Sequence[str]) -> list[str]:
    if outcome.run is None:
        return ["failed", *["–"] * (len(names) + 3)]
    result = outcome.run.result
    return [
        *(measured(result.get(name), result["judged_on"]) for name in names),
        count(result["rounds"]),
        byte_size(result["bytes_up"]),
        byte_size(result["bytes_down"]),
        f"{outcome.seconds:.1f}",
    ]


def find_leader(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The row to look at first, where runs are judged on accuracy: by what they report, if they do, or the last."""
    judged = [
        (number, outcome.run.result)
        for number, outcome in enumerate(outcomes)
        if outcome.run and outcome.run.last is not None and str(outcome.run.result["judged_on"]).endswith("accuracy")
    ]
    name = "reported" if all("reported" in result for _, result in judged) else "last"
    reached = [(result[name], -number) for number, result in judged]
    return outcomes[-max(reached)[1]] if len(reached) > 1 else None


def list_notes(outcomes: Sequence[Outcome]) -> list[str]:
    """What the numbers mean."""
    runs = [outcome.run for outcome in outcomes if outcome.run and outcome.run.result.get("best_means")]
    lines = sorted({line for run in runs for line in explain_measure(run)})
    deploying = ", ".join(dict.fromkeys(run.plan.method.name for run in runs if run.plan.method.deploys_another))
    lines += [
        f"{outcome.target.label}, seed {outcome.run.plan.seed}: {stopped}"
        for outcome in outcomes
        if outcome.run and (stopped := describe_stop(outcome.run.result))
    ]
    also = f"{deploying}: of the average, which is deployed; plain_… is the model that is trained"
    return [*lines, also] if deploying else lines


def explain_measure(run: Run) -> list[str]:
    """What a run was judged on, and what it reports."""
    measure, policy, means = run.result["judged_on"], run.plan.evaluation, run.result["best_means"]
    if policy is None or measure == "loss":
        return [f"best, last: {MEANINGS.get(measure, measure)}; best is the {means}"]
    told = f"best, last: {measure.removeprefix('client_')} of {policy.subject}; best is the {means}"
    also = ", the final tuning counted as one" if "tuned" in run.result else ""
    return [told, *([f"reported: {policy.report_in_words}{also}"] if "reported" in run.result else [])]


def write_document(outcomes: Sequence[Outcome]) -> str:
    """The same as JSON."""
    return in_json({"runs": [describe_outcome(outcome) for outcome in outcomes]})


def describe_outcome(outcome: Outcome) -> dict[str, Any]:
    experiment = outcome.target.experiment
    return {
        "method": outcome.target.label,
        "seed": experiment.seed,
        "dataset": experiment.dataset,
        "folder": str(outcome.target.folder),
        "state": "failed" if outcome.run is None else "found" if outcome.found else "trained",
        "seconds": round(outcome.seconds, 3),
        "result": None if outcome.run is None else outcome.run.result,
    }
