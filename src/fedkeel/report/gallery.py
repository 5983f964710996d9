"""Figures of the papers that the ledger's runs show at the papers' own settings: images in a folder, and their page."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedkeel.errors import FedkeelError
from fedkeel.papers.figures import Figure, find_figure
from fedkeel.papers.ledger import Entry, keep_newest
from fedkeel.papers.noise import NoiseOfLedger
from fedkeel.papers.spectra import rounds_of
from fedkeel.report.drawing import styled
from fedkeel.report.figure_page import caption, compare_with_paper, draw_named, file_name
from fedkeel.report.figure_runs import FigureRuns, source_of_entry
from fedkeel.report.figures import write_charts
from fedkeel.report.shared_runs import read_accuracy

log = logging.getLogger("fedkeel")

PAGE = "README.md"
SHOWN = (
    "specgradfilter:figure-1",
    "specgradfilter:figure-2",
    "specgradfilter:figure-5",
    "fedfft:figure-1",
    "fedfft:figure-6",
    "specgradfilter:figure-6",
    "fedscam:figure-18",
)
"""Chosen by what they claim, and by what the ledger has."""

HEAD = """# Figures: what the papers draw, and what the runs draw

These figures repeat those of the papers with our runs. `fedkeel reproduce --gallery docs/figures` draws them from
`results/ledger.jsonl`; no number is typed by hand. The runs have the settings of their papers; under each figure stands
what is shorter or missing. [The guide](../guides/papers.md) has the command of every figure, the
[claims page](../claims.md) has the verdicts.

Hollow marks are the paper's numbers, diamonds are shortened runs; bars and bands are one standard deviation over seeds.
A lead is taken over the seeds that both sides have, at a round that both have reached. One seed decides nothing, nor
does what is tracked in a model near chance: one whose accuracy is below twice that of guessing.
"""


def write_gallery(entries: Sequence[Entry], folder: Path) -> Iterator[Path]:
    """Draw every figure that there is something for, and write the page; name each file when it is there."""
    noise, known = NoiseOfLedger(entries), keep_newest(entries)
    for figure in list_shown():
        try:
            with styled("page"):
                yield from write_charts(draw_named(FigureRuns(figure, known, noise=noise)), folder, ("png",))
        except FedkeelError as error:  # labels need the data set; an image of before stays
            log.warning("%s is not drawn: %s", figure.name, error.message)
    path = folder / PAGE
    path.write_text(page(entries, folder), encoding="utf-8", newline="\n")
    yield path


def list_shown() -> list[Figure]:
    return [figure for name in SHOWN if (figure := find_figure(name)) is not None]


def page(entries: Sequence[Entry], folder: Path) -> str:
    """Markdown: of each figure what the paper shows, the images of the folder, what is alike and what not, its runs."""
    noise, known = NoiseOfLedger(entries), keep_newest(entries)
    parts = [HEAD]
    for figure in list_shown():
        runs = FigureRuns(figure, known, noise=noise)
        told = compare_with_paper(runs)
        parts += [f"## {caption(figure)}\n", f"**The paper shows:** {figure.says}\n"]
        parts += [f"![{caption(figure)}]({path.name})\n" for path in find_images(figure, folder)]
        lists = {"The same": told.same, "Different": told.differs, "Not decided": told.undecided}
        for title, lines in (lists | {"Runs": list(list_runs(runs))}).items():
            parts += [f"**{title}**\n", *(f"- {line}" for line in lines), ""] if lines else []
        parts.append(f"`fedkeel reproduce {figure.name} --draw`\n")
    return "\n".join(parts)


def find_images(figure: Figure, folder: Path) -> list[Path]:
    """The images of a figure, and of no other whose number begins alike."""
    stem = file_name(figure)
    return sorted(path for path in folder.glob(f"{stem}*.png") if path.stem == stem or path.stem[len(stem)] == "-")


def list_runs(runs: FigureRuns) -> Iterator[str]:
    """The lines of the ledger behind a figure: cells whose runs have the same length and seeds together.

    What is tracked in a model tells the more, the more the model has learnt: such lines say its accuracy.
    """
    alike: dict[str, list[str]] = {}
    for cell in runs.figure.cells if runs.figure.needs_runs else ():
        if found := runs.entries_of(cell):
            whole, rounds = runs.count_rounds_needed(cell), found[0].rounds
            seeds = ", ".join(str(entry.seed) for entry in found)
            length = f"{rounds} rounds" if rounds == whole else f"{rounds} of {whole} rounds"
            seen = [str(at) for at in rounds_of(found[0].spectra)] if runs.figure.track else []
            length += f", looked at in round{'s' * (len(seen) > 1)} {', '.join(seen)}" if seen else ""
            where = f"{cell.paper}:{cell.table}, {length}, seed{'s' * (len(found) > 1)} {seeds}"
            learnt = read_accuracy([source_of_entry(entry) for entry in found]) if runs.figure.track else None
            alike.setdefault(where, []).append(cell.label + (f" ({learnt})" if learnt else ""))
    for where, labels in alike.items():
        yield f"{where}: {'; '.join(labels)}"
