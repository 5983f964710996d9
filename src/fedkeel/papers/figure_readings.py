"""What a paper says of a figure, held against the numbers that runs gave: in words, with the numbers beside them.

An expectation of `figures.toml` is about one `line`, and with `of` only about the number of that name:

over       it is above another line, at every place that both have
best       its highest number is at this place
rises      it ends higher than it begins; `falls`: lower
steady     its highest and lowest number are at most so far apart
above      all its numbers are above this one
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedkeel.errors import RequestError


@dataclass(frozen=True)
class Numbers:
    """The numbers of some lines in one panel, by line and place on the line, in the order of the figure; of which runs
    they are, in words; whether these decide anything."""

    panel: str
    lines: Mapping[str, Mapping[str, float]]
    runs: str = ""
    decide: bool = True


Lookup = Callable[[Sequence[str]], Sequence[Numbers]]
"""The numbers of some lines by panel, at a round that every one of them has reached, over the seeds that all have."""


@dataclass(frozen=True)
class Reading:
    """One sentence about a figure; `holds` where the runs show what the paper says, None where they decide nothing."""

    words: str
    holds: bool | None


def read_expectations(expects: Sequence[Mapping[str, Any]], look_up: Lookup, unit: str = "points") -> list[Reading]:
    """Hold every expectation against the panels that have its numbers."""
    found = []
    for expected in expects:
        numbers = look_up([expected[word] for word in ("line", "over") if word in expected])
        for one in numbers:
            if not one.panel.endswith(expected.get("of", "")):
                continue
            named = len(numbers) > 1 or any(one.panel in line for line in one.lines.values())
            where = ", ".join(filter(None, [one.panel * named, one.runs]))
            for reading in read_one(expected, one.lines, unit):
                holds = reading.holds if one.decide else None
                found.append(Reading(reading.words + f" ({where})" * bool(where), holds))
    return found


def read_one(expected: Mapping[str, Any], lines: Mapping[str, Mapping[str, float]], unit: str) -> Iterator[Reading]:
    """Hold one expectation against the lines of one panel; nothing where a line has too few numbers."""
    name, rest = expected["line"], {key: value for key, value in expected.items() if key not in ("line", "of")}
    line = lines.get(name, {})
    if rest.keys() <= {"over"}:
        yield from read_lead(name, line, rest["over"], lines.get(rest["over"], {}), unit)
    elif rest.keys() <= {"best"}:
        if rest["best"] in line and len(line) > 1:
            top = max(line, key=lambda place: line[place])
            yield Reading(f"{name} is best at {top}; the paper has it best at {rest['best']}", top == rest["best"])
    elif rest.keys() <= {"rises"} or rest.keys() <= {"falls"}:
        if len(line) > 1:
            (first, begin), *_, (last, end) = line.items()
            went = "rises" if end > begin else "falls" if end < begin else "goes"
            words = f"{name} {went} from {begin:.4g} ({first}) to {end:.4g} ({last})"
            said = next(iter(rest))
            yield Reading(words if went == said else f"{words}; the paper's {said}", went == said)
    elif rest.keys() <= {"steady"}:
        if len(line) > 1:
            width = max(line.values()) - min(line.values())
            yield Reading(
                f"{name} varies by {width:.2f} {unit}; steady is at most {rest['steady']:g}", width <= rest["steady"]
            )
    elif rest.keys() <= {"above"}:
        for value in line.values():
            yield Reading(f"{name} has {value:.3g}, expected above {rest['above']:g}", value > rest["above"])
    else:
        raise RequestError(f"no figure expects this: {dict(expected)}", "over, best, rises, falls, steady or above")


def read_lead(
    name: str, line: Mapping[str, float], other: str, rest: Mapping[str, float], unit: str
) -> Iterator[Reading]:
    leads = [line[place] - rest[place] for place in line if place in rest]
    if not leads:
        return
    ahead = sum(lead > 0 for lead in leads)
    low, high = (f"{lead:+.2f}" if unit else f"{lead:+.3g}" for lead in (min(leads), max(leads)))
    by = f"by {low}" if len(leads) == 1 else f"by {low} to {high}"
    places = "" if len(leads) == 1 else f" at {ahead} of {len(leads)} places"
    word = "is above" if ahead or len(leads) > 1 else "is not above"
    yield Reading(f"{name} {word} {other}{places}, {by} {unit}".rstrip(), ahead == len(leads))
