"""By how much a number varies when nothing was changed: measured by runs that were repeated, assumed where none was."""

from __future__ import annotations

import json
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedkeel.analysis.intervals import Pooled, pooled_std
from fedkeel.papers.cells import Cell, find
from fedkeel.papers.ledger import Entry, keep_newest
from fedkeel.papers.ledger_line import measured
from fedkeel.papers.reproduce import settings_of

ASSUMED = 0.5  # points of accuracy, where no run on the data set and network was repeated
SHARE = 0.05  # the same of rounds, bytes and seconds, as a share of the number
TIMES = ("seconds", "seconds per round", "extra seconds per round")  # of the authors' machine, so never the same here

TWINS = (
    (("specgradfilter:I", "FedAvg"), ("questions:step", "FedAvg")),
    (("specgradfilter:I", "SpecGradFilter"), ("questions:step", "SpecGradFilter")),
    (("fedfft:3", "None (FedSAM)"), ("fedfft:3", "L2-norm rescaling")),
)
"""Rows of tables that are the same computation under two names."""


@dataclass(frozen=True)
class Noise:
    """A standard deviation, in points for an accuracy and else as a share of the number; that over seeds and that of
    identical runs tell how many runs it comes from, and None where there are none."""

    std: float
    seeds: Pooled | None = None
    identical: Pooled | None = None

    @property
    def assumed(self) -> bool:
        return self.seeds is None and self.identical is None

    @property
    def source(self) -> str:
        """Where it comes from, in words."""
        found = [
            f"{pooled.values} runs of {pooled.groups} {what}"
            for pooled, what in ((self.seeds, "cells with several seeds"), (self.identical, "identical experiments"))
            if pooled is not None
        ]
        return "; ".join(found) or "assumed: nothing was repeated"


UNREPEATED = Noise(ASSUMED)


class NoiseOfLedger:
    """The noise of any cell, by the runs of full length on its data set and network that were repeated."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        """`entries` may hold a run twice: that is an identical one."""
        whole = [entry for entry in entries if entry.settings and not entry.shortened and not entry.superseded]
        self._seeds = _grouped((json.dumps([e.settings, e.rounds], sort_keys=True), e) for e in keep_newest(whole))
        self._identical = _grouped(((_computation(e), e.seed, e.rounds), e) for e in whole)
        self._found: dict[Hashable, Noise] = {}

    def of(self, cell: Cell) -> Noise:
        """The larger of what seeds and what identical runs vary by; the constant where neither was repeated."""
        place = place_of(cell.experiment)
        key = (*place, cell.kind, cell.evaluation, cell.target)
        if key not in self._found:
            seeds, identical = (
                pooled_std(_values(cell, group) for group in groups if place_of(group[0].settings) == place)
                for groups in (self._seeds, self._identical)
            )
            known = [pooled.std for pooled in (seeds, identical) if pooled is not None and cell.kind not in TIMES]
            fallback = ASSUMED if cell.kind == "accuracy" else SHARE
            self._found[key] = Noise(max(known), seeds, identical) if known else Noise(fallback)
        return self._found[key]


def _grouped(pairs: Iterable[tuple[Hashable, Entry]]) -> list[list[Entry]]:
    """The entries of each key that has several."""
    groups: dict[Hashable, list[Entry]] = {}
    for key, entry in pairs:
        groups.setdefault(key, []).append(entry)
    return [group for group in groups.values() if len(group) > 1]


def _computation(entry: Entry) -> str:
    """The same for two runs that compute the same, seed and length aside."""
    settings = json.dumps(entry.settings, sort_keys=True)
    return _twins().get(settings, settings)


@cache
def _twins() -> dict[str, str]:
    """Settings of a second twin, and those of the first with the same data, network and rates."""
    found = {}
    for (table, row), (other, second) in TWINS:
        firsts = [settings_of(cell) for cell in find(table) if cell.row == row]
        for settings in [settings_of(cell) for cell in find(other) if cell.row == second]:
            for first in firsts:
                if first | {"method": None} == settings | {"method": None}:
                    found[json.dumps(settings, sort_keys=True)] = json.dumps(first, sort_keys=True)
    return found


def place_of(settings: Mapping[str, Any]) -> tuple[str, str]:
    """The data set and the network."""
    return str(settings.get("dataset")), str(settings.get("model"))


def _values(cell: Cell, group: Sequence[Entry]) -> list[float]:
    """The cell's number in runs of another experiment, over their mean where it is no accuracy."""
    found = [value for entry in group if (value := measured(cell, entry)) is not None]
    if cell.kind == "accuracy" or not found:
        return found
    mean = statistics.fmean(found)
    return [value / mean for value in found] if mean else []
