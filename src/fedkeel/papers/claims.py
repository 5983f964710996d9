"""The papers' headline claims as data: what each says, and the differences between cells that decide it.

A claim of `claims.toml` has a `name`, its `paper`, what it `says` in our words and `where` it stands; a `note` says
what its verdict does not cover; then either why it is `unmeasured`, or:

of         the differences: every one of `pairs` in every one of `columns` of a `table` (the second row of a pair may
           stand in another one, `over`), or with `between` by how much it is larger in one column than in another
expects    what is claimed of each difference: see EXPECTED; `within` is its margin in points
measure    "gradients" or "bytes": the two sides are counted, not compared by accuracy, and their ratio is `reported`;
           "spectra": low bands are held against others, in every one of `rows` and `columns` of a `table`
row        "spectra": which tracked row is read, such as "gradient-spectrum/distance"; `track` is what the runs track
           for it, and `rounds` how many are enough
reported   stands for the difference between the numbers of the cells
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from math import fsum
from typing import Any

from fedkeel.errors import require_known
from fedkeel.papers.cells import Cell, each_once, find, read_file
from fedkeel.papers.order import list_cells
from fedkeel.papers.spectra import READINGS, Reading

CLAIMS = "claims"
"""What `fedkeel reproduce claims:fsa-headline` names in place of a paper."""

EXPECTED: dict[str, str] = {
    "ahead": "the first is ahead",
    "gain": "the first is ahead, and the interval does not lie below what is reported",
    "level": "the first is no further behind than the margin",
    "no gain": "the first is no further ahead than the margin",
}


@dataclass(frozen=True)
class Difference:
    """A sum of cells, each with its sign: a difference, or a difference of differences; `reported` is what the paper's
    numbers make of it. With a `reading` it is a number of one cell's spectra."""

    name: str
    terms: tuple[tuple[int, Cell], ...]
    reported: float | None
    reading: Reading | None = None


@dataclass(frozen=True)
class Claim:
    """What a paper claims, and the differences that decide it."""

    name: str
    paper: str
    says: str
    where: str
    note: str = ""
    differences: tuple[Difference, ...] = ()
    expects: str = "ahead"
    within: float = 0.0
    measure: str = "numbers"
    unmeasured: str = ""
    row: str = ""
    track: tuple[str, ...] = ()
    rounds: int | None = None

    @property
    def cells(self) -> list[Cell]:
        """The cells that decide it, each once."""
        return each_once(cell for one in self.differences for _, cell in one.terms)


@cache
def read_claims() -> dict[str, Claim]:
    """Every claim, by name."""
    return {given["name"]: _claim(dict(given)) for given in read_file("claims")["claim"]}


def find_claimed_cells(name: str | None = None) -> list[Cell]:
    """List the cells that decide one claim, or all of them, each once."""
    known = read_claims()
    wanted = known.values() if name is None else [known[require_known(name, known, "there is no claim", "claims")]]
    return each_once(cell for claim in wanted for cell in claim.cells)


def find_claimed_tracks(spec: str) -> list[str]:
    """List what the runs of a claim have to track; nothing where no claim is named."""
    paper, _, name = spec.partition(":")
    claim = read_claims().get(name) if paper == CLAIMS else None
    return [] if claim is None else list(claim.track)


def _claim(given: dict[str, Any]) -> Claim:
    reported = given.pop("reported", None)
    given["track"] = tuple(given.get("track", ()))
    if given.get("measure") == "spectra":
        cells = [cell for part in given.pop("of") for cell in list_cells(part)]
        return Claim(**given, differences=tuple(_readings(cells)))
    link = "−" if given.get("measure", "numbers") == "numbers" else "/"
    made = [one for part in given.pop("of", ()) for one in _differences(part, reported, link)]
    return Claim(**given, differences=tuple(made))


def _readings(cells: list[Cell]) -> list[Difference]:
    pairs = product(cells, READINGS)
    return [Difference(f"{cell.label}: {one.words}", ((1, cell),), None, one) for cell, one in pairs]


def _differences(part: dict[str, Any], reported: float | None, link: str) -> list[Difference]:
    first = {(cell.row, cell.column): cell for cell in find(part["table"])}
    second = {(cell.row, cell.column): cell for cell in find(part.get("over", part["table"]))}
    made = []
    for (row, other), column in product(part["pairs"], part.get("columns", ())):
        made.append(
            _difference(f"{row} {link} {other}, {column}", [first[row, column], second[other, column]], reported)
        )
    for row, other in part["pairs"] if "between" in part else ():
        strong, weak = part["between"]
        cells = [first[row, strong], second[other, strong], second[other, weak], first[row, weak]]
        made.append(_difference(f"{row} {link} {other}, {strong}, over the same at {weak}", cells, reported))
    return made


def _difference(name: str, cells: list[Cell], reported: float | None) -> Difference:
    """Signs alternate: the first cell, less the second, and so on."""
    terms = tuple((-1 if place % 2 else 1, cell) for place, cell in enumerate(cells))
    known = [(sign, cell.reported) for sign, cell in terms if cell.reported is not None and not cell.uncertain]
    if reported is None and len(known) == len(terms):
        reported = fsum(sign * value for sign, value in known)
    return Difference(name, terms, reported)
