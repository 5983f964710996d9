"""Claims judged by the ledger: the difference that the runs of full length measure, how sure it is, what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, fsum
from statistics import fmean

from fedkeel.analysis.intervals import Interval, difference_interval, paired_interval
from fedkeel.papers.claims import Claim, Difference, find_claimed_cells, read_claims
from fedkeel.papers.costs import gradient_evaluations
from fedkeel.papers.ledger import Entry, keep_newest, standing
from fedkeel.papers.reproduce import runs_of
from fedkeel.papers.spectra import Reading, is_at_chance, read_common_rounds
from fedkeel.papers.verdicts import Judgement, judge

CONFIRMED, CONTRADICTED, UNDECIDED = "confirmed", "contradicted", "undecided"
OPEN = "the interval allows both"
EXACT = 0.005  # two ratios of counts that differ by less are the same
SEEDS_AT_ONCE = 3  # so many are added to a claim that is left open; then it is looked at again


@dataclass(frozen=True)
class Finding:
    """A difference as the ledger has it: each side's runs, the measured difference (`at_least`: some run of the first
    side never reached the target, and counts as one round more than it had; `looked_at`: the rounds whose spectra it is
    about), and a verdict with its reason."""

    difference: Difference
    sides: tuple[Judgement, ...]
    interval: Interval | None
    verdict: str
    reason: str = ""
    at_least: bool = False
    looked_at: tuple[int, ...] = ()

    @property
    def entries(self) -> list[Entry]:
        return [entry for side in self.sides for entry in side.entries]

    @property
    def minutes(self) -> float:
        return fsum(entry.seconds for entry in self.entries) / 60

    @property
    def gradients(self) -> int:
        """Gradient evaluations of all its runs."""
        return sum(gradient_evaluations(side.cell, entry.rounds) for side in self.sides for entry in side.entries)


@dataclass(frozen=True)
class Decision:
    """A claim and its findings: contradicted if one of them is, confirmed if all are."""

    claim: Claim
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> str:
        found = {finding.verdict for finding in self.findings}
        if CONTRADICTED in found:
            return CONTRADICTED
        return CONFIRMED if found == {CONFIRMED} else UNDECIDED


def decide_claims(entries: Sequence[Entry]) -> list[Decision]:
    """Every claim, judged by the runs that count."""
    counted = standing(keep_newest(entries))
    sides = {one.cell.place: one for one in judge(find_claimed_cells(), counted)}

    def find(claim: Claim, one: Difference) -> Finding:
        return _read_spectra(claim, one, one.reading, counted) if one.reading else _find(claim, one, sides)

    claims = read_claims().values()
    return [Decision(claim, tuple(find(claim, one) for one in claim.differences)) for claim in claims]


def _find(claim: Claim, difference: Difference, judged: Mapping[tuple[str, str, str, str], Judgement]) -> Finding:
    sides = tuple(judged[cell.place] for _, cell in difference.terms)
    if claim.measure == "numbers":
        return _compare(claim, difference, sides)
    count: float | None
    if claim.measure == "gradients":
        first, second = (gradient_evaluations(side.cell) for side in sides)
        count, sides = first / second, ()  # no run is needed
    else:
        count = _count_bytes(sides)
    if count is None:
        return Finding(difference, sides, None, UNDECIDED, "not run")
    same = difference.reported is not None and abs(count - difference.reported) < EXACT
    return Finding(difference, sides, Interval(count, count, count), CONFIRMED if same else CONTRADICTED, "counted")


def _read_spectra(claim: Claim, difference: Difference, reading: Reading, entries: Sequence[Entry]) -> Finding:
    """Judge a number of one cell's spectra, at the rounds that every seed has."""
    ((_, cell),) = difference.terms
    runs: dict[int, Entry] = {}
    for run in sorted(runs_of(cell, entries), key=lambda run: len(run.spectra.get(claim.row, ()))):
        if claim.row in run.spectra:
            runs[run.seed] = run  # the one with the most rounds comes last
    rounds, values = read_common_rounds({seed: run.spectra for seed, run in runs.items()}, claim.row, reading.read)
    side = Judgement(cell, tuple(runs[seed] for seed in values), tuple(values.values()))
    if not values:
        return Finding(difference, (side,), None, UNDECIDED, f"no spectra: {cell.label}")
    interval = paired_interval([*values.values()], _count_looks(side))
    lasts = [run.last for run in side.entries if run.last is not None]
    decided = _decide(claim, difference, interval)
    if lasts and is_at_chance(fmean(lasts), cell.experiment["dataset"]):
        decided = UNDECIDED, f"models near chance: {fmean(lasts):.1f} %"
    return Finding(difference, (side,), interval, *decided, looked_at=tuple(rounds))


