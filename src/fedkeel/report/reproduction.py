"""A self-contained page of reported against measured numbers, made from a ledger."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from fedkeel.papers import PAPERS, QUESTIONS, Table, tables
from fedkeel.papers.discrepancies import ABOUT, contradictions
from fedkeel.papers.ledger import Entry, keep_newest, read_lines, spent, standing
from fedkeel.papers.noise import NoiseOfLedger
from fedkeel.papers.results_page import (
    SUPERSEDED,
    cells_of,
    distinct_leads,
    meaning,
    shown,
    superseded,
    unmeasured,
    worth,
)
from fedkeel.papers.verdicts import Judgement, judge
from fedkeel.report.dots import COLOURS, OPEN, REPORTED, Dot, curve_chart, dot_chart
from fedkeel.report.drawing import styled
from fedkeel.report.figure_page import caption, compare_with_paper, describe_figure, runs_of_ledger, write_figure
from fedkeel.report.figures import write_charts
from fedkeel.report.page import STATIC, plain_page, show_chart, write_page
from fedkeel.report.paper_figures import draw
from fedkeel.report.sweeps import sweep_charts, trials_of_ledger
from fedkeel.report.tables import html_table
from fedkeel.text import plural

STYLE = """
main h3 { margin: 1.6rem 0 .4rem; } .legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .88rem; }
.legend span { display: inline-flex; gap: .4rem; align-items: center; white-space: nowrap; }
.legend i { font-style: normal; }
figure { margin-bottom: .8rem; max-width: 900px; }
td:last-child, th:last-child { text-align: left; } li { margin: .15rem 0; }
"""

MEASURED = "accuracy as the paper judges it (%)"
NAMES = ("cell", "reported", "measured", "difference", "last round", "rounds", "seeds", "minutes", "verdict")


def write_ledger_figures(ledger: Path, folder: Path, kinds: Sequence[str], style: str) -> list[Path]:
    """Draw the papers' figures that a ledger has runs of, and its runs that differ in one setting."""
    entries = read_lines(ledger, needed=True)
    written = [file for runs in runs_of_ledger(entries) for file in write_figure(runs, folder, (), kinds, style)[0]]
    with styled(style):
        return written + write_charts(sweep_charts(trials_of_ledger(keep_newest(entries)), MEASURED), folder, kinds)


def write_reproduction(ledger: Path, file: Path, title: str | None) -> int:
    """Write the page; how many runs it is about."""
    entries = read_lines(ledger, needed=True)
    write_page(file, page(entries, title or "Reported against measured"))
    return spent(keep_newest(entries))[0]


def page(entries: Sequence[Entry], title: str) -> str:
    noise, lines, entries = NoiseOfLedger(entries), entries, keep_newest(entries)
    counted = standing(entries)
    every = [(table, judge(table.cells, counted, noise=noise)) for paper in PAPERS for table in tables(paper)]
    parts = [legend(), section("Leads between methods", show_leads(every))]
    for paper, name in PAPERS.items():
        made = [
            show_table(table, shown(judged))
            for table, judged in every
            if table.paper == paper and (worth(table, judged, counted) or (paper == QUESTIONS and shown(judged)))
        ]
        parts.append(section(name, "".join(made)))
    judgements = [one for _, judged in every for one in judged]
    parts += [
        section("Figures of the papers, made again", show_figures(lines)),
        section("Against one setting", show_sweeps(entries)),
        section("Contradictions, and what was tried", show_contradictions(judgements, counted)),
        section("Superseded", show_superseded(lines)),
        section("Not measured, and why", show_unmeasured()),
    ]
    runs, hours, devices = spent(entries)
    about = " · ".join([plural(runs, "run"), f"{hours:.1f} hours", *devices])
    return plain_page(title, about, "".join(parts), STYLE, "ledger of runs")


def section(heading: str, main: str) -> str:
    """A part of the page; none where there is nothing for it."""
    return f"<section><h2>{escape(heading)}</h2>{main}</section>" if main else ""


def legend() -> str:
    def mark(colour: str, words: str, shape: str = "●") -> str:
        return f'<span><i style="color: {colour}" aria-hidden="true">{shape}</i>{escape(words)}</span>'

    marks = [mark(REPORTED, "reported", "○"), *(mark(c, v) for v, c in COLOURS.items())]
    marks += [mark(OPEN, "not judged, or one seed"), mark(OPEN, "a shortened run", "◆")]
    return f'<p class="soft legend">{"".join(marks)}</p>'


