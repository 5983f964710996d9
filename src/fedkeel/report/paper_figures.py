"""Figures of papers, made again: one chart of all panels, or the charts of a report that show the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fedkeel.papers.figures import Panel
from fedkeel.report.content import Setting, look
from fedkeel.report.drawing import PAPER, STYLES, Chart, Shown, finish, new_figure, plain
from fedkeel.report.figure_runs import FigureRuns, source_of_cell
from fedkeel.report.figures import POINTS, charts, draw_curve, name_axis
from fedkeel.report.labels import table
from fedkeel.report.parameters import ParameterPoint, draw_parameter
from fedkeel.report.series import curve, row

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

ACROSS, WIDTH, HEIGHT = 3, 3.5, 2.7  # panels in a row, and inches of one
KEY, KEYS = 0.19, 3.1  # inches of a line of the legend, and of a name in it


def draw(runs: FigureRuns) -> list[Chart]:
    """Every chart of the figure that there is something for."""
    found = []
    framed = [panel for panel in runs.figure.panels if panel.kind in DRAWN and list_drawn(runs, panel)]
    if framed:
        found.append(Chart("", "figure", "", "", draw_panels(runs, framed)))
    for number, panel in enumerate(runs.figure.panels):
        after = f"-{number + 1}" if len(runs.figure.panels) > 1 else ""
        if panel.kind == "labels":
            found += draw_labels(panel, after)
        elif panel.kind == "charts":
            found += draw_diagnostics(runs, panel, after)
    return found


def list_drawn(runs: FigureRuns, panel: Panel) -> list[str]:
    """The lines of a panel that some run has a number for."""
    if panel.kind == "curves":
        return [group.label for group in runs.group_lines(panel) if curve(group, panel.measure, POINTS)]
    return [panel.line_of(cell) for cell in panel.cells if runs.number_of(panel, cell)]


def draw_panels(runs: FigureRuns, panels: Sequence[Panel]) -> Drawing:
    """The panels side by side, with one legend below for all."""
    lines = [panel for panel in panels if panel.kind != "bars"]
    looks = choose_looks(list(dict.fromkeys(panel.line_of(cell) for panel in lines for cell in panel.cells)))
    drawn = {name for panel in lines for name in list_drawn(runs, panel)}
    names = [name for name in looks if name in drawn]
    across = min(len(panels), 2 if len(panels) == 4 else ACROSS)
    down = -(-len(panels) // across)
    width = across * WIDTH if across > 1 else 4.6
    columns = max(1, min(len(names), int(width / KEYS * 1.5)))
    legend = (0.1 + KEY * -(-len(names) // columns)) if len(names) > 1 else 0.0
    bars = [panel for panel in panels if panel.kind == "bars"]
    high = max([HEIGHT, *(0.8 + 0.24 * len(panel.cells) for panel in bars)])
    figure = new_figure(width + bool(bars) * 0.8, down * high + legend, fitted=True)
    every = figure.subplots(down, across, squeeze=False)
    for axes, panel in zip(every.flat, panels, strict=False):
        DRAWN[panel.kind](axes, runs, panel, looks)
        axes.set_title(plain(panel.title), fontsize=9)
        axes.tick_params(labelsize=8)
        axes.xaxis.label.set_size(8)
        axes.yaxis.label.set_size(8)
    for axes in every.flat[len(panels) :]:
        axes.set_visible(False)
    if len(names) > 1:
        from matplotlib.lines import Line2D

        marks = [Line2D([], [], color=c, linestyle=STYLES[d], label=plain(n)) for n in names for c, d in [looks[n]]]
        figure.legend(handles=marks, loc="outside lower center", ncols=columns, frameon=False, fontsize=7.5)
    return figure


def choose_looks(names: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Colours in turn; what is added to a method ("FedAvg + FSA") has its colour, dashed."""
    bases = [name for name in names if name.partition(" + ")[0] not in names or " + " not in name]
    found = {name: look(i) for i, name in enumerate(bases)}
    return {name: found[name] if name in found else (found[name.partition(" + ")[0]][0], 1) for name in names}