def _count_bytes(sides: Sequence[Judgement]) -> float | None:
    """Of runs of any length: what a round sends does not change."""
    sent = [[entry.sent for entry in side.entries if entry.sent is not None] for side in sides]
    return sent[0][-1] / sent[1][-1] if all(sent) else None


def _compare(claim: Claim, difference: Difference, sides: tuple[Judgement, ...]) -> Finding:
    named = [(side, f"{side.cell.row}, {side.cell.column}") for side in sides]
    if missing := [name for side, name in named if not side.entries]:
        return Finding(difference, sides, None, UNDECIDED, f"not run: {'; '.join(dict.fromkeys(missing))}")
    if short := [f"{name} {side.rounds} of {_length(side)}" for side, name in named if side.shortened]:
        return Finding(difference, sides, None, UNDECIDED, f"shortened: {'; '.join(dict.fromkeys(short))}")
    signs = [sign for sign, _ in difference.terms]
    values = [_by_seed(side, censored=sign > 0) for sign, side in zip(signs, sides, strict=True)]
    if any(None in side.values() for side in values):
        name = next(name for found, (_, name) in zip(values, named, strict=True) if None in found.values())
        return Finding(difference, sides, None, UNDECIDED, f"target not reached: {name}")
    numbers = [{seed: value for seed, value in side.items() if value is not None} for side in values]
    interval = difference_interval(list(zip(signs, numbers, strict=True)), _count_looks(*sides))
    at_least = any(sign > 0 and None in side.values for sign, side in zip(signs, sides, strict=True))
    verdict, reason = _decide(claim, difference, interval)
    return Finding(difference, sides, interval, verdict, reason, at_least)


def _count_looks(*sides: Judgement) -> int:
    return max(ceil(len(side.entries) / SEEDS_AT_ONCE) for side in sides)


def _length(side: Judgement) -> int:
    return int(side.cell.experiment["rounds"])


def _by_seed(side: Judgement, *, censored: bool) -> dict[int, float | None]:
    """Each seed's number. A target that was never reached took more rounds than there were: where that can only make
    the difference too small, one more is taken."""
    late = float(_length(side) + 1) if censored and side.cell.kind == "rounds" else None
    pairs = zip(side.entries, side.values, strict=True)
    return {entry.seed: late if value is None else value for entry, value in pairs}


def _decide(claim: Claim, difference: Difference, interval: Interval) -> tuple[str, str]:
    """Confirmed: the whole interval is what is claimed; contradicted: none of it is."""
    low, high, reported = interval.low, interval.high, difference.reported
    if low is None or high is None:
        return UNDECIDED, interval.reason
    least = difference.reading.above if difference.reading else -claim.within if claim.expects == "level" else 0.0
    if claim.expects == "no gain":
        inside, outside = high < claim.within, low > claim.within
    else:
        inside, outside = low > least, high < least
    if claim.expects == "gain" and reported is not None and high < reported:
        return CONTRADICTED, "smaller than reported"
    if inside:
        return CONFIRMED, ""
    return (CONTRADICTED, "") if outside else (UNDECIDED, OPEN)
