"""The leaderboard as a page, made from its lines alone."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedkeel.analysis.intervals import MISSES
from fedkeel.errors import RequestError
from fedkeel.studies.compare import describe_difference, paired_differences, write_rounds
from fedkeel.studies.grids import describe, drop_repeats, grid_of, settings_of
from fedkeel.studies.leaderboard import Arena, Leaderboard, Line, mean
from fedkeel.studies.publish import write_count
from fedkeel.text import byte_size, plural

HEAD = (files("fedkeel.studies") / "leaderboard_page.md").read_text(encoding="utf-8")
LINES, PAGE = Path("results/leaderboard.jsonl"), Path("docs/leaderboard.md")  # of the package's own table
COLUMNS = (
    "method", "chosen", "seeds", "last", "best", "averaged", "last to {}", "95 %", "rounds to {:g} %",
    "gradients to it", "sent a run",
)  # fmt: skip


def write_page(
    board: Leaderboard, lines: Sequence[Line], file: Path | None = None, source: Path = LINES, page: Path = PAGE
) -> str:
    """Markdown: a table for each setting, best last model first, and what is not run yet.

    The page names what it is made from: the table's `file`, the `source` of its lines, and itself.
    """
    words = ["fedkeel", "leaderboard", *([] if file is None else [str(file)])]
    command = shlex.join([*words, *([] if source == LINES else ["--lines", str(source)])])
    names = {"command": command, "source": source.as_posix(), "page": shlex.quote(page.as_posix())}
    seeds = {1: "one"}.get(len(board.seeds), str(len(board.seeds)))
    facts = {"tries": board.tries, "seed": board.seed, "seeds": seeds, "baseline": board.baseline, "misses": MISSES}
    parts = [HEAD.format(**names, **facts)]
    for arena in board.arenas:
        here = [line for line in lines if line.identity == board.identity(arena)]
        known = {line.method: line for line in here if not line.superseded}
        again = {line.method: line for line in here if line.method not in known}
        tried = "; ".join(f"{key} {', '.join(map(str, values))}" for key, values in _tried(board, arena).items())
        rounds = plural(arena.tuning_rounds, "round")
        told = f"Tried, in {rounds} each: {tried}; optimisers other than SGD have their own rates.\n"
        parts += [f"\n## {arena.title}\n", told]
        parts.extend(_table(board, arena, known) if known else ["Nothing has been run yet."])
        if counted := Counter(line.place or "not recorded" for line in known.values() if line.scores):
            parts.append(f"\nComputed on: {', '.join(f'{place} ({n})' for place, n in sorted(counted.items()))}.")
        parts.extend(f"\nCannot be run here: {line.reason}" for line in known.values() if line.reason)
        short = [
            f"{line.method} ({len(board.seeds) - len(line.scores)} of {len(board.seeds)})"
            for line in known.values()
            if line.scores and _is_short(board, line)
        ]
        if short:
            parts.append(f"\nFailed with some seeds, so they stand below the others: {', '.join(short)}.")
        fewer = [f"{line.method} ({line.tries})" for line in known.values() if 0 < line.tries < board.tries]
        if fewer:
            parts.append(f"\nHad fewer than {board.tries} tries, since their grids have no more: {', '.join(fewer)}.")
        if known and (left := [method for method in board.in_order() if method not in known.keys() | again.keys()]):
            parts.append(f"\nNot run yet: {', '.join(left)}.")
        parts.extend(f"\nTo be run again: {method}, {line.superseded}." for method, line in again.items())
    return "\n".join(parts).rstrip() + "\n"


def _table(board: Leaderboard, arena: Arena, known: Mapping[str, Line]) -> list[str]:
    titles = [column.format(100 * arena.target if "%" in column else board.baseline) for column in COLUMNS]
    rows = [f"| {' | '.join(titles)} |", f"| {' | '.join('---' if n < 2 else '--:' for n in range(len(titles)))} |"]
    ranked = sorted(
        (line for line in known.values() if not line.reason),
        key=lambda line: (_is_short(board, line), -(mean(line.values("last")) or -1.0)),
    )
    baseline = known.get(board.baseline)
    return rows + [f"| {' | '.join(_cells(board, line, baseline, _chosen(board, arena, line)))} |" for line in ranked]


def _tried(board: Leaderboard, arena: Arena) -> dict[str, tuple[Any, ...]]:
    """The values among the first settings of the grid, as many as there are tries."""
    tries = [dict(one) for one in settings_of(grid_of(arena.grid))[: board.tries]]
    return {key: drop_repeats([one[key] for one in tries]) for key in tries[0]}


def _chosen(board: Leaderboard, arena: Arena, line: Line) -> str:
    """The chosen setting, with a word for a number at the edge of those that were tried."""
    try:
        tries = [dict(one) for one in board.list_tries(arena, line.method)]
    except RequestError:  # a method that is gone, or of code that nobody typed
        tries = []
    return " ".join(
        describe(((word, value),)) + _edge(value, [one[word] for one in tries if word in one])
        for word, value in line.chosen.items()
    )


def _edge(value: Any, tried: Sequence[Any]) -> str:
    numbers = {one for one in tried if isinstance(one, int | float)}
    if len(numbers) < 2 or value not in (min(numbers), max(numbers)):
        return ""
    return " (lowest)" if value == min(numbers) else " (highest)"


def _is_short(board: Leaderboard, line: Line) -> bool:
    """Whether final runs failed, so that a mean is over those that did not."""
    return len(line.values("last")) < len(board.seeds)


def _cells(board: Leaderboard, line: Line, baseline: Line | None, chosen: str) -> list[str]:
    if not line.scores:
        failed = "every try failed" if line.validation is None else "failed"
        return [line.method, failed, "0", *["–"] * (len(COLUMNS) - 3)]
    others = {} if baseline is None or baseline is line else baseline.values("last")
    reached = line.values("rounds_to_target")
    rounds, gradients = mean(reached), mean(line.values("gradients_to_target"))
    some = "" if len(reached) == len(board.seeds) else f" ({len(reached)} of {len(board.seeds)})"
    return [
        line.method,
        chosen,
        write_count(len(line.values("last")), len(board.seeds)),
        *(_percent(line.values(name)) for name in ("last", "best", "averaged")),
        *describe_difference(paired_differences(line.values("last"), others), 100, ".2f"),
        "–" if rounds is None else f"{write_rounds(rounds)}{some}",
        "–" if gradients is None else f"{gradients:.0f}",
        byte_size(1e6 * (mean(line.values("megabytes")) or 0)),
    ]


def _percent(values: Mapping[int, float]) -> str:
    middle = mean(values)
    if middle is None:
        return "–"
    return f"{100 * middle:.2f} ({100 * min(values.values()):.2f}–{100 * max(values.values()):.2f})"
