"""What is measured in every round besides the record's own numbers: observers, chosen by name.

`fk.run(experiment, track=("drift", "spectrum"))` adds their numbers to each record's `extra`. An observer only reads:
tracking changes no result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedkeel.analysis.drift import drift
from fedkeel.analysis.spectrum import BANDS, band_drift
from fedkeel.core.contract import FACTS
from fedkeel.core.method import Method
from fedkeel.core.rule import State
from fedkeel.core.trees import Tree
from fedkeel.errors import RequestError, nearest
from fedkeel.rules import AdaptiveRadius
from fedkeel.rules.critical import NEVER
from fedkeel.rules.layers import weight_layers
from fedkeel.runs.record import NAMES

SPECTRUM_EVERY = 5  # rounds: a transform of every update in each would cost small models several per cent


class Seen(NamedTuple):
    """A round as an observer sees it: reports are stacked in client order, the server has made its step.

    `states`: what each of the clients remembers of the round, in the same order.
    """

    round: int  # counted from 1
    message: State
    reports: State
    server: State
    method: Method | None = None
    states: Sequence[State] = ()


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


def observe_alpha(seen: Seen) -> dict[str, float]:
    """α_t of FedWMSAM: the weight of the fresh gradient that clients mixed with in this round."""
    alpha = seen.message.get("alpha")
    return {"alpha": float(alpha)} if isinstance(alpha, Tensor) and alpha.dim() == 0 else {}


def observe_radius(seen: Seen) -> dict[str, float]:
    """The radius that each client of the round perturbed by, where it is the client's own: mean, least and most.

    (FedSCAM fig. 1)
    """
    rules = seen.method.rules if seen.method is not None else ()
    rule = next((rule for rule in rules if isinstance(rule, AdaptiveRadius)), None)
    if rule is None or not seen.states:
        return {}
    radii = torch.stack([rule.radius(state) for state in seen.states]).to(torch.float64)
    mean, least, most = torch.stack([radii.mean(), radii.min(), radii.max()]).tolist()
    return {"radius/mean": mean, "radius/least": least, "radius/most": most}


def observe_critical(seen: Seen) -> dict[str, float]:
    """The share of the round's clients that marked a layer as critical, for each layer that any may mark.  (FedFSA)

    Marks are those for the client's next round: made at the end of this one.
    """
    marks: list[Tree] = [state["critical"] for state in seen.states if "critical" in state]
    if not marks:
        return {}
    able = [
        name for name in weight_layers(seen.server["params"].layout, NEVER).shapes if name in marks[0].layout.shapes
    ]
    shares = torch.stack([torch.stack([mark[name] for mark in marks]).mean() for name in able]).tolist()
    return {f"critical/{name}": share for name, share in zip(able, shares, strict=True)}


def observe_state(seen: Seen) -> dict[str, float]:
    """Every number that rules keep or report, whatever it means.

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


OBSERVERS: dict[str, Observer] = {
    "drift": observe_drift,
    "spectrum": observe_spectrum,
    "alpha": observe_alpha,
    "radius": observe_radius,
    "critical": observe_critical,
    "state": observe_state,
}


def listed(track: Iterable[str | Observer] | str | Observer) -> list[str | Observer]:
    """Names and functions; one alone needs no list."""
    return [track] if isinstance(track, str) or callable(track) else list(track)


def observers(track: Iterable[str | Observer] | str | Observer) -> list[Observer]:
    """Observers by name, or functions of the caller's own."""
    found: list[Observer] = []
    for one in listed(track):
        if isinstance(one, str) and one not in OBSERVERS:
            raise RequestError(f"nothing to track is called: {one}", nearest(one, OBSERVERS, "choices"))
        found.append(OBSERVERS[one] if isinstance(one, str) else one)
    return found


@torch.no_grad()
def observed(observers: Iterable[Observer], seen: Seen) -> dict[str, float | None]:
    """What all of them say of a round; what is not a number becomes None."""
    found: dict[str, float | None] = {}
    for observer in observers:
        told = observer(seen)
        if not isinstance(told, Mapping):
            raise RequestError(f"a tracker returns numbers by name, not {type(told).__name__}.", 'return {"name": 0.5}')
        found |= {name: number(name, value) for name, value in told.items()}
    return found


def number(name: str, value: Any) -> float | None:
    """What a tracker says, as a number; None where it is none that JSON knows."""
    if name in NAMES:
        raise RequestError(f"a tracker may not call its number {name!r}: a round has that already.", "another name")
    try:
        plain = float(value)
    except (TypeError, ValueError):
        raise RequestError(f"a tracker's {name!r} is no number: {value!r}", "numbers only") from None
    return plain if math.isfinite(plain) else None
