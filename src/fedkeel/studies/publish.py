"""A comparison as a LaTeX table or as CSV: mean ± deviation, the best in bold, significance by a paired test."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from fedkeel.analysis.intervals import Interval, paired_p_value
from fedkeel.problems.metrics import lower_is_better
from fedkeel.studies.compare import Comparison, mean_and_std, pair
from fedkeel.studies.run_groups import NUMBERS, describe_measure, measure_of

SIGNIFICANT = 0.05
SMALL, LARGE = 1e-6, 1e7  # losses beyond have an exponent
SIGNS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One method: mean and deviation of each column, of how many seeds, and how it differs from the baseline, over how
    many pairs of seeds."""

    label: str
    seeds: int
    numbers: dict[str, tuple[float | None, float | None]]
    counts: dict[str, int]
    pairs: int | None
    difference: Interval | None
    p: float | None

    def is_whole(self, part: str) -> bool:
        """Whether every seed has a number in that column."""
        return self.counts[part] == self.seeds

    @property
    def fewest(self) -> int:
        """How many seeds the column has that has the fewest, of those with any."""
        return min(filter(None, self.counts.values()), default=self.seeds)

    @property
    def in_words(self) -> tuple[str, str]:
        """How many seeds there are, and how many of them are paired."""
        return write_count(self.fewest, self.seeds), "" if self.pairs is None else str(self.pairs)


def write_count(having: int, asked: int) -> str:
    return str(asked) if having == asked else f"{having} of {asked}"


def make_rows(made: Comparison) -> list[Row]:
    """The rows of a comparison; accuracies in %, losses as they are. What a seed lacks on either side is not tested."""
    scale = scale_and_form(made)[0]
    name, base = made.compared_by, made.baseline
    parts = [part for part in NUMBERS if part != "reported" or any(group.values(part) for group in made.groups)]
    found = []
    for group in made.groups:
        numbers = {part: mean_and_std([scale * value for value in group.values(part).values()]) for part in parts}
        counts = {part: len(group.values(part)) for part in parts}
        whole = all(len(one.values(name)) == len(one.seeds) for one in (group, base))
        pairs = pair(group, base, name)
        p = paired_p_value(pairs) if whole else None
        shared = None if group is base else len(pairs)
        found.append(Row(group.label, len(group.seeds), numbers, counts, shared, made.difference(group), p))
    return found


def scale_and_form(made: Comparison) -> tuple[float, str]:
    """By what numbers are multiplied, and in what form they are written.

    Losses have four digits behind the point, or as many as show three of the smallest mean; far from 1, an exponent.
    """
    if measure_of(made.groups) == "accuracy":
        return 100.0, ".2f"
    means = [mean_and_std([*group.values(part).values()])[0] for group in made.groups for part in NUMBERS]
    sizes = [abs(mean) for mean in means if mean] or [1.0]
    if min(sizes) < SMALL or max(sizes) > LARGE:
        return 1.0, ".3e"
    return 1.0, f".{max(4, 2 - math.floor(math.log10(min(sizes))))}f"


def title_columns(made: Comparison, parts: Sequence[str]) -> list[str]:
    """The titles of columns, with the number of rounds that a mean of last is over, where all runs have the same."""
    over = {result.get("mean_last_over", "") for group in made.groups for result in group.results.values()}
    rounds = f" {over.pop()}" if len(over) == 1 else ""
    return [(NUMBERS[part] + (rounds if part == "mean_last" else "")).rstrip() for part in parts]


def write_latex(made: Comparison) -> str:
    """A tabular of the package booktabs; a comment says what its marks mean."""
    rows, measure, (_, form) = make_rows(made), measure_of(made.groups), scale_and_form(made)
    parts, name = list(rows[0].numbers), made.compared_by
    tops = {part: "" if (top := find_top(rows, part, measure)) is None else f"{top:{form}}" for part in parts}
    seeds = sorted({row.seeds for row in rows})
    span = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    words = "accuracies and losses" if measure is None else describe_measure(measure)
    unit = "accuracy in %" if measure == "accuracy" else words
    counted = () if made.is_even else ("Seeds", "Pairs")
    base = " ".join(made.baseline.label.split())
    lines = [
        f"% {unit}, mean and standard deviation over {span} seeds; bold: the best of a column",
        f"% *: {name} differs from {base} in a paired t-test over seeds, p < {SIGNIFICANT:g}, each method on its own",
        *(f"% {' '.join(told.split())}; neither bold nor *" for told in made.gaps),
        rf"\begin{{tabular}}{{l{'r' * (len(parts) + len(counted))}}}",
        r"\toprule",
        " & ".join(["Method", *title_columns(made, parts), *counted]) + r" \\",
        r"\midrule",
    ]
    for row in rows:
        cells = [escape_latex(row.label)]
        for part in parts:
            mark = r"\textsuperscript{*}" if part == name and is_significant(row) else ""
            cells.append(write_cell(*row.numbers[part], form, tops[part] if row.is_whole(part) else "") + mark)
        lines.append(" & ".join([*cells, *(row.in_words if counted else ())]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def find_top(rows: Sequence[Row], part: str, measure: str | None) -> float | None:
    """The best mean of a column over all seeds; none where runs are judged on different things."""
    whole = [row for row in rows if row.is_whole(part)] if measure else []
    means = [mean for row in whole if (mean := row.numbers[part][0]) is not None]
    return (min if measure and lower_is_better(measure) else max)(means, default=None)


def write_cell(mean: float | None, std: float | None, form: str, top: str) -> str:
    if mean is None:
        return "--"
    text = f"{mean:{form}}"
    shown = rf"\mathbf{{{raise_exponent(text)}}}" if text == top else raise_exponent(text)
    return f"${shown}$" if std is None else rf"${shown} \pm {raise_exponent(f'{std:{form}}')}$"


def raise_exponent(text: str) -> str:
    """1.5e-07 as LaTeX writes it."""
    return re.sub(r"e([+-]\d+)", lambda found: rf" \times 10^{{{int(found[1])}}}", text)


def is_significant(row: Row) -> bool:
    return row.p is not None and row.p < SIGNIFICANT


def escape_latex(text: str) -> str:
    """A name in which no sign is a command."""
    return "".join(SIGNS.get(sign, sign) for sign in " ".join(text.split()))


def write_csv(made: Comparison) -> str:
    """One line a method, numbers in full, accuracies and their differences in %; what there is none of is empty."""
    rows, name, (scale, _) = make_rows(made), made.compared_by, scale_and_form(made)
    parts = list(rows[0].numbers)
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    numbers = [f"{part}_{kind}" for part in parts for kind in ("mean", "std")]
    tested = ["top", "difference", "low", "high", "p", "significant", "pairs", "lacking"]
    table.writerow(["method", "seeds", *numbers, *tested, "measure"])
    measure = measure_of(made.groups)
    words, top = "" if measure is None else guard(describe_measure(measure)), find_top(rows, name, measure)
    for row in rows:
        each = [value for part in parts for value in row.numbers[part]]
        told = row.difference
        ends = [None] * 3 if told is None else [told.mean, told.low, told.high]
        paired_numbers = [None if value is None else scale * value for value in ends]
        is_top = row.is_whole(name) and row.numbers[name][0] is not None and row.numbers[name][0] == top
        verdict = "" if row.p is None else str(is_significant(row)).lower()
        ended = [row.pairs, row.seeds - row.fewest, words]
        shown = [guard(row.label), row.seeds, *each, str(is_top).lower(), *paired_numbers, row.p, verdict, *ended]
        table.writerow(["" if value is None else value for value in shown])
    return file.getvalue()


def guard(text: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
