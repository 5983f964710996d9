"""One self-contained HTML page: it opens without a network, from a disk or a mail."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from fedkeel import __version__
from fedkeel.core.states import write_text
from fedkeel.errors import RequestError, writing
from fedkeel.report.cards import cards
from fedkeel.report.content import Content, content
from fedkeel.report.drawing import embed
from fedkeel.report.figures import charts
from fedkeel.report.numbers import numbers
from fedkeel.report.sites import sites
from fedkeel.report.source import Source
from fedkeel.report.sweeps import sweep_charts, trials_of_runs
from fedkeel.report.tables import commands, summary
from fedkeel.text import byte_size, plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_BYTES = 6_000_000
WIDE = 5.5  # inches: a chart that is wider has a row of its own
PARTS = {
    "curves": "Learning curves",
    "sweeps": "Against one setting",
    "drift": "Client drift",
    "spectrum": "Where in the spectrum clients disagree",
    "landscape": "Curvature, landscape and features",
    "numbers": "Diagnostics in numbers",
    "kept": "What the methods adapt",
    "clients": "Clients",
    "sites": "Sites of the federation",
}
"""The parts of a page that a run may have nothing for."""
STATIC = 'class="static"'  # of a chart of several settings, which no switch of the page changes


def write_report(
    folders: Sequence[Path],
    file: Path,
    *,
    target: float | None = None,
    title: str | None = None,
    asked: Sequence[int] = (),
) -> Content:
    """Read run folders and write the page; what was read comes back, for figures. `asked` are the seeds of which each
    method should have a run."""
    if not folders:
        raise RequestError("a report needs at least one run.", "give the folders that `fedkeel run` printed")
    made = content([Source.read(folder) for folder in folders], target, asked)
    text = page(made, title)
    with writing(file, "choose another file with -o"):
        write_page(file, text)
    return made


def write_page(file: Path, text: str) -> None:
    """Write a page as a whole or not at all; paths in it need not be UTF-8."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, text.encode(errors="replace").decode())


def plain_page(title: str, about: str, main: str, style: str, made_from: str) -> str:
    """A self-contained page without switches."""
    css = files("fedkeel.report").joinpath("assets", "page.css").read_text(encoding="utf-8")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><link rel="icon" href="data:,">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
        f"<style>{css}{style}</style></head><body><header><h1>{escape(title)}</h1>"
        f'<p class="soft">{escape(about)}</p></header><main>{main}</main>'
        f"<footer>Written by fedkeel from its {made_from}. This page asks no network for anything.</footer>"
        "</body></html>\n"
    )


def page(made: Content, title: str | None = None) -> str:
    """The page as text, below six megabytes: curves are thinned until they fit."""
    for points in (150, 75, 40):
        text = filled(made, title, points)
        if len(text.encode(errors="replace")) < MOST_BYTES:
            return text
    raise RequestError(
        f"{made.runs} runs do not fit into a page of {byte_size(MOST_BYTES)}.", "report fewer runs at once"
    )


def filled(made: Content, title: str | None, points: int) -> str:
    assets = files("fedkeel.report").joinpath("assets")
    read = {name: assets.joinpath(name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js")}
    return Template(read["page.html"]).substitute(
        title=escape(title or heading(made)),
        about=escape(about(made)),
        settings=setting_choice(made),
        bands="" if made.repeated else " hidden",
        css=read["page.css"],
        script=read["page.js"],
        parts=parts(made, points),
        summary="".join(map(summary, made.settings)),
        cards="".join(map(cards, made.settings)),
        commands="".join(map(commands, made.settings)),
        version=escape(__version__),
        data=embedded(made.data()),
    )


def parts(made: Content, points: int) -> str:
    """The parts of the page with charts: those that there is something for."""
    found: dict[str, list[str]] = {name: [] for name in PARTS}
    for setting in made.settings:
        for chart in charts(setting, points):
            size = "wide" if chart.figure.get_figwidth() > WIDE else ""
            mark = f'class="{size}" data-setting="{setting.index}" data-title="{escape(chart.title)}"'
            found[chart.part].append(show_chart(chart.figure, chart.title, chart.note, mark))
    found["sweeps"] += [
        show_chart(chart.figure, chart.title, chart.note, STATIC) for chart in sweep_charts(trials_of_runs(made))
    ]
    tables = "".join(map(numbers, made.settings))
    notes = "".join(f'<p class="soft static">{escape(note)}</p>' for note in made.notes)
    before = {"numbers": tables, "clients": notes, "sites": "".join(map(sites, made.settings))}
    return "".join(
        f'<section id="{name}"><h2>{words}</h2>{before.get(name, "")}'
        f'<div class="grid">{"".join(found[name])}</div></section>'
        for name, words in PARTS.items()
        if found[name] or before.get(name)
    )


def show_chart(figure: Figure, title: str, note: str, mark: str = "", label: str = "") -> str:
    """A chart below its title and a note; `label` is for those who do not see it."""
    words = (f"<h3>{escape(title)}</h3>" if title else "") + (
        f'<span class="soft">{escape(note)}</span>' if note else ""
    )
    drawn = embed(figure, label or title)
    return f'<figure {mark}><figcaption>{words}</figcaption><div class="chart">{drawn}</div></figure>'


def heading(made: Content) -> str:
    """`fedavg on digits`, `4 methods on digits`, `2 methods in 20 variants on digits`, `4 methods in 3 settings`."""
    groups = [group for setting in made.settings for group in setting.groups]
    methods, labels = ({*names} for names in ((g.runs[0].method for g in groups), (g.label for g in groups)))
    what = groups[0].label if len(labels) == 1 else plural(len(methods), "method")
    if len(labels) > len(methods):
        what += f" in {len(labels)} variants"
    if len(made.settings) > 1:
        return f"{what}, {len(made.settings)} settings"
    return f"{what} on {made.settings[0].name.split(' · ')[0]}"


def about(made: Content) -> str:
    runs = plural(made.runs, "run")
    return f"{runs} · {made.settings[0].name}" if len(made.settings) == 1 else runs


def setting_choice(made: Content) -> str:
    if len(made.settings) == 1:
        return ""
    options = "".join(f'<option value="{i}">{escape(one.name)}</option>' for i, one in enumerate(made.settings))
    return f'<label>setting <select id="setting">{options}</select></label>'


def embedded(data: Any) -> str:
    """JSON inside a script element: nothing in it can end the element."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False).replace("<", "\\u003c")
