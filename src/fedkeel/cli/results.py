"""The end of `run` and `resume`: a table, or one JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from fedkeel.cli.console import count, in_json, measured, megabytes, table
from fedkeel.cli.training import Outcome


def show(outcomes: Sequence[Outcome], console: Console) -> None:
    """One row per run, and below it the folders."""
    seeds = len({outcome.plan.experiment.seed for outcome in outcomes}) > 1
    over = {outcome.run.result.get("mean_last_over") for outcome in outcomes if outcome.run}
    last = f"mean of\nlast {over.pop()}" if len(over) == 1 else "mean of\nlast"
    columns = ["method!", "seed>", "best>", "last>", f"{last}>", "rounds>", "MB up>", "MB down>", "seconds>"]
    made = table(name for name in columns if seeds or name != "seed>")
    leader = best_of(outcomes)
    for outcome in outcomes:
        cells = [outcome.plan.label, *([str(outcome.plan.experiment.seed)] if seeds else []), *numbers(outcome)]
        made.add_row(*cells, style="bold" if outcome is leader else "")
    console.print(made)
    console.print()
    for line in notes(outcomes):
        console.print(Text(line, "dim"))
    console.print()
    console.print("Written to")
    width = max(len(outcome.plan.label) for outcome in outcomes)
    for outcome in outcomes:
        state = "  (found finished)" if outcome.found else ""
        state = state if outcome.run else "  (failed)"
        console.print(f"  {outcome.plan.label.ljust(width)}  {outcome.plan.folder}{state}", soft_wrap=True)


def numbers(outcome: Outcome) -> list[str]:
    if outcome.run is None:
        return ["failed", *["–"] * 6]
    result = outcome.run.result
    return [
        *(measured(result.get(name), result["judged_on"]) for name in ("best", "last", "mean_last")),
        count(result["rounds"]),
        megabytes(result["bytes_up"]),
        megabytes(result["bytes_down"]),
        f"{outcome.seconds:.1f}",
    ]


def best_of(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The row to look at first, where runs are judged on accuracy."""
    reached = [
        (outcome.run.last, -number)
        for number, outcome in enumerate(outcomes)
        if outcome.run and outcome.run.last is not None and str(outcome.run.result["judged_on"]).endswith("accuracy")
    ]
    return outcomes[-max(reached)[1]] if len(reached) > 1 else None


def notes(outcomes: Sequence[Outcome]) -> list[str]:
    """What the numbers mean."""
    results = [outcome.run.result for outcome in outcomes if outcome.run]
    found = {(r["judged_on"], r["best_means"]) for r in results if r.get("best_means")}
    named = {"accuracy": "accuracy on the test set", "test_loss": "loss on the test set", "loss": "training loss"}
    return [f"best, last: {named.get(measure, measure)}; best is the {means}" for measure, means in sorted(found)]


def document(outcomes: Sequence[Outcome]) -> str:
    """The same as JSON."""
    return in_json({"runs": [entry(outcome) for outcome in outcomes]})


def entry(outcome: Outcome) -> dict[str, Any]:
    experiment = outcome.plan.experiment
    return {
        "method": outcome.plan.label,
        "seed": experiment.seed,
        "dataset": experiment.dataset,
        "folder": str(outcome.plan.folder),
        "state": "failed" if outcome.run is None else "found" if outcome.found else "trained",
        "seconds": round(outcome.seconds, 3),
        "result": None if outcome.run is None else outcome.run.result,
    }
