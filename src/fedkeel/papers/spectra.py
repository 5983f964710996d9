"""Spectra that a run tracked, as the ledger keeps them, and what they say of low frequencies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from fedkeel.data.storage.loading import find_card
from fedkeel.runs.record import RoundRecord

CHANCE = 2.0  # times the accuracy of guessing, below which a model is at chance

Spectra = dict[str, dict[str, list[float]]]
"""How much clients disagree, by what was tracked, by round, and then by band or by layer in their order."""

KEPT: dict[str, Collection[str]] = {
    "gradient-spectrum": ("distance", "deviation", "variance"),
    "perturbation-spectrum": ("distance", "deviation", "variance"),
    "gradient-divergence": ("before", "after"),
}
"""What `--track` calls it, and the rows of it that the ledger keeps."""


class Reading(NamedTuple):
    """A number of a spectrum by band; a claim about low frequencies expects it above `above`."""

    words: str
    read: Callable[[Sequence[float]], float]
    above: float


READINGS: tuple[Reading, ...] = (
    Reading("lowest band over the largest other", lambda row: row[0] / max(row[1:]), 1.0),
    Reading("share of the lower half of the bands", lambda row: sum(row[: len(row) // 2]) / sum(row), 0.5),
)


def gather_spectra(records: Iterable[RoundRecord]) -> Spectra:
    """Gather what the ledger keeps of tracked spectra, in six digits; a row with a gap is left out."""
    found: Spectra = {}
    for record in records:
        rows: dict[str, dict[str, float | None]] = {}
        for name, value in record.extra.items():
            row, _, place = name.rpartition("/")
            kind, _, part = row.partition("/")
            if part in KEPT.get(kind, ()):
                rows.setdefault(row, {})[place] = value
        for row, values in rows.items():
            whole = "spectrum" not in row or [*values] == [str(m) for m in range(1, len(values) + 1)]
            numbers = [float(f"{value:.6g}") for value in values.values() if value is not None]
            if whole and len(numbers) == len(values):
                found.setdefault(row, {})[str(record.round)] = numbers
    return found


def spread_out(spectra: Spectra, round: int) -> dict[str, float | None]:
    """Return what the ledger keeps of a round as a record had it; layers have numbers in place of names."""
    kept = ((row, by_round.get(str(round), ())) for row, by_round in spectra.items())
    return {f"{row}/{m}": value for row, values in kept for m, value in enumerate(values, 1)}


def rounds_of(spectra: Spectra) -> list[int]:
    """List the rounds that something was tracked in."""
    return sorted({int(at) for by_round in spectra.values() for at in by_round})


def cut_spectra(spectra: Spectra, round: int) -> Spectra:
    """Keep what was tracked up to a round."""
    kept = {row: {at: v for at, v in by_round.items() if int(at) <= round} for row, by_round in spectra.items()}
    return {row: by_round for row, by_round in kept.items() if by_round}


def has_tracked(spectra: Spectra, rounds: int, tracks: Iterable[str]) -> bool:
    """Whether a run of so many rounds has all that is to be tracked, in the rounds asked for that it reached."""
    return all(_has_one(spectra, rounds, *track.partition("@")[::2]) for track in tracks)


def _has_one(spectra: Spectra, rounds: int, kind: str, text: str) -> bool:
    asked = {at for at in text.split("+") if at and int(at) <= rounds}
    rows = [spectra.get(f"{kind}/{part}", {}) for part in KEPT.get(kind, ())]
    return bool(rows) and all(row and asked <= row.keys() for row in rows)


def read_common_rounds(
    by_seed: Mapping[int, Spectra], row: str, read: Callable[[Sequence[float]], float]
) -> tuple[list[int], dict[int, float]]:
    """Read a number off each seed's spectra: the rounds that all of them have, and by seed the mean over these."""
    found = {
        seed: {int(at): read(values) for at, values in spectra.get(row, {}).items() if _has_bands(values)}
        for seed, spectra in sorted(by_seed.items())
    }
    common = sorted(set.intersection(*(set(known) for known in found.values()))) if found else []
    return common, {seed: fmean(known[at] for at in common) for seed, known in found.items() if common}


def is_at_chance(percent: float, dataset: str) -> bool:
    """Whether a model is no better than guessing: what is tracked in it decides nothing."""
    return percent < CHANCE * 100 / find_card(dataset).classes


def _has_bands(values: Sequence[float]) -> bool:
    """Whether a low band can be held against others that are not empty."""
    return min(values, default=-1.0) >= 0 and max(values[1:], default=0.0) > 0
