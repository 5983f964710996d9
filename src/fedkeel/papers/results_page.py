"""The results page, made from the ledger alone: what the papers report against what was measured."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from math import fsum
from pathlib import Path
from statistics import fmean
from typing import Any

from fedkeel.papers import EVALUATIONS, KINDS, PAPERS, QUESTIONS, Table, changes, checks, choices, tables
from fedkeel.papers.discrepancies import ABOUT, contradictions
from fedkeel.papers.ledger import LEDGER, Entry, keep_newest, spent, standing
from fedkeel.papers.noise import ASSUMED, SHARE, NoiseOfLedger, place_of
from fedkeel.papers.verdicts import EARLY, ENOUGH, Judgement, Lead, bring_to, judge, leads, measure_gap
from fedkeel.text import make_printable, plural

HEAD = (files("fedkeel.papers") / "results_page.md").read_text(encoding="utf-8")
"""What the page begins with; in braces, what verdicts go by."""

PAGE = Path("docs/results.md")  # of the project's own ledger

Judged = list[tuple[Table, list[Judgement]]]


def name_source(page: Path, ledger: Path) -> dict[str, str]:
    """Name what a page is made from, and the options that make it from that ledger."""
    words = [str(page), *([] if ledger == LEDGER else ["--ledger", str(ledger)])]
    return {"page": shlex.join(words), "source": ledger.as_posix(), "quoted": shlex.quote(str(ledger))}


def page(entries: Sequence[Entry], file: Path = PAGE, ledger: Path = LEDGER) -> str:
    """Write Markdown: a summary, a section for each table that has a run, contradictions, what is not measured."""
    noise, lines, entries = NoiseOfLedger(entries), entries, keep_newest(entries)
    counted = standing(entries)
    every: Judged = [(table, judge(table.cells, counted, noise=noise)) for paper in PAPERS for table in tables(paper)]
    made = [(table, shown(judged)) for table, judged in every if worth(table, judged, counted)]
    head = HEAD.format(early=100 * EARLY, enough=ENOUGH, **name_source(file, ledger))
    parts = [head, *write_overview(made, entries), *write_undigested(lines), *write_noise(made)]
    parts += [*write_leads(every), *write_checks(every)]
    for paper in [name for name in PAPERS if name != QUESTIONS and any(table.paper == name for table, _ in made)]:
        parts.append(f"\n## {PAPERS[paper]}\n\nWhat the paper leaves open, and what was chosen:\n")
        parts.extend(f"- {' '.join(choice.split())}" for choice in choices(paper))
        later = [f"- {' '.join(change.split())}" for change in changes(paper)]
        parts.extend(["\nWhat was changed after runs had been made:\n", *later] if later else [])
        parts.extend(part for table, judged in made if table.paper == paper for part in write_section(table, judged))
    parts.append(f"\n## {PAPERS[QUESTIONS]}\n")
    parts.extend(f"- {' '.join(choice.split())}" for choice in choices(QUESTIONS))
    parts.extend(part for table, judged in every if table.paper == QUESTIONS for part in write_question(table, judged))
    parts.extend(write_contradictions(every, counted))
    parts.extend(write_superseded(lines))
    parts.extend(write_unmeasured())
    return "\n".join(parts).rstrip() + "\n"


def worth(table: Table, judged: Sequence[Judgement], entries: Sequence[Entry]) -> bool:
    """Whether a table of a paper is shown: runs were made for it as it is, or those made for others give numbers it
    reports."""
    if table.paper == QUESTIONS or not shown(judged):
        return False
    made_for = any((entry.paper, entry.table) == (table.paper, table.name) for entry in entries)
    return made_for or any(one.mean is not None and one.cell.reported is not None for one in judged)


def shown(judged: Sequence[Judgement]) -> list[Judgement]:
    """Keep the cells that have a run; what a shortened run has not reached yet says nothing, and is left out."""
    return [one for one in judged if one.entries and (one.mean is not None or not one.shortened)]


# ---- what it comes to ----------------------------------------------------------------------------------------------
def write_overview(made: Judged, entries: Sequence[Entry]) -> list[str]:
    if not entries:
        return []
    rows = []
    for table, judged in made:
        verdicts = [one.verdict for one in judged]
        counts = ", ".join(f"{verdicts.count(name)} {name}" for name in sorted(set(verdicts)))
        whole = sum(not one.shortened for one in judged)
        rows.append([f"{table.paper}:{table.name}", f"{len(judged)} of {len(table.cells)}", str(whole), counts])
    runs, hours, devices = spent(entries)
    told = f"\n{plural(runs, 'run')}, {hours:.1f} hours, on: {escape(make_printable(', '.join(devices)))}.\n"
    return [told, *write_grid(["table", "cells measured", "of full length", "verdicts"], "lrrl", rows)]


def write_undigested(entries: Sequence[Entry]) -> list[str]:
    """Say how many lines have no digest of their model, by the reasons that they give."""
    found: dict[str, list[str]] = {}
    for entry in entries:
        if not entry.model_digest:
            name = f"{entry.paper}:{entry.table} {entry.row}, {entry.column}, seed {entry.seed}, {entry.rounds} rounds"
            found.setdefault(entry.undigested or "they do not say why", []).append(name)
    if not found:
        return []
    count = sum(len(names) for names in found.values())
    about = f"\nLines that have no digest of their model, so no model can be held against their numbers: {count}.\n"
    told = [f"{why}: {'; '.join(names)}." for why, names in found.items()]
    return [about, *(f"- {escape(make_printable(line), quote=False)}" for line in told)]


def write_noise(made: Judged) -> list[str]:
    """By how much accuracies vary, and from how many runs that is known."""
    accuracies = [one for _, judged in made for one in judged if one.cell.kind == "accuracy"]
    found = {(*place_of(one.cell.experiment), one.cell.evaluation): one.repeated for one in accuracies}
    rows = [[*key, f"{noise.std:.2f}", noise.source] for key, noise in sorted(found.items())]
    about = f"""
