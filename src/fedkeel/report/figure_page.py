"""A figure made again as files: its charts as images, and a page that holds them against the paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path

from fedkeel.errors import RequestError, writing
from fedkeel.papers import PAPERS, choices
from fedkeel.papers.cells import collect_notes
from fedkeel.papers.figure_readings import Reading, read_expectations
from fedkeel.papers.figures import Figure, Panel, read_figures
from fedkeel.papers.ledger import Entry, keep_newest
from fedkeel.papers.noise import NoiseOfLedger
from fedkeel.papers.verdicts import WITHIN
from fedkeel.report.drawing import Chart, styled
from fedkeel.report.figure_numbers import look_up
from fedkeel.report.figure_runs import FigureRuns, is_of_ledger
from fedkeel.report.figures import write_charts
from fedkeel.report.page import plain_page, show_chart, write_page
from fedkeel.report.paper_figures import DRAWN, draw
from fedkeel.text import plural

STYLE = "figure { margin-bottom: .8rem; max-width: 900px; } li { margin: .15rem 0; }"
UNITS = {"accuracy": "points", "seconds": "seconds", "test_loss": "", "drift": "", "radius/mean": ""}
HOLLOW = (
    "Hollow marks: the paper's numbers; diamonds: shortened runs; bars and bands: one standard deviation over seeds."
)


@dataclass(frozen=True)
class AgainstPaper:
    """A figure in words: what is as in the paper, what is not, what the runs do not decide, and what the paper leaves
    open."""

    same: list[str] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)


def compare_with_paper(runs: FigureRuns, changed: Sequence[str] = ()) -> AgainstPaper:
    """Say in words and numbers how the runs compare with what the paper shows."""
    figure = runs.figure
    measured = [panel.measure for panel in figure.panels if panel.kind != "charts"]
    unit = UNITS.get(measured[0], "") if measured else ""
    readings: list[Reading] = (
        read_expectations(figure.expects, partial(look_up, runs), unit) if figure.needs_runs else []
    )
    judged = [runs.judged[cell.place] for cell in figure.cells] if figure.needs_runs else []
    drawn = {cell.place for panel in figure.panels if panel.kind in DRAWN for cell in (*panel.cells, *panel.over)}
    full = [j for j in judged if j.cell.place in drawn and j.difference is not None and not j.shortened]
    told = [] if changed else [one for one in full if not one.cell.uncertain]
    near = sum(one.verdict.startswith(WITHIN) for one in told)
    made = AgainstPaper(
        same=[reading.words for reading in readings if reading.holds],
        differs=[reading.words for reading in readings if reading.holds is False],
        undecided=[reading.words for reading in readings if reading.holds is None],
        open=[figure.note] * bool(figure.note) + collect_notes(figure.cells) + list(choices(figure.paper)),
    )
    if near:
        made.same.append(f"within seed noise: {near} of {len(told)} printed numbers")
    made.differs.extend(f"changed here: {one}" for one in changed)
    if near < len(told):
        farthest = max(told, key=lambda one: abs(one.difference or 0.0))
        by = f"{farthest.cell.label}, by {farthest.difference:+.2f}"
        made.differs.append(f"not confirmed: {len(told) - near} of {len(told)} printed numbers; farthest: {by}")
    if judged:
        made.differs.extend(describe_extent(runs))
        if 1 in [runs.count_seeds(cell) for cell in figure.cells]:
            made.undecided.append("one seed of a cell decides nothing: --seeds 0,1,2")
    return made


def describe_extent(runs: FigureRuns) -> list[str]:
    """Say how far the runs fall short of the paper's: rounds, cells."""
    cells, found = runs.figure.cells, []
    short = [cell for cell in cells if 0 < runs.count_rounds(cell) < runs.count_rounds_needed(cell)]
    if short:
        least = min(short, key=runs.count_rounds)
        rounds = f"{runs.count_rounds(least)} of {runs.count_rounds_needed(least)} rounds"
        ran = f"{plural(len(short), 'cell')} of {len(cells)} ran shorter than the paper's"
        found.append(f"{ran}; the shortest has {rounds}")
    if absent := runs.missing():
        some = "; ".join(cell.label for cell in absent[:3]) + (" …" if len(absent) > 3 else "")
        found.append(f"no run of {plural(len(absent), 'cell')} of {len(cells)}: {some}")
    curves = [cell for panel in runs.figure.panels if panel.kind == "curves" for cell in panel.cells]
    if any(is_of_ledger(source) for cell in curves for source in runs.sources[cell.place]):
        found.append("curves have the rounds that the ledger keeps; a seed of which it keeps only the end is in none")
    return found


