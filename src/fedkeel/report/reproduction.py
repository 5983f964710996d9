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
from fedkeel.report.content import look
from fedkeel.report.dots import COLOURS, OPEN, REPORTED, Curve, Dot, curve_chart, dot_chart
from fedkeel.report.drawing import embed, styled
from fedkeel.report.figure_page import caption, compare_with_paper, describe_figure, runs_of_ledger, write_figure
from fedkeel.report.figures import write_charts
from fedkeel.report.page import plain_page, static_chart, write_page
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


def write_reproduction(ledger: Path, file: Path, title: str | None = None) -> int:
    """Write the page; how many runs it is about."""
    entries = read_lines(ledger, needed=True)
    write_page(file, page(entries, title or "Reported against measured"))
    return spent(entries)[0]


def page(entries: Sequence[Entry], title: str) -> str:
    noise, entries = NoiseOfLedger(entries), keep_newest(entries)
    counted = standing(entries)
    every = [(table, judge(table.cells, counted, noise=noise)) for paper in PAPERS for table in tables(paper)]
    parts = [legend(), lead_section(every)]
    for paper, name in PAPERS.items():
        made = [
            section(table, shown(judged))
            for table, judged in every
            if table.paper == paper and (worth(table, judged, counted) or (paper == QUESTIONS and shown(judged)))
        ]
        parts.append(f"<section><h2>{escape(name)}</h2>{''.join(made)}</section>" if made else "")
    parts += [figures_section(entries), sweeps_section(entries)]
    parts.append(contradiction_section([one for _, judged in every for one in judged], counted))
    parts.append(superseded_section(entries))
    parts.append(unmeasured_section())
    runs, hours, devices = spent(entries)
    about = " · ".join([plural(runs, "run"), f"{hours:.1f} hours", *devices])
    return plain_page(title, about, "".join(parts), STYLE, "ledger of runs")


def legend() -> str:
    def mark(colour: str, words: str, shape: str = "●") -> str:
        return f'<span><i style="color: {colour}" aria-hidden="true">{shape}</i>{escape(words)}</span>'

    marks = [mark(REPORTED, "reported", "○"), *(mark(c, v) for v, c in COLOURS.items())]
    marks += [mark(OPEN, "not judged, or one seed"), mark(OPEN, "a shortened run", "◆")]
    return f'<p class="soft legend">{"".join(marks)}</p>'


def lead_section(every: Sequence[tuple[Table, Sequence[Judgement]]]) -> str:
    dots = []
    for _, lead in distinct_leads(every):
        label = f"{lead.row} − {lead.over} · {lead.column}"
        short = lead.round < lead.rounds
        so_far = length(lead.round, lead.rounds)
        dots.append(Dot(label, lead.reported, None, lead.measured, None, lead.verdict, so_far, short))
    if not dots:
        return ""
    about = "How far one row is ahead of another, in points of accuracy, at the last round that both have reached."
    drawn = figure(about, embed(dot_chart(dots), "leads between methods"))
    return f"<section><h2>Leads between methods</h2>{drawn}</section>"


def section(table: Table, judged: Sequence[Judgement]) -> str:
    charts = []
    dots = [dot(one) for one in judged if one.mean is not None and one.cell.kind == "accuracy"]
    if dots:
        about = meaning([one for one in judged if one.cell.kind == "accuracy"])
        charts.append(figure(about, embed(dot_chart(dots), table.title)))
    charts += [curves_of(table, column, judged) for column in dict.fromkeys(one.cell.column for one in judged)]
    head = "".join(f'<th scope="col">{name}</th>' for name in NAMES)
    rows = "".join(f"<tr>{''.join(map(cell, [*cells_of(one), one.words]))}</tr>" for one in judged)
    numbers = f"<details><summary>numbers</summary>{html_table(head, rows)}</details>"
    notes = dict.fromkeys(one.cell.note for one in judged if table.paper == QUESTIONS and one.cell.note)
    remarks = "".join(f'<p class="soft">{escape(note)}</p>' for note in notes)
    return (
        f"<h3>{escape(f'{table.paper}:{table.name}')} · {escape(table.title)}</h3>{remarks}{''.join(charts)}{numbers}"
    )


def figures_section(entries: Sequence[Entry]) -> str:
    made = [
        f"<h3>{escape(caption(runs.figure))}</h3>{describe_figure(runs.figure, draw(runs), compare_with_paper(runs))}"
        for runs in runs_of_ledger(entries)
    ]
    return f"<section><h2>Figures of the papers, made again</h2>{''.join(made)}</section>" if made else ""


def sweeps_section(entries: Sequence[Entry]) -> str:
    made = [static_chart(chart) for chart in sweep_charts(trials_of_ledger(entries), MEASURED)]
    return f"<section><h2>Against one setting</h2>{''.join(made)}</section>" if made else ""


def curves_of(table: Table, column: str, judged: Sequence[Judgement]) -> str:
    """The rows of a column against rounds, where the ledger tells of at least two; the others are named."""
    here = [one for one in judged if one.cell.column == column and one.cell.kind == "accuracy"]
    told = {one.cell.row: entry for one in here if (entry := next((e for e in one.entries if e.bests), None))}
    if len(told) < 2:
        return ""
    curves = [Curve(row, *look(i), entry.bests, entry.rounds) for i, (row, entry) in enumerate(told.items())]
    absent = ", ".join(one.cell.row for one in here if one.cell.row not in told)
    about = f"{column}: best accuracy so far, by round, one seed each"
    drawn = embed(curve_chart(curves), f"{table.title}, {column}: best accuracy so far by round")
    return figure(about + f"; not recorded for {absent}" * bool(absent), drawn)


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


def contradiction_section(judged: Sequence[Judgement], entries: Sequence[Entry]) -> str:
    items = []
    for one in contradictions(judged, entries):
        lines = "".join(f"<li>{escape(line)}</li>" for line in one.cells)
        tried = "".join(f"<li>{code(line)}</li>" for line in one.tried)
        besides = f"tried besides:<ul>{tried}</ul>" if tried else "tried besides: nothing yet"
        name = f"<b>{escape(one.name)}</b> ({escape(one.place)})"
        items.append(f"<li>{name}<ul>{lines}<li>{besides}</li></ul></li>")
    if not items:
        return ""
    return (
        f"<section><h2>Contradictions, and what was tried</h2><p>{code(ABOUT)}</p><ul>{''.join(items)}</ul></section>"
    )


def superseded_section(entries: Sequence[Entry]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in SUPERSEDED)
    rows = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in superseded(entries))
    return f"<section><h2>Superseded</h2>{html_table(head, rows)}</section>" if rows else ""


def unmeasured_section() -> str:
    items = "".join(
        f"<li>{escape(name)} ({plural(count, 'cell')}): {escape(why)}</li>" for name, why, count in unmeasured()
    )
    return f"<section><h2>Not measured, and why</h2><ul>{items}</ul></section>" if items else ""


def code(text: str) -> str:
    return re.sub(r"`(.+?)`", r"<code>\1</code>", escape(text))


def figure(about: str, drawn: str) -> str:
    caption = f'<figcaption><span class="soft">{escape(about)}</span></figcaption>'
    return f'<figure>{caption}<div class="chart">{drawn}</div></figure>'