def show_leads(every: Sequence[tuple[Table, Sequence[Judgement]]]) -> str:
    dots = []
    for _, lead in distinct_leads(every):
        label = f"{lead.row} − {lead.over} · {lead.column}"
        short = lead.round < lead.rounds
        so_far = length(lead.round, lead.rounds)
        dots.append(Dot(label, lead.reported, None, lead.measured, None, lead.verdict, so_far, short))
    if not dots:
        return ""
    about = "How far one row is ahead of another, in points of accuracy, at the last round that both have reached."
    return show_chart(dot_chart(dots), "", about, label="leads between methods")


def show_table(table: Table, judged: Sequence[Judgement]) -> str:
    charts = []
    dots = [dot(one) for one in judged if one.mean is not None and one.cell.kind == "accuracy"]
    if dots:
        about = meaning([one for one in judged if one.cell.kind == "accuracy"])
        charts.append(show_chart(dot_chart(dots), "", about, label=table.title))
    charts += [curves_of(table, column, judged) for column in dict.fromkeys(one.cell.column for one in judged)]
    rows = "".join(f"<tr>{''.join(map(cell, [*cells_of(one), one.words]))}</tr>" for one in judged)
    numbers = f"<details><summary>numbers</summary>{html_table(NAMES, rows)}</details>"
    notes = dict.fromkeys(one.cell.note for one in judged if table.paper == QUESTIONS and one.cell.note)
    remarks = "".join(f'<p class="soft">{escape(note)}</p>' for note in notes)
    return (
        f"<h3>{escape(f'{table.paper}:{table.name}')} · {escape(table.title)}</h3>{remarks}{''.join(charts)}{numbers}"
    )


def show_figures(entries: Sequence[Entry]) -> str:
    return "".join(
        f"<h3>{escape(caption(runs.figure))}</h3>{describe_figure(runs.figure, draw(runs), compare_with_paper(runs))}"
        for runs in runs_of_ledger(entries)
    )


def show_sweeps(entries: Sequence[Entry]) -> str:
    made = sweep_charts(trials_of_ledger(entries), MEASURED)
    return "".join(show_chart(chart.figure, chart.title, chart.note, STATIC) for chart in made)


def curves_of(table: Table, column: str, judged: Sequence[Judgement]) -> str:
    """The rows of a column against rounds, where the ledger tells of at least two; the others are named."""
    here = [one for one in judged if one.cell.column == column and one.cell.kind == "accuracy"]
    told = {one.cell.row: entry for one in here if (entry := next((e for e in one.entries if e.bests), None))}
    if len(told) < 2:
        return ""
    absent = ", ".join(one.cell.row for one in here if one.cell.row not in told)
    about = f"{column}: best accuracy so far, by round, one seed each"
    about += f"; not recorded for {absent}" * bool(absent)
    return show_chart(curve_chart(told), "", about, label=f"{table.title}, {column}: best accuracy so far by round")


def dot(judged: Judgement) -> Dot:
    cell, mean = judged.cell, judged.mean
    assert mean is not None
    rounds = length(judged.rounds, int(cell.experiment["rounds"]))
    return Dot(
        cell.label, cell.reported, cell.spread, mean, judged.std, judged.verdict, rounds, shortened=judged.shortened
    )


def length(round: int, rounds: int) -> str:
    """How far runs have come."""
    return f"{round} of {rounds}" if round < rounds else f"{round} rounds"


def cell(text: str) -> str:
    """Markdown's bold is the only mark that cells have."""
    bold = re.sub(r"[*]{2}(.+?)[*]{2}", r"<b>\1</b>", escape(text))
    return f"<td>{bold}</td>"


def show_contradictions(judged: Sequence[Judgement], entries: Sequence[Entry]) -> str:
    items = []
    for one in contradictions(judged, entries):
        lines = "".join(f"<li>{escape(line)}</li>" for line in one.cells)
        tried = "".join(f"<li>{code(line)}</li>" for line in one.tried)
        besides = f"tried besides:<ul>{tried}</ul>" if tried else "tried besides: nothing yet"
        name = f"<b>{escape(one.name)}</b> ({escape(one.place)})"
        items.append(f"<li>{name}<ul>{lines}<li>{besides}</li></ul></li>")
    return f"<p>{code(ABOUT)}</p><ul>{''.join(items)}</ul>" if items else ""


def show_superseded(entries: Sequence[Entry]) -> str:
    rows = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in superseded(entries))
    return html_table(SUPERSEDED, rows) if rows else ""


def show_unmeasured() -> str:
    items = "".join(
        f"<li>{escape(name)} ({plural(count, 'cell')}): {escape(why)}</li>" for name, why, count in unmeasured()
    )
    return f"<ul>{items}</ul>" if items else ""


def code(text: str) -> str:
    return re.sub(r"`(.+?)`", r"<code>\1</code>", escape(text))