## Noise

By how many points an accuracy varies when no setting was changed. Runs of full length were repeated with other seeds,
or with the same seed; the number is the larger of the two standard deviations, pooled over all cells of a data set and
network. If nothing was repeated, {ASSUMED} points are assumed. Rounds and bytes to a target vary by a share of
themselves, which is measured in the same way, or assumed to be {100 * SHARE:g} %; the share of seconds is always
assumed.
"""
    names = ["data set", "network", "number", "standard deviation", "from"]
    return [about, *write_grid(names, "lllrl", rows)] if rows else []


def distinct_leads(every: Sequence[tuple[Table, Sequence[Judgement]]]) -> list[tuple[Table, Lead]]:
    """List every lead once, though several tables may show it; again where another number is reported for it."""
    found: list[tuple[Table, Lead]] = []
    seen: dict[tuple[Any, ...], set[float | None]] = {}
    for table, judged in every:
        for lead in leads(table, judged):
            told = seen.setdefault(lead.runs, set())
            if not told or lead.reported not in told | {None}:
                found.append((table, lead))
            told.add(lead.reported)
    return found


def write_leads(every: Judged) -> list[str]:
    rows = [[f"{table.paper}:{table.name}", *write_lead(lead)] for table, lead in distinct_leads(every)]
    if not rows:
        return []
    about = """
## Leads between methods

