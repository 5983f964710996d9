"""The results page, made from the ledger alone: what the papers report against what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from fedkeel.ledger import Entry
from fedkeel.papers import PAPERS, Table, choices, tables
from fedkeel.verdicts import NOISE, Judgement, judge

HEAD = f"""# Results: reported against measured

Made by `fedkeel reproduce --page docs/results.md` from `results/ledger.jsonl`, where each line is one run with its
environment and fingerprint; nothing here is typed by hand. Any row is run again with
`fedkeel reproduce PAPER:TABLE --cell 'ROW, COLUMN'`.

**Verdicts.** *within seed noise*: a run of full length differs from the reported number by at most twice the seed noise
(the larger of the paper's ±, ours over seeds, and {NOISE} points). *ordering holds*: it does not, or the run was
shortened, but it stands on the right side of every other row of its column that the paper tells apart by more than
that and that was run equally long. *differs*: neither. *shortened*: too short to compare, and nothing to order it by.
*not judged*: the paper's number is damaged or absent.
"""


def page(entries: Sequence[Entry]) -> str:
    """Markdown: a section for each table that has a run."""
    parts = [HEAD]
    for paper, title in PAPERS.items():
        mine = [entry for entry in entries if entry.paper == paper]
        if not mine:
            continue
        parts.append(f"\n## {title}\n")
        run = {entry.table for entry in mine}
        parts.extend(section(table, mine) for table in tables(paper) if table.name in run)
        parts.append("\nWhat the paper leaves open, and what was chosen:\n")
        parts.extend(f"- {' '.join(choice.split())}" for choice in choices(paper))
    return "\n".join(parts).rstrip() + "\n"


def section(table: Table, entries: Sequence[Entry]) -> str:
    lines = [
        f"\n### {table.paper}:{table.name}: {table.title}\n",
        "| cell | reported | measured | difference | last round | rounds | seeds | minutes | verdict |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    lines.extend(row(judged) for judged in judge(table.cells, entries) if judged.entries)
    return "\n".join(lines)


def row(judged: Judgement) -> str:
    cell, runs = judged.cell, judged.entries
    last = [entry.last for entry in runs if entry.last is not None]
    cells = [
        cell.label,
        plus_minus(cell.reported, cell.spread) + ("" if cell.source == "own run" else " (copied)"),
        plus_minus(judged.mean, judged.std),
        "" if judged.difference is None else f"{judged.difference:+.2f}",
        f"{sum(last) / len(last):.2f}" if last else "",
        f"{runs[0].rounds}" + (f" of {runs[0].rounds_paper}" if runs[0].shortened else ""),
        str(len(runs)),
        f"{sum(entry.seconds for entry in runs) / 60:.1f}",
        judged.verdict,
    ]
    return f"| {' | '.join(cells)} |"


def plus_minus(value: float | None, spread: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" + ("" if spread is None else f" ± {spread:.2f}")
