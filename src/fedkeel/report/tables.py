"""The parts of a page that are text: the summary and the commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import product
from operator import attrgetter, itemgetter

from fedkeel.problems.metrics import lower_is_better
from fedkeel.report.content import Setting, group_id
from fedkeel.report.series import RESULTS, Row, Spread
from fedkeel.report.source import Group
from fedkeel.runs.environment import NOT_AVERAGED, keep_one_place
from fedkeel.runs.own_code import describe_edits, sources_of
from fedkeel.runs.record import MEANINGS
from fedkeel.studies.compare import paired_differences, write_rounds
from fedkeel.studies.cost_to_target import Spending
from fedkeel.studies.publish import write_count
from fedkeel.studies.run_groups import name_gaps
from fedkeel.text import byte_size, duration

COMPARED = 8  # at most so many methods get a sentence on each difference
ROUNDS, BYTES, SECONDS = attrgetter("rounds"), attrgetter("bytes"), attrgetter("seconds")

Cell = tuple[str, float | None]
"""Text, and the number it is sorted by."""


def summary(setting: Setting) -> str:
    """One row per method: what it reached and what it cost, mean ± standard deviation over seeds."""
    measure = setting.groups[0].measure or "loss"
    over = {run.summarise(measure).get("mean_last_over", 0) for group in setting.groups for run in group.runs}
    last = f"mean of last {over.pop()}" if len(over) == 1 else "mean of last"
    results = RESULTS if any(row.results["reported"] is not None for row in setting.rows) else RESULTS[:3]
    reached = ["best", "last", last, "reported"][: len(results)]
    heads = ["method", "seeds", *reached, "rounds", "sent", "time", "clients' backward passes"]
    if setting.target is not None:
        goal = measured(setting.target, measure)
        heads += [f"rounds to {goal}", f"sent to {goal}", f"time to {goal}"]
    leading = leaders(setting.rows, measure, results)
    made = [cells(row, measure, setting.target is not None, leading, results) for row in setting.rows]
    body = {group_id(setting.index, i): found for i, found in enumerate(made)}
    policy = setting.groups[0].runs[0].policy
    whose = "" if policy is None else f"{measure.removeprefix('client_')} of {policy.subject}"
    name = whose or MEANINGS.get(measure, measure)
    note = f"{name[:1].upper()}{name[1:]}; best is the best round on test, as in the papers."
    others = [group.label for group in setting.groups if group.runs[0].policy != policy]
    if others:
        note += f" Another policy judges {', '.join(others)}: do not compare them with the other rows."
    if policy is not None and len(results) > 3:
        note += f" Reported is {policy.report_in_words}."
    if any(len(group.runs) > 1 for group in setting.groups):
        note += " Mean ± standard deviation over seeds."
    if any(len({run.seed for run in group.runs}) < len(group.runs) for group in setting.groups):
        note += " Runs of one seed differ in their partition seeds."
    places = sorted({run.place for group in setting.groups for run in group.runs if run.place})
    if len(places) > 1:
        note += f" Times are of different machines or engines: {'; '.join(places)}; {NOT_AVERAGED}."
    named = [(f"{group.label}, seed {run.seed}", run) for group in setting.groups for run in group.runs]
    ended = [f"{name}: {run.ended}" for name, run in named if run.ended]
    repeats = [
        f"{group.label}, seed {run.seed}: {run.path} is left out; another run has the same experiment and seeds."
        for group in setting.groups
        for run in group.repeats
    ]
    leaks = [told for group in setting.groups for run in group.runs if (told := run.leak) is not None]
    edits = [
        f"{told[:1].upper()}{told[1:]}."
        for told in describe_edits(
            (group.label, run.seed, sources_of(run.path, ())) for group in setting.groups for run in group.runs
        )
    ]
    gaps = [
        f"{told}; it leads in none of these."
        for group in setting.groups
        for told in name_gaps(
            group.label,
            [(run.seed, run.summarise(measure) | {"reported": run.reported}) for run in group.runs]
            + [(seed, {}) for seed in group.failed],
        )
    ]
    notes = [note, *gaps, *differences(setting, measure), *edits, *repeats, *ended, *leaks]
    return sortable_table(setting.index, notes, heads, body)


def differences(setting: Setting, measure: str) -> list[str]:
    """Say of a few methods how their results differ from the first one's, where seeds can be paired: the reported
    numbers where all runs have them, or the best rounds and the last ones."""
    if len(setting.groups) > COMPARED:
        return []
    scale, unit = (1, "") if measure.endswith("loss") else (100, " points")
    reports = all(
        group.measure == measure and run.reported is not None for group in setting.groups for run in group.runs
    )

    def results(group: Group, word: str) -> dict[tuple[int, int], float]:
        found = {run.seeds: run.reported if reports else run.summarise(measure).get(word) for run in group.runs}
        return {seeds: value for seeds, value in found.items() if value is not None}

    told = []
    for group, word in product(setting.groups[1:], ("reported number",) if reports else ("best", "last")):
        first = results(setting.groups[0], word)
        pairs = paired_differences(results(group, word), first)
        if pairs is not None and pairs.low is not None and pairs.high is not None:
            mean, low, high = (f"{scale * value:+.3g}" for value in (pairs.mean, pairs.low, pairs.high))
            names = f"{word.capitalize()} of {group.label} less {word} of {setting.groups[0].label}"
            told.append(f"{names}: {mean}{unit}; 95 % interval {low} to {high}, {pairs.pairs} seeds paired.")
    return told


def sortable_table(
    index: int, notes: Sequence[str], heads: Sequence[str], rows: Mapping[str, str], mark: str = ""
) -> str:
    """A table of a setting with a row for each group, and notes above it."""
    buttons = [f'<button type="button">{escape(name)}</button>' for name in heads]
    body = "".join(f'<tr data-group="{group}">{cells}</tr>' for group, cells in rows.items())
    told = "".join(f'<p class="soft">{escape(note)}</p>' for note in notes)
    return f'<div{mark} data-setting="{index}">{told}{html_table(buttons, body)}</div>'


def html_table(heads: Sequence[str], body: str) -> str:
    """A table that scrolls where it is wider than the page, from the contents of its head and its rows."""
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def cells(row: Row, measure: str, with_target: bool, leading: Sequence[Row | None], results: Sequence[str]) -> str:
    unfinished = sum(run.unfinished for run in row.group.runs)
    diverged = sum(run.divergence is not None for run in row.group.runs)
    short = [f"{count} {word}" for count, word in ((diverged, "diverged"), (unfinished, "unfinished")) if count]
    name = escape(row.group.label) + (f" <small>({', '.join(short)})</small>" if short else "")
    found: list[Cell] = [spread(row.results[name], measure) for name in results]
    marks = ["leader" if row is best else "" for best in leading]
    costs: list[Cell] = [
        mean_cost(row.totals, ROUNDS, write_rounds),
        mean_cost(row.totals, BYTES, byte_size),
        mean_cost(of_one_place(row, row.totals), SECONDS, duration),
        mean_cost(row.totals, lambda cost: cost.backward_passes, lambda n: f"{n:,.0f}".replace(",", " ")),
    ]
    asked = row.group.wanted
    if with_target:
        reached = [cost for cost in row.to_target if cost is not None]
        share = "" if len(reached) == asked else f" <small>({len(reached)} of {asked})</small>"
        for part, write in ((ROUNDS, write_rounds), (BYTES, byte_size), (SECONDS, duration)):
            text, value = mean_cost(of_one_place(row, row.to_target) if part is SECONDS else reached, part, write)
            costs.append((text + share if reached else "never", value))
    plain = [td(text, value) for text, value in costs]
    judged = [td(text, value, mark) for (text, value), mark in zip(found, marks, strict=True)]
    fewest = min((found.count for found in row.results.values() if found is not None), default=len(row.group.runs))
    return "".join([f"<td>{name}</td>", td(write_count(fewest, asked), asked), *judged, *plain])


def td(text: str, value: float | None, mark: str = "") -> str:
    attributes = (f' class="{mark}"' if mark else "") + ("" if value is None else f' data-value="{value:.8g}"')
    return f"<td{attributes}>{text}</td>"


def leaders(rows: Sequence[Row], measure: str, results: Sequence[str]) -> list[Row | None]:
    """The row with the best value in each column of results, of those that have one of every seed."""
    better = min if lower_is_better(measure) else max
    found: list[Row | None] = []
    for name in results:
        known = [(spread, row) for row in rows if (spread := row.results[name]) is not None]
        there = [(spread.mean, row) for spread, row in known if spread.count == row.group.wanted]
        found.append(better(there, key=itemgetter(0))[1] if len(there) > 1 else None)
    return found


def spread(value: Spread | None, measure: str) -> Cell:
    if value is None:
        return "–", None
    if measure == "accuracy":
        mean, deviation = f"{100 * value.mean:.2f}", f"{100 * value.deviation:.2f}"
        text = f"{mean} ± {deviation} %" if value.count > 1 else f"{mean} %"
    else:
        text = f"{value.mean:.4g} ± {value.deviation:.2g}" if value.count > 1 else f"{value.mean:.4g}"
    return text, value.mean


def of_one_place(row: Row, costs: Sequence[Spending | None]) -> list[Spending]:
    """The costs of the runs on one machine and engine, of which there are most."""
    known = [(run.place, cost) for run, cost in zip(row.group.runs, costs, strict=True) if cost is not None]
    return [cost for _, cost in keep_one_place(known, lambda pair: pair[0])]


def mean_cost(costs: Iterable[Spending], part: Callable[[Spending], float], write: Callable[[float], str]) -> Cell:
    found = Spread.of(part(cost) for cost in costs)
    return ("–", None) if found is None else (write(found.mean), found.mean)


def measured(value: float, measure: str) -> str:
    return f"{100 * value:g}\N{NO-BREAK SPACE}%" if measure == "accuracy" else f"{value:g}"


FROM_PYTHON = "# made from Python: call fk.run(experiment, out=FOLDER) from the program that made it"
OWN_PROBLEM = "# its problem is your own, which a folder does not hold: give the command that was typed"
"""Of runs that their folder alone does not make again."""


def commands(setting: Setting) -> str:
    """For each run the command that makes it again, and for each method the experiment file it needs."""
    parts = []
    for group in setting.groups:
        lines = []
        for run in group.runs:
            again = run.command or (OWN_PROBLEM if run.typed else FROM_PYTHON)
            typed = f'<p class="soft">typed: <code>{escape(run.typed)}</code></p>' if run.typed else ""
            lines.append(
                f'<p class="soft">seed {run.seed}, {escape(str(run.path))}</p><pre>{escape(again)}</pre>{typed}'
            )
        toml = escape(group.runs[0].toml)
        parts.append(
            f'<details class="card" data-setting="{setting.index}"><summary>{escape(group.label)}</summary>'
            f"{''.join(lines)}"
            f"<details><summary>experiment.toml of seed {group.runs[0].seed}</summary><pre>{toml}</pre></details>"
            "</details>"
        )
    return "".join(parts)
