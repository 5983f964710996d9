"""What is measured in every round besides the record's own numbers: observers, chosen by name.

`fk.run(experiment, track=("drift", "spectrum"))` adds their numbers to each record's `extra`. An observer only reads:
tracking changes no result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.analysis.drift import drift
from fedkeel.analysis.spectrum import BANDS, band_drift
from fedkeel.errors import RequestError, nearest
from fedkeel.method import FACTS
from fedkeel.rule import State
from fedkeel.trees import Tree

SPECTRUM_EVERY = 5  # rounds: a transform of every update in each would cost small models several per cent


class Seen(NamedTuple):
    """A round as an observer sees it: reports are stacked in client order, the server has made its step."""

    round: int  # counted from 1
    message: State
    reports: State
    server: State


Observer = Callable[[Seen], Mapping[str, float]]


def observe_drift(seen: Seen) -> dict[str, float]:
    """The numbers of `analysis.drift.Drift`, as `update/…`; the mean is what every record has as `drift`."""
    found = drift(seen.reports["delta"]).named()
    return {f"update/{name}": value for name, value in found.items() if name != "mean"}


def observe_spectrum(seen: Seen) -> dict[str, float]:
    """Dist(m) and Std(m) of the clients' updates in ten bands, counted from 1; in rounds 1, 6, 11, …

    Nothing for a single client.
    """
    updates: Tree = seen.reports["delta"]
    if seen.round % SPECTRUM_EVERY != 1 or len(updates.buffer) < 2:
        return {}
    found = band_drift(updates, BANDS, by_layer=False)
    distance, deviation = torch.stack([found.distance, found.deviation]).tolist()
    return {f"spectrum/distance/{m}": value for m, value in enumerate(distance, 1)} | {
        f"spectrum/deviation/{m}": value for m, value in enumerate(deviation, 1)
    }


def observe_state(seen: Seen) -> dict[str, float]:
    """The numbers that rules keep or report: α_t of FedWMSAM, the radii of FedSCAM, scores of layers.

    0-d slots of the server as `state/NAME`, the mean over clients of scalars in their reports as `report/NAME`; a slot
    with a few scalars per layer gives `…/NAME/LAYER`.
    """
    found: dict[str, Tensor] = {}
    for name, slot in seen.server.items():
        found |= numbers_of(f"state/{name}", slot, stacked=False)
    for name, slot in seen.reports.items():
        if name not in FACTS:
            found |= numbers_of(f"report/{name}", slot, stacked=True)
    values = torch.stack([value.to(torch.float64) for value in found.values()]).tolist() if found else []
    return dict(zip(found, values, strict=True))


def numbers_of(name: str, slot: Tree | Tensor, stacked: bool) -> dict[str, Tensor]:
    """A slot's scalars by name, averaged over clients where they are stacked; nothing for a slot that holds more."""
    if isinstance(slot, Tree):
        if any(slot.layout.shapes.values()):
            return {}
        return {f"{name}/{leaf}": value.mean() for leaf, value in slot.items()}
    return {name: slot.to(torch.float64).mean()} if slot.dim() == int(stacked) else {}


OBSERVERS: dict[str, Observer] = {"drift": observe_drift, "spectrum": observe_spectrum, "state": observe_state}


def observers(track: Iterable[str | Observer]) -> list[Observer]:
    """Observers by name, or functions of the caller's own."""
    found: list[Observer] = []
    for one in track:
        if isinstance(one, str) and one not in OBSERVERS:
            raise RequestError(f"nothing to track is called: {one}", nearest(one, OBSERVERS, "choices"))
        found.append(OBSERVERS[one] if isinstance(one, str) else one)
    return found


@torch.no_grad()
def observed(observers: Iterable[Observer], seen: Seen) -> dict[str, float | None]:
    """What all of them say of a round; what is not a number becomes None."""
    found: dict[str, float | None] = {}
    for observer in observers:
        found |= {name: value if value == value else None for name, value in observer(seen).items()}
    return found