def write_figure(
    runs: FigureRuns,
    folder: Path,
    changed: Sequence[str] = (),
    kinds: Sequence[str] = ("png", "svg"),
    style: str = "page",
) -> tuple[list[Path], AgainstPaper]:
    """Draw the figure; write its charts and its page; the files, and the comparison in words."""
    with styled(style):
        charts, told, stem = draw_named(runs), compare_with_paper(runs, changed), file_name(runs.figure)
        written = write_charts(charts, folder, kinds) if charts else []
    if not charts:
        raise RequestError(
            f"there is nothing to draw {runs.figure.name} from: no run of it is in the ledger or in the run folders.",
            explain_missing(runs.figure),
        )
    with writing(folder, "choose another folder with --figures"):
        written.append(folder / f"{stem}.html")
        main = f"<section>{describe_figure(runs.figure, charts, told)}</section>"
        about = f"fedkeel reproduce {runs.figure.name}"
        write_page(written[-1], plain_page(caption(runs.figure), about, main, STYLE, "runs"))
    return written, told


def draw_named(runs: FigureRuns) -> list[Chart]:
    """Draw the figure's charts, each under the name of its file."""
    stem = file_name(runs.figure)
    return [chart._replace(file=f"{stem}-{chart.file}" if chart.file else stem) for chart in draw(runs)]


def runs_of_ledger(entries: Sequence[Entry]) -> Iterator[FigureRuns]:
    """The figures that a ledger alone has something to draw for: two numbers in a panel at least."""
    noise, known = NoiseOfLedger(entries), keep_newest(entries)
    for figure in read_figures():
        runs = FigureRuns(figure, known, noise=noise)
        counts = [sum(bool(runs.number_of(panel, cell)) for cell in panel.cells) for panel in panels_of_ledger(figure)]
        if max(counts, default=0) > 1:
            yield runs


def panels_of_ledger(figure: Figure) -> list[Panel]:
    """The panels that show what a ledger keeps of a run."""
    return [panel for panel in figure.panels if panel.kind in DRAWN and panel.measure in ("accuracy", "seconds")]


def explain_missing(figure: Figure) -> str:
    """Say what to run, in one line."""
    cells = plural(len(figure.cells), "cell")
    return f"`fedkeel reproduce {figure.name}` runs its {cells}; --dry-run says what that costs"


def file_name(figure: Figure) -> str:
    return figure.name.replace(":", "-")


def caption(figure: Figure) -> str:
    return f"{PAPERS[figure.paper].split(':')[0]}, figure {figure.number}"


def describe_figure(figure: Figure, charts: Sequence[Chart], told: AgainstPaper) -> str:
    """A figure within a page: what the paper says, the charts, what is alike and what not."""
    drawn = "".join(
        show_chart(chart.figure, chart.title, chart.note or HOLLOW, label=chart.title or caption(figure))
        for chart in charts
    )
    lists = (
        ("The same as in the paper", told.same),
        ("Different", told.differs),
        ("Not decided", told.undecided),
        ("Open in the paper, and chosen", told.open),
    )
    words = "".join(
        f"<h3>{name}</h3><ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"
        for name, lines in lists
        if lines
    )
    return f"<p><b>The paper shows:</b> {escape(figure.says)}</p>{drawn}{words}"
