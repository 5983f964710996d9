"""The two streams, and how numbers and messages look on them."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from typing import Any, TextIO, cast

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fedkeel.text import make_printable

GAP = 2  # blanks between columns
LEAST = 16  # columns of text that may be broken
WIDE = 200  # columns where nobody looks through a window: a file or a pipe


class Trimmed(io.TextIOBase):
    """A file or a pipe, without the blanks that tables end their lines with."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of the stream: where it is not UTF-8, tables are drawn in ASCII."""
        return self.stream.encoding or "utf-8"

    def write(self, text: str) -> int:
        self.stream.write(re.sub(r" +$", "", text, flags=re.MULTILINE))
        return len(text)

    def flush(self) -> None:
        if not self.stream.closed:  # Python 3.13 flushes what it collects
            self.stream.flush()


def tolerate() -> None:
    """A stream that cannot write a character, such as ± in ASCII, writes a question mark instead."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")


def in_json(data: Any) -> str:
    """One JSON document, escaped where stdout cannot write every character; what JSON cannot hold is null or text."""
    from fedkeel.runs.record import nonfinite_to_null

    plain = not (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    text = json.dumps(nonfinite_to_null(data), indent=2, ensure_ascii=plain, default=str)
    # JSON leaves some control codes as they are; as escapes they are the same document
    control = r"[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
    return text if plain else re.sub(control, lambda found: f"\\u{ord(found[0]):04x}", text)


def stdout() -> Console:
    return _console(sys.stdout)


def stderr() -> Console:
    return _console(sys.stderr)


class Plain(Console):
    """A console on which a name that was read from a file cannot move the cursor, ring, or rename the window."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable() or segment.text == "\n":
                yield segment
            else:
                lines = (make_printable(line) for line in segment.text.split("\n"))
                yield Segment("\n".join(lines), segment.style)


def _console(stream: TextIO) -> Console:
    if stream.isatty():
        return Plain(file=stream, highlight=False, markup=False, emoji=False)
    return Plain(file=cast(TextIO, Trimmed(stream)), highlight=False, markup=False, emoji=False, width=WIDE)


def say(console: Console, label: str, style: str, text: str) -> None:
    """`label: text`, never broken into several lines by us."""
    console.print(Text(f"{label}:", style) + Text(f" {text}", ""), soft_wrap=True)


def note(text: str) -> None:
    """What someone should know, on stderr; nothing is wrong."""
    say(stderr(), "note", "bold yellow", text)


def complain(message: str, hint: str | None = None) -> None:
    """An error on stderr: the message, a blank line, the hint."""
    console = stderr()
    say(console, "error", "bold red", message)
    if hint:
        console.print()
        say(console, "hint", "bold cyan", hint)


class WholeTable(Table):
    """A table that loses nothing where the window is narrow: columns that do not fit follow below, after the first."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Any]:
        groups = self.group_columns(options.max_width)
        for place, group in enumerate(groups):
            part = copy(self)
            part.columns = [replace(self.columns[n], _index=k, **self.fold(n, options)) for k, n in enumerate(group)]
            part.title = self.title if place == 0 else None
            yield from Table.__rich_console__(part, console, options)
            if place < len(groups) - 1:
                yield Segment.line()

    def group_columns(self, width: int) -> list[list[int]]:
        """The columns by number, as many side by side as fit; the first one begins every group."""
        first = self.least_width(0)
        groups, used = [[0]], first
        for number in range(1, len(self.columns)):
            least = self.least_width(number) + GAP
            if used + least > width and len(groups[-1]) > 1:
                groups.append([0])
                used = first
            groups[-1].append(number)
            used += least
        return groups

    def least_width(self, number: int) -> int:
        column = self.columns[number]
        longest = max(cell_len(line) for cell in (column.header, *column.cells) for line in str(cell).split("\n"))
        return longest if column.no_wrap else min(longest, LEAST)

    def fold(self, number: int, options: ConsoleOptions) -> dict[str, Any]:
        """Break, and do not cut, a column that is too wide even beside the first one."""
        others = self.least_width(0) + GAP if number else LEAST
        broken = self.least_width(number) + others > options.max_width
        return {"no_wrap": False} if broken else {}


def table(columns: Iterable[str], title: str | None = None) -> Table:
    """An empty table; a column whose name ends in `>` holds numbers, one that ends in `!` is never broken."""
    made = WholeTable(
        box=SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False, show_edge=False
    )
    made.padding, made.collapse_padding = (0, 1), True
    for name in columns:
        right, whole = name.endswith(">"), name.endswith((">", "!"))
        made.add_column(name.rstrip(">!"), justify="right" if right else "left", no_wrap=whole, header_style="bold")
        made.columns[-1].overflow = "fold"
    return made


def facts(pairs: Iterable[tuple[str, str]]) -> Table:
    """Names and values below each other."""
    made = Table.grid(padding=(0, 2))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(name, value)
    return made


# ---- numbers -------------------------------------------------------------------------------------------------------
def measured(value: float | None, measure: str | None = "accuracy") -> str:
    """A measure: accuracies in percent, others as they are."""
    if value is None:
        return "–"
    return f"{100 * value:.1f} %" if str(measure).endswith("accuracy") else f"{value:.4g}"


def describe_score(score: float | None) -> str:
    """A score on validation data: an accuracy, or a loss, which counts as negative."""
    if score is None:
        return "–"
    return f"{100 * score:.2f} %" if score >= 0 else f"loss {-score:.4g}"


def count(number: int) -> str:
    """Digits in groups of three."""
    return f"{number:,}".replace(",", " ")
