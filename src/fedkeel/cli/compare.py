"""`fedkeel compare`: runs held against each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from fedkeel.cli.console import count, in_json, note, stdout, table
from fedkeel.cli.pages import Json, examples, option
from fedkeel.errors import RequestError
from fedkeel.text import byte_size, duration
from fedkeel.written_values import check_accuracy

if TYPE_CHECKING:
    from fedkeel.studies.compare import Comparison
    from fedkeel.studies.run_groups import RunGroup


TargetAccuracy = Annotated[
    float | None,
    option(metavar="ACC", callback=check_accuracy, help="An accuracy such as 0.75; default: the lowest best of all."),
]
Baseline = Annotated[
    str | None, option(metavar="METHOD", help="Differences are to this one; default: the first of the table.")
]
Latex = Annotated[
    bool, option("--latex", help="Print a LaTeX table: mean ± deviation, best bold, * by a paired t-test.")
]
Csv = Annotated[bool, option("--csv", help="Print the same numbers as comma-separated values.")]


def form_of(json: bool, latex: bool, csv: bool) -> str:
    """Name the one form in which results are printed: "json", "latex", "csv", or "" for tables to read."""
    asked = [name for name, given in (("json", json), ("latex", latex), ("csv", csv)) if given]
    if len(asked) > 1:
        raise RequestError(
            "one of --json, --latex and --csv can be printed at a time.", "give the command once for each"
        )
    return "".join(asked)


@examples(
    "fedkeel compare runs/comparison",
    "fedkeel compare runs/a runs/b --target 0.75",
    "fedkeel compare runs/comparison --baseline fedavg --latex > table.tex",
    "fedkeel compare runs/comparison --measure f1",
)
def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders, or folders that hold several.")],
    target: Annotated[
        float | None, option(metavar="ACC", help="An accuracy such as 0.75, or a loss; default: what all reach.")
    ] = None,
    baseline: Baseline = None,
    measure: Annotated[
        str | None, option(metavar="NAME", help="Compare by f1, loss (on tests), training_loss …; default: accuracy.")
    ] = None,
    json: Json = False,
    latex: Latex = False,
    csv: Csv = False,
) -> None:
    """Compare runs: mean and spread over seeds, paired differences with intervals, and the cost to a target.

    Costs are rounds, bytes both ways, seconds and the clients' gradient evaluations until the target accuracy is
    first reached; gradients that a server takes are not counted. Of a sweep's or a search's folder the final runs are
    compared, not the settings that were tried on the way.
    """
    from fedkeel.cli.training import runs_in
    from fedkeel.runs.finished_run import load_run
    from fedkeel.runs.own_code import describe_edits
    from fedkeel.studies.caveats import code_of, edited_between
    from fedkeel.studies.choice import read_choice
    from fedkeel.studies.compare import check_target
    from fedkeel.studies.run_groups import by_measure, group_runs

    form = form_of(json, latex, csv)
    choices = {folder: read_choice(folder) for folder in folders}
    found = {folder: runs_in(folder) for folder in folders}
    found |= {folder: choice.pick(found[folder]) or found[folder] for folder, choice in choices.items() if choice}
    tuned = {key for choice in choices.values() if choice for key in choice.tuned}
    paths = list(dict.fromkeys(path.resolve() for folder in folders for path in found[folder]))
    runs = [load_run(path) for path in paths]
    groups = by_measure(group_runs(runs), measure)
    if again := len(runs) - sum(len(group.runs) for group in groups):
        what = "run is" if again == 1 else "runs are"
        note(f"{again} {what} of an experiment and seed given later, and left out")
        if not edited_between(groups):
            for told in describe_edits([(str(run.path), run.plan.seed, code_of(run)) for run in runs]):
                note(told)
    show(groups, check_target(target, groups), baseline, form, tuned=tuned)


def show(
    groups: list[RunGroup],
    target: float | None,
    baseline: str | None,
    form: str,
    more: Mapping[str, Any] | None = None,
    tuned: Collection[str] = (),
    number: str = "best",
) -> Comparison:
    """The tables, or one "json" document, with `more` in it, or a table as "latex" or "csv"; on stderr, what makes the
    comparison unfair.

    What was `tuned` for each method does not. Differences are of `number`.
    """
    from fedkeel.runs.environment import NOT_AVERAGED
    from fedkeel.studies.caveats import edited_between, machines, unfair, unfinished
    from fedkeel.studies.compare import Comparison
    from fedkeel.studies.publish import write_csv, write_latex

    for key in unfair(groups, tuned):
        note(f"the runs differ in {key}, so more than their methods is compared")
    for told in (*edited_between(groups), *unfinished(groups)):
        note(told)
    if len(places := machines(groups)) > 1:
        note(f"seconds are of different machines or engines: {'; '.join(places)}; {NOT_AVERAGED}")
    made = Comparison.of(groups, baseline, target, number)
    base = made.baseline
    first = [f"differences are to {base.label}, the first here; --baseline METHOD takes another"]
    if baseline is not None or len(groups) < 2 or form == "json":
        first = []
    for told in (*made.gaps, *first) if form else ():  # a table to read has them below it
        note(told)
    for group in groups:
        if not group.runs.keys() & base.runs.keys():
            note(f"{group.label} and {base.label} share no seed: nothing is paired")
        elif group.seeds != base.seeds:
            shared = ", ".join(str(seed) for seed in group.seeds if seed in base.seeds)
            told = f"{group.label} and {base.label} share some seeds only ({shared}): their difference is over those"
            note(f"{told}, each mean over all seeds of its own")
    if form in ("latex", "csv"):
        typer.echo((write_latex if form == "latex" else write_csv)(made), nl=False)
    elif form:
        typer.echo(in_json(made.document() | dict(more or {})))
    else:
        show_accuracy(made, first)
        show_cost(made)
    return made


def show_accuracy(made: Comparison, lines: Sequence[str] = ()) -> None:
    """Show accuracies in %, other measures as they are; below stand the name of such a measure, and the `lines`."""
    from fedkeel.studies.caveats import judged_as
    from fedkeel.studies.compare import describe_difference
    from fedkeel.studies.publish import make_rows, scale_and_form, title_columns
    from fedkeel.studies.run_groups import describe_measure, measure_of

    rows, (scale, form) = make_rows(made), scale_and_form(made)
    unit = " %" if scale == 100 else ""
    titles = [f"{title.lower()}>" for title in title_columns(made, [*rows[0].numbers])]
    difference = f"{made.compared_by} to {made.baseline.label}>"
    shown = table(["method!", "seeds>", *titles, difference, "95 % interval>", *([] if made.is_even else ["pairs>"])])
    for row in rows:
        cells = []
        for mean, std in row.numbers.values():
            spread = "" if std is None else f" ± {std:{form}}"
            cells.append("–" if mean is None else f"{mean:{form}}{spread}{unit}")
        seeds, *pairs = row.in_words
        told = describe_difference(row.difference, scale, form)
        shown.add_row(row.label, seeds, *cells, *told, *([] if made.is_even else pairs))
    stdout().print(shown)
    varied = any(std is not None for row in rows for _, std in row.numbers.values())
    deviation = ["± is the standard deviation over seeds"] if varied else []
    measure = measure_of(made.groups)
    named = [] if measure in ("accuracy", None) else [f"the numbers are {describe_measure(measure)}"]
    for line in (*named, *deviation, *made.gaps, *lines, *judged_as(made.groups)):
        stdout().print(Text(line, "dim"))


def show_cost(made: Comparison) -> None:
    from fedkeel.studies.compare import cost_to, write_rounds
    from fedkeel.studies.run_groups import describe_measure, measure_of

    groups, target = made.groups, made.target
    measure = measure_of(groups)
    if measure is None:
        return
    words = describe_measure(measure)
    if measure == "accuracy":
        aim = f"{100 * target:.2f} % accuracy"
    else:
        aim = f"a {words} of {target:.4g}" if measure.endswith("loss") else f"{words} = {target:.4g}"
    shown = table(["method!", "reached>", "rounds>", "sent>", "time>", "clients' gradients>"], f"to {aim}")
    some = False
    for group in groups:
        cost = cost_to(group, target)
        some |= cost is not None and cost.reached < len(group.seeds)
        if cost is None:
            shown.add_row(group.label, f"0 of {len(group.seeds)}", *["–"] * 4)
            continue
        reached, rounds = f"{cost.reached} of {len(group.seeds)}", write_rounds(cost.rounds)
        spent = byte_size(cost.megabytes * 1e6), duration(cost.seconds), count(round(cost.gradients))
        shown.add_row(group.label, reached, rounds, *spent)
    stdout().print(shown)
    if some:
        stdout().print(Text("means over the runs that reached it; the others never did", "dim"))