def draw_by_parameter(axes: Any, runs: FigureRuns, panel: Panel, looks: dict[str, tuple[str, int]]) -> None:
    lines: dict[str, list[ParameterPoint]] = {}
    for cell in panel.cells:
        if value := runs.number_of(panel, cell):
            short = runs.judged[cell.place].shortened
            point = ParameterPoint(panel.value_of(cell), *value, runs.reported_of(panel, cell), short)
            lines.setdefault(panel.line_of(cell), []).append(point)
    drawn = [Shown(name, "", looks[name][0], STYLES[looks[name][1]], points) for name, points in lines.items()]
    draw_parameter(axes, drawn, panel.x, "gain in points" if panel.over else "test accuracy (%)")


def draw_curves(axes: Any, runs: FigureRuns, panel: Panel, looks: dict[str, tuple[str, int]]) -> None:
    """By round, a band of one standard deviation over seeds, the paper's number hollow at the end; a shortened curve
    ends in a diamond."""
    shortened = {panel.line_of(cell) for cell in panel.cells if runs.judged[cell.place].shortened}
    for group in runs.group_lines(panel):
        found = curve(group, panel.measure, POINTS)
        if found is None:
            continue
        colour, dash = looks[group.label]
        look = {"color": colour, "linestyle": STYLES[dash], "linewidth": 1.2, "markersize": 3}
        mark = {"marker": "o" if len(found.mean) < 8 else None}
        y = draw_curve(axes, found.rounds, found, panel.measure, look | mark)
        if group.label in shortened:
            axes.plot(found.rounds[-1], y[-1], "D", color=colour, markersize=4.5)
    for cell in panel.cells if panel.measure == "accuracy" else ():
        mine = runs.judged[cell.place]
        if cell.reported is not None and mine.entries and not mine.shortened:
            colour = looks[panel.line_of(cell)][0]
            axes.plot(mine.rounds, cell.reported, "o", color=colour, markerfacecolor=PAPER, markersize=5, zorder=1.5)
    axes.xaxis.get_major_locator().set_params(integer=True, nbins=6)
    finish(axes, xlabel="round", ylabel=name_axis(panel.measure))


def draw_bars(axes: Any, runs: FigureRuns, panel: Panel, looks: dict[str, tuple[str, int]]) -> None:
    """One bar a line, single seeds as dots on it, the paper's number hollow; a shortened bar ends in a diamond."""
    found = [(cell, value) for cell in panel.cells if (value := runs.number_of(panel, cell))]
    for y, (cell, (mean, std)) in enumerate(found):
        axes.barh(y, mean, height=0.62, color="#56b4e9", xerr=std, error_kw={"linewidth": 1, "capsize": 2})
        seeds = runs.judged[cell.place].known
        if len(seeds) > 1:
            axes.plot(seeds, [y] * len(seeds), ".", color="#0072b2", markersize=4)
        if runs.judged[cell.place].shortened:
            axes.plot(mean, y, "D", color="#0072b2", markersize=4.5)
        if (told := runs.reported_of(panel, cell)) is not None:
            axes.plot(told, y, "o", color="#57606a", markerfacecolor=PAPER, markersize=5.5)
    axes.set_yticks(range(len(found)), [plain(panel.line_of(cell)) for cell, _ in found])
    axes.set_ylim(len(found) - 0.5, -0.5)
    finish(axes, xlabel="seconds of a round" if panel.measure == "seconds" else "test accuracy (%)")
    axes.grid(visible=False)


DRAWN = {"parameter": draw_by_parameter, "curves": draw_curves, "bars": draw_bars}


def draw_labels(panel: Panel, after: str) -> Iterator[Chart]:
    """Classes by clients of a cell's split, sizes above; nothing is trained."""
    found = table(source_of_cell(panel.cells[0]), panel.title, 0)
    title = f"{panel.title}, {len(found.histogram)} clients"
    yield Chart(f"labels{after}", "figure", title, found.note, found.draw())


def draw_diagnostics(runs: FigureRuns, panel: Panel, after: str) -> Iterator[Chart]:
    """The charts of a report that the panel names, of all its lines in one frame."""
    groups = runs.group_lines(panel)
    if not groups:
        return
    setting = Setting(0, panel.title, groups, [row(group, None) for group in groups], [], None)
    for chart in charts(setting, POINTS):
        if chart.file in panel.charts:
            title = f"{panel.title}: {chart.title}" if panel.title else chart.title
            axes: Any = chart.figure.axes[0]
            if len(groups) == 1 and axes.get_legend_handles_labels()[0] and not axes.get_legend():
                axes.legend(frameon=False, fontsize=8)  # other charts name a line only beside others
            yield chart._replace(file=f"{chart.file}{after}", title=title, part="figure")
