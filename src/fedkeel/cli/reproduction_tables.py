"""What `fedkeel reproduce` prints: its tables, what they would cost, and reported against measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedkeel.cli.console import count, stdout, table
from fedkeel.errors import writing
from fedkeel.text import duration, plural

if TYPE_CHECKING:
    from fedkeel.papers import Cell, Table
    from fedkeel.papers.ledger import Entry
    from fedkeel.papers.verdicts import Judgement


def show_tables(spec: str | None) -> None:
    from fedkeel.papers import PAPERS, tables
    from fedkeel.papers.claims import CLAIMS, read_claims
    from fedkeel.papers.figures import read_figures
    from fedkeel.papers.order import ORDER, in_order, parts
    from fedkeel.papers.paper_file import is_own, split_spec

    made = table(["table!", "cells>", "what it shows"])
    asked = split_spec(spec)[0] if spec else None
    for paper in [asked] if asked and asked not in (ORDER, CLAIMS) else PAPERS if asked is None else []:
        for one in tables(paper):
            if is_own(paper) or not one.name.startswith("figure-"):
                made.add_row(f"{paper}:{one.name}", str(len(one.cells)), one.title)
        for figure in (figure for figure in read_figures() if figure.paper == paper):
            says = f"a schematic: {figure.says}" if figure.schematic else figure.says
            made.add_row(figure.name, str(len(figure.cells)), says)
    for name, part in parts().items() if asked in (None, ORDER) else ():
        made.add_row(f"{ORDER}:{name}", str(len(in_order(name))), part["title"])
    for name, claim in read_claims().items() if asked in (None, CLAIMS) else ():
        made.add_row(f"{CLAIMS}:{name}", str(len(claim.cells)), claim.says)
    stdout().print(made)


def write_pages(results: Path | None, claims: Path | None, gallery: Path | None, ledger: Path) -> None:
    from fedkeel.papers import claims_page, results_page
    from fedkeel.papers.ledger import read_lines
    from fedkeel.report.gallery import write_gallery

    entries = read_lines(ledger, needed=True)
    for path, page in ((results, results_page.page), (claims, claims_page.page)):
        if path is not None:
            with writing(path):
                path.write_text(page(entries, path, ledger), encoding="utf-8", newline="\n")
            stdout().print(f"written to {path}")
    if gallery is not None:
        with writing(gallery):
            gallery.mkdir(parents=True, exist_ok=True)
            for written in write_gallery(entries, gallery):
                stdout().print(f"written to {written}")


def show_costs(
    cells: list[Cell], seeds: list[int], rounds: int | None, known: list[Entry], skipped: list[Entry]
) -> None:
    """Gradient evaluations of each cell, and seconds where the ledger knows a like run."""
    from fedkeel.papers.costs import gradient_evaluations, seconds_like
    from fedkeel.papers.reproduce import done, length_of, obstacle, settings_of

    made = table(["cell", "method!", "model!", "rounds>", "seeds>", "gradients>", "time>", "state!"])
    total, runs, unknown = 0.0, 0, 0
    planned: list[object] = []
    for cell in cells:
        name, wrong = f"{cell.paper}:{cell.table} {cell.label}", obstacle(cell)
        reason = None if wrong is None else wrong.message
        left = [seed for seed in seeds if not done(cell, seed, rounds, skipped)]
        if reason is None and not left:
            reason = "in the ledger"
        elif reason is None and settings_of(cell) in planned:
            reason = "as one above"
        method = cell.experiment["method"]
        called = method["name"] if isinstance(method, dict) else str(method)
        length = length_of(cell, rounds)
        if reason is not None:
            made.add_row(name, called, str(cell.experiment["model"]), str(length), "0", "", "", reason)
            continue
        planned.append(settings_of(cell))
        like = seconds_like(cell, known, rounds)
        total, runs, unknown = total + (like or 0.0) * len(left), runs + len(left), unknown + (like is None)
        work, time = gradient_evaluations(cell, rounds) * len(left), "–" if like is None else duration(like * len(left))
        made.add_row(name, called, str(cell.experiment["model"]), str(length), str(len(left)), count(work), time, "")
    stdout().print(made)
    told = [f"by the runs in the ledger {duration(total)}"] if total or not unknown else []
    told += [f"{plural(unknown, 'cell')} unlike any run before"] if unknown else []
    stdout().print(f"{plural(runs, 'run')} of {plural(len(cells), 'cell')}; {', and '.join(told)}")
    show_settings(cells)


def show_settings(cells: list[Cell]) -> None:
    """What each cell is run with, and what the paper leaves open."""
    from fedkeel.papers import QUESTIONS, changes, choices, seeds_of, tables
    from fedkeel.papers.cells import collect_notes

    made = table(["cell", "data", "partition", "lr>", "the method's own"])
    for cell in cells:
        settings = cell.experiment
        rate = f"{settings['lr']:g}" + (f" × {decay:g}" if (decay := settings.get("lr_decay", 1.0)) != 1 else "")
        assumed = f" ({cell.assumed} assumed)" if cell.assumed else ""
        split = describe_settings(settings["partition"]) + assumed
        made.add_row(cell.label, str(settings["dataset"]), split, rate, describe_settings(settings["method"]))
    stdout().print(made)
    for paper in dict.fromkeys(cell.paper for cell in cells if cell.paper != QUESTIONS):
        stdout().print(f"open in {paper}, and chosen:", style="bold")
        for line in choices(paper):
            stdout().print(f"  {line}")
        for line in changes(paper):
            stdout().print(f"  changed after runs had been made: {line}")
        if seeds := seeds_of(paper):
            stdout().print(f"  seeds: the paper's are {','.join(map(str, seeds))} (--seeds paper)")
        for one in tables(paper):
            if one.unknown and any(cell.table == one.name for cell in cells if cell.paper == paper):
                say_known(one)
    for note in collect_notes(cells):
        stdout().print(f"  {note}")


def say_known(one: Table) -> None:
    """What a paper tells of a table, and what it does not."""
    for word, lines in (("known", one.known), ("not known", one.unknown)):
        for line in lines:
            stdout().print(f"  {word:<10} {line}", soft_wrap=True)


def describe_settings(given: object) -> str:
    """A table of settings in words: its kind first, then every number of it."""
    from fedkeel.typed_values import flatten

    if not isinstance(given, dict):
        return str(given)
    first = [str(given[word]) for word in ("name", "kind") if word in given]
    rest = {name: value for name, value in flatten(given).items() if name not in ("name", "kind")}
    numbers = {name.split(".")[-1]: value for name, value in rest.items() if isinstance(value, int | float)}
    words = {name: value for name, value in rest.items() if name in ("form", "base")}
    return " ".join([*first, *(f"{name}={value}" for name, value in {**words, **numbers}.items())])


def show_known(spec: str) -> bool:
    """Of a table or a claim that its paper does not explain: what is known, and what is not. Whether it is one."""
    from fedkeel.papers import PAPERS, tables
    from fedkeel.papers.claims import CLAIMS, read_claims
    from fedkeel.papers.paper_file import is_own, split_spec

    paper, name = split_spec(spec)
    claim = read_claims().get(name or "") if paper == CLAIMS else None
    if claim is not None and claim.unmeasured:
        stdout().print(f"{spec}: {claim.says}", style="bold", soft_wrap=True)
        stdout().print(f"not run: {claim.unmeasured}", soft_wrap=True)
        return True
    if name is None or not (paper in PAPERS or is_own(paper)):
        return False
    found = [one for one in tables(paper) if one.name.lower() == name.lower() and all(c.unmeasured for c in one.cells)]
    for one in found:
        console = stdout()
        console.print(f"{paper}:{one.name}: {one.title}", style="bold", soft_wrap=True)
        say_known(one)
        columns = list(dict.fromkeys(cell.column for cell in one.cells))
        made = table(["reported!", *(f"{column}>" for column in columns)])
        for row in dict.fromkeys(cell.row for cell in one.cells):
            values = {cell.column: cell.reported for cell in one.cells if cell.row == row}
            made.add_row(row, *("–" if values[c] is None else f"{values[c]:.2f}" for c in columns))
        console.print(made)
        console.print(f"not run: {one.cells[0].unmeasured}", soft_wrap=True)
    return bool(found)


def show_verdicts(cells: list[Cell], ledger: Path) -> None:
    """The cells, each judged among all other rows of its table, as on the results page."""
    from fedkeel.papers import find
    from fedkeel.papers.ledger import keep_newest, read_lines
    from fedkeel.papers.noise import NoiseOfLedger
    from fedkeel.papers.results_page import number, signed
    from fedkeel.papers.verdicts import judge

    lines = read_lines(ledger)
    among = [cell for name in dict.fromkeys(f"{cell.paper}:{cell.table}" for cell in cells) for cell in find(name)]
    made = table(["cell", "reported>", "measured>", "difference>", "rounds>", "seeds>", "verdict!"])
    every = judge(cells, keep_newest(lines), among, NoiseOfLedger(lines))
    for judged in every:
        cell = judged.cell
        made.add_row(
            f"{cell.paper}:{cell.table} {cell.label}",
            number(cell.reported, cell.spread),
            number(judged.mean, judged.std),
            signed(judged.difference),
            f"{judged.rounds or judged.apart} of {cell.experiment['rounds']}",
            str(len(judged.entries)),
            judged.words,
        )
    stdout().print(made)
    show_leads(every)


def show_leads(every: Sequence[Judgement]) -> None:
    """How far rows are ahead of others, where the paper's file names such pairs; a table with choices tried has none,
    as each of its cells stands there several times."""
    from fedkeel.papers import tables
    from fedkeel.papers.results_page import signed
    from fedkeel.papers.verdicts import leads

    made = table(["lead", "column", "reported>", "measured>", "rounds>", "seeds>"])
    for paper, name in dict.fromkeys((one.cell.paper, one.cell.table) for one in every):
        judged = [one for one in every if (one.cell.paper, one.cell.table) == (paper, name)]
        if len({one.cell.place for one in judged}) < len(judged):
            continue
        for lead in leads(next(one for one in tables(paper) if one.name == name), judged):
            numbers = signed(lead.reported), signed(lead.measured), f"{lead.round} of {lead.rounds}", str(lead.seeds)
            made.add_row(f"{lead.row} − {lead.over}", lead.column, *numbers)
    if made.row_count:
        stdout().print(made)