How far one row is ahead of another: as reported after the paper's last round, and as measured at the last round that
both have reached, over the seeds that both have.
"""
    names = ["table", "lead", "column", "reported", "measured", "at round", "seeds"]
    return [about, *write_grid(names, "lllrrrr", rows)]


def write_checks(every: Judged) -> list[str]:
    """Write leads that others have measured, beside ours at the same round."""
    rows = []
    for paper in PAPERS:
        for check in checks(paper):
            judged = next(found for table, found in every if (table.paper, table.name) == (paper, check.table))
            named = {(one.cell.row, one.cell.column): one for one in judged}
            mine, other = (named[row, check.column] for row in (check.row, check.over))
            lead, seeds = measure_gap(*bring_to(check.round, (mine, other)))
            name = f"{check.row} − {check.over}" + (f" ({check.note})" if check.note else "")
            told = [f"{check.lead:+.1f}", signed(lead), str(check.round), str(seeds)]
            rows.append([f"{paper}:{check.table}", name, check.column, *told])
    about = "\nThe same lead in a program that others wrote, and here at the same round:\n"
    return [about, *write_grid(["table", "lead", "column", "elsewhere", "here", "at round", "seeds"], "lllrrrr", rows)]


def write_lead(lead: Lead) -> list[str]:
    numbers = [signed(lead.reported), signed(lead.measured), reached(lead.round, lead.rounds), str(lead.seeds)]
    return [f"{lead.row} − {lead.over}", lead.column, *numbers]


# ---- tables --------------------------------------------------------------------------------------------------------
def write_section(table: Table, judged: Sequence[Judgement]) -> list[str]:
    names = ["cell", "reported", "measured", "difference", "last round", "rounds", "seeds", "minutes", "verdict"]
    rows = [[*cells_of(one), one.words] for one in judged]
    return [write_heading(table), f"{meaning(judged)}\n", *write_grid(names, "lrrrrrrrl", rows), *list_notes(judged)]


def write_question(table: Table, judged: Sequence[Judgement]) -> list[str]:
    """Write a question of our own: nothing is reported, so what is missing is named instead."""
    run = shown(judged)
    lines = [write_heading(table), *(f"{note}\n" for note in dict.fromkeys(one.cell.note for one in judged) if note)]
    if run:
        steps = any(entry.step is not None for one in run for entry in one.entries)
        names = ["cell", "measured", "last round", "rounds", "seeds", "minutes", *["rate", "mean step length"] * steps]
        rows = []
        for one in run:
            label, _, mean, _, *rest = cells_of(one)
            lengths = [entry.step for entry in one.entries if entry.step is not None]
            rates = dict.fromkeys(entry.settings.get("lr", one.cell.experiment["lr"]) for entry in one.entries)
            rate = ", ".join(f"{rate:g}" for rate in rates)  # a matched one may have changed from seed to seed
            more = [rate, f"{fmean(lengths):.4g}" if lengths else ""] if steps else []
            rows.append([label, mean, *rest, *more])
        lines += write_grid(names, "lrrrrr" + "rr" * steps, rows)
    missing = [one.cell.label for one in judged if not one.entries]
    return [*lines, f"\nNot run yet: {'; '.join(missing)}." if missing else ""]


def write_heading(table: Table) -> str:
    return f"\n### {table.paper}:{table.name}: {table.title}\n"


def meaning(judged: Sequence[Judgement]) -> str:
    """Say what the numbers are."""
    kinds = {one.cell.kind for one in judged}
    rules = {one.cell.evaluation for one in judged if one.cell.kind == "accuracy"}
    words = [*(KINDS[kind] for kind in KINDS if kind in kinds), *(EVALUATIONS[rule] for rule in sorted(rules))]
    text = "; ".join(words)
    return f"{text[:1].upper()}{text[1:]}."


def list_notes(judged: Sequence[Judgement]) -> list[str]:
    """List what is open in single cells, each note once."""
    found = dict.fromkeys(one.cell.note for one in judged if one.cell.note)
    return ["", *(f"- {' '.join(note.split())}" for note in found)] if found else []


def cells_of(judged: Judgement) -> list[str]:
    cell, runs = judged.cell, judged.entries
    last = [entry.last for entry in runs if entry.last is not None]
    return [
        cell.label,
        number(cell.reported, cell.spread, cell.kind) + ("" if cell.source == "own run" else " (copied)"),
        number(judged.mean, judged.std, cell.kind),
        signed(judged.difference, cell.kind),
        f"{fmean(last):.2f}" if last and cell.kind == "accuracy" else "",
        reached(judged.rounds, int(cell.experiment["rounds"])),
        str(len(runs)),
        f"{fsum(entry.seconds for entry in runs) / 60:.1f}",
    ]


def write_contradictions(every: Judged, entries: Sequence[Entry]) -> list[str]:
    found = contradictions((one for _, judged in every for one in judged), entries)
    lines = [f"\n## Contradictions, and what was tried\n\n{ABOUT}\n"] if found else []
    for one in found:
        lines += [f"- **{one.name}** ({one.place})", *(f"  - {line}" for line in one.cells)]
        lines += ["  - tried besides:" if one.tried else "  - tried besides: nothing yet"]
        lines += [f"    - {line}" for line in one.tried]
    return lines


SUPERSEDED = ["table", "cell", "seed", "rounds", "measured then", "why it no longer counts"]


def superseded(entries: Sequence[Entry]) -> list[list[str]]:
    """List a row for each run that no longer counts."""
    return [
        [
            f"{entry.paper}:{entry.table}",
            f"{entry.row}, {entry.column}",
            str(entry.seed),
            reached(entry.rounds, entry.rounds_paper),
            number(entry.measured, None, entry.kind),
            entry.superseded,
        ]
        for entry in entries
        if entry.superseded
    ]


def write_superseded(entries: Sequence[Entry]) -> list[str]:
    rows = superseded(entries)
    about = "Runs that no longer count for any cell. Their cells show newer runs, or wait for them.\n"
    return [f"\n## Superseded\n\n{about}", *write_grid(SUPERSEDED, "llrrrl", rows)] if rows else []


def write_unmeasured() -> list[str]:
    lines = [f"- {name} ({plural(count, 'cell')}): {reason}." for name, reason, count in unmeasured()]
    return ["\n## Not measured, and why\n", *lines] if lines else []


def unmeasured() -> list[tuple[str, str, int]]:
    """List tables with cells for which no run here gives a number, why, and how many they are."""
    every = (cell for paper in PAPERS for table in tables(paper) for cell in table.cells)
    reasons = Counter((f"{cell.paper}:{cell.table}", cell.unmeasured) for cell in every if cell.unmeasured)
    return [(name, reason, count) for (name, reason), count in reasons.items()]


# ---- words ---------------------------------------------------------------------------------------------------------
def write_grid(names: Sequence[str], sides: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """Write a Markdown table; `sides` is l or r for each column."""
    rule = " | ".join("---:" if side == "r" else "---" for side in sides)
    return [f"| {' | '.join(names)} |", f"| {rule} |", *(f"| {' | '.join(cells)} |" for cells in rows)]


def number(value: float | None, spread: float | None, kind: str = "accuracy") -> str:
    if value is None:
        return "–"
    digits = 0 if kind == "rounds" else 2
    return f"{value:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")


def signed(value: float | None, kind: str = "accuracy") -> str:
    return "–" if value is None else f"{value:+.{0 if kind == 'rounds' else 2}f}"


def reached(round: int, rounds: int) -> str:
    """Say how far a run, or two of them, have come."""
    return f"**{round} of {rounds}**" if round < rounds else f"{round}"
