"""What else is measured in every round, beyond the record's own numbers: observers, chosen by name.

`fk.run(experiment, track=("drift", "spectrum@30+60"))` adds their numbers to each record's `extra`; rounds behind an @
say when. An observer only reads: tracking changes no result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedkeel.analysis.drift import drift
from fedkeel.analysis.filtered import compare_divergence, find_filter
from fedkeel.analysis.spectrum import BANDS, band_drift, summarise_bands
from fedkeel.core.contract import FACTS
from fedkeel.core.method import Method
from fedkeel.core.round import init_client, own_moves
from fedkeel.core.rule import State
from fedkeel.core.trees import Tree
from fedkeel.errors import RequestError, require_known
from fedkeel.runs.probe import Probe
from fedkeel.runs.record import NAMES
from fedkeel.typed_values import list_given

SPECTRUM_EVERY = 5  # rounds: a transform of every update in each would cost small models several per cent
MOMENTS = 4  # of a run at which spectra of gradients and perturbations are taken: those cost further gradients


class Seen(NamedTuple):
    """A round as an observer sees it: reports are stacked in client order, the server has made its step.

    `states`: what each of the clients remembers of the round, in the same order. `probe`: the same clients before the
    round, for their gradients at the model that they begin the round with. `rounds`: of the whole run.
    """

    round: int  # counted from 1
    message: State
    reports: State
    server: State
    method: Method
    states: Sequence[State]
    probe: Probe
    rounds: int


Observer = Callable[[Seen], Mapping[str, float]]
Due = Callable[[int, int], bool]
"""Whether something is measured in a round, of so many."""


def observe_drift(seen: Seen) -> dict[str, float]:
    """Measure `analysis.drift.Drift`, as `update/…`; the mean is what every record has as `drift`.

    Nothing where rules leave "delta" empty, and send what clients learned in slots of their own.
    """
    if not seen.reports["delta"].layout.size:
        return {}
    found = drift(own_moves(seen.method, seen.reports["delta"], seen.states)).named()
    return {f"update/{name}": value for name, value in found.items() if name != "mean"}


def observe_spectrum(seen: Seen) -> dict[str, float]:
    """Dist(m) and Std(m) of the clients' updates in ten bands, counted from 1; nothing for a single client."""
    sent: Tree = seen.reports["delta"]
    if len(sent.buffer) < 2 or not sent.layout.size:
        return {}
    found = band_drift(own_moves(seen.method, sent, seen.states), BANDS, by_layer=False)
    distance, deviation = torch.stack([found.distance, found.deviation]).tolist()
    return {f"spectrum/distance/{m}": value for m, value in enumerate(distance, 1)} | {
        f"spectrum/deviation/{m}": value for m, value in enumerate(deviation, 1)
    }


def observe_probe(kind: str, seen: Seen) -> dict[str, float]:
    """Measure the spectrum of the clients' gradients or perturbations at the model that they begin the round with.

    Dist(m), Std(m) and the variance across clients in ten bands, Dist(m) of each layer, and how far each client is from
    the mean; on at most 1 000 samples of a client. Nothing for a single client, and where a method does not perturb.
    """
    probe = seen.probe
    if len(probe.clients) < 2:
        return {}
    tree = probe.gradients if kind == "gradient" else probe.perturbations
    if tree is None:
        return {}
    found = summarise_bands(tree)
    rows = {name: found[name] for name in ("distance", "deviation", "variance")}
    rows |= {f"layer/{name}": values for name, values in found["layers"].items()}
    rows |= {f"client/{client}": row for client, row in zip(probe.clients, found["clients"], strict=True)}
    named = {f"{kind}-spectrum/{name}/{m}": value for name, row in rows.items() for m, value in enumerate(row, 1)}
    return {name: value for name, value in named.items() if not math.isnan(value)}  # a short layer has empty bands


def observe_divergence(seen: Seen) -> dict[str, float]:
    """Measure how far the clients' gradients are from their mean in each layer, before and after a filter.

    The method's own filter, or one that removes 5 % of the frequencies. Layers are weights, not biases and norms, which
    SpecGradFilter leaves alone. Nothing for a single client.
    """
    probe = seen.probe
    if len(probe.clients) < 2:
        return {}
    found = compare_divergence(probe.gradients, find_filter(probe.method.rules))
    layers = [name for name, shape in probe.gradients.layout.shapes.items() if len(shape) > 1]
    return {f"gradient-divergence/{when}/{name}": row[name] for when, row in found.items() for name in layers}


def observe_curve(name: str, seen: Seen) -> dict[str, float]:
    """Measure what the method's rules say can be drawn under a name.

    A number that the server sent, as it is; one that each client has, as its mean, least and most over the clients of
    the round; one for each layer, as the mean over the clients.
    """
    found: dict[str, Tensor] = {}
    params: Tree = seen.server["params"]
    slots = init_client(seen.method, params).keys()
    here = [state for state in seen.states if state.keys() >= slots]  # those of a federation may stay on its nodes
    for rule in seen.method.rules:
        found |= {word: sent for word, sent in rule.server_curves(seen.message).items() if word == name}
        told = [curves[name] for state in here if name in (curves := rule.client_curves(params, state))]
        if told and isinstance(told[0], Tree):
            found |= {f"{name}/{layer}": torch.stack([one[layer] for one in told]).mean() for layer in told[0]}
        elif told:
            values = torch.stack(told).to(torch.float64)
            found |= {f"{name}/mean": values.mean(), f"{name}/least": values.min(), f"{name}/most": values.max()}
    return read_numbers(found)


def observe_state(seen: Seen) -> dict[str, float]:
    """Read every number that rules keep or report, whatever it means.

    0-d slots of the server as `state/NAME`, the mean over clients of scalars in their reports as `report/NAME`; a slot
    with a few scalars per layer gives `…/NAME/LAYER`.
    """
    found: dict[str, Tensor] = {}
    for name, slot in seen.server.items():
        found |= scalars_of(f"state/{name}", slot, stacked=False)
    for name, slot in seen.reports.items():
        if name not in FACTS:
            found |= scalars_of(f"report/{name}", slot, stacked=True)
    return read_numbers(found)


def read_numbers(found: Mapping[str, Tensor]) -> dict[str, float]:
    """Read numbers from the device, all at once."""
    values = torch.stack([value.to(torch.float64) for value in found.values()]).tolist() if found else []
    return dict(zip(found, values, strict=True))


def scalars_of(name: str, slot: Tree | Tensor, stacked: bool) -> dict[str, Tensor]:
    """Return a slot's scalars by name, averaged over clients where stacked; nothing for a slot that holds more."""
    if isinstance(slot, Tree):
        if any(slot.layout.shapes.values()):
            return {}
        return {f"{name}/{leaf}": value.mean() for leaf, value in slot.items()}
    return {name: slot.to(torch.float64).mean()} if slot.dim() == int(stacked) else {}


OBSERVERS: dict[str, Observer] = {
    "drift": observe_drift,
    "spectrum": observe_spectrum,
    **{f"{kind}-spectrum": partial(observe_probe, kind) for kind in ("gradient", "perturbation")},
    "gradient-divergence": observe_divergence,
    **{name: partial(observe_curve, name) for name in ("alpha", "radius", "critical")},
    "state": observe_state,
}


def is_moment(round: int, rounds: int) -> bool:
    """Whether a round ends one of MOMENTS equal parts of a run."""
    return round in {-(-rounds * part // MOMENTS) for part in range(1, MOMENTS + 1)}


DUE: dict[str, Due] = {
    "spectrum": lambda round, rounds: round % SPECTRUM_EVERY == 1,
    "gradient-spectrum": is_moment,
    "perturbation-spectrum": is_moment,
    "gradient-divergence": is_moment,
}
"""What is not measured in every round, unless the rounds are given."""


def as_list(track: Iterable[str | Observer] | str | Observer) -> list[str | Observer]:
    """Return names and functions as a list; one alone needs none."""
    for one in (several := list_given(track, "track")):
        if not (isinstance(one, str) or callable(one)):
            raise RequestError(f"a tracker is a name or a function, not {type(one).__name__}.", 'track=["drift"]')
    return several


def find_observers(track: Iterable[str | Observer] | str | Observer) -> list[Observer]:
    """Find observers by name; functions of the caller's own stay as they are."""
    return [find_observer(one) if isinstance(one, str) else one for one in as_list(track)]


def find_observer(asked: str) -> Observer:
    """Find the observer called NAME, or NAME@30+60 for the rounds 30 and 60 alone."""
    name, at, text = asked.partition("@")
    observer = OBSERVERS[require_known(name, OBSERVERS, "nothing to track is called", "choices")]
    if not at:
        return limit_to(DUE[name], observer) if name in DUE else observer
    words = text.split("+")
    if not all(word.isdecimal() and int(word) for word in words):
        raise RequestError(f"{asked!r} does not say in which rounds.", f"round numbers joined by +: {name}@30+60+90")
    chosen = {int(word) for word in words}
    return limit_to(lambda round, rounds: round in chosen, observer)


def limit_to(due: Due, observer: Observer) -> Observer:
    """Return the observer, silent in the other rounds."""
    return lambda seen: observer(seen) if due(seen.round, seen.rounds) else {}


@torch.no_grad()
def observe_round(observers: Iterable[Observer], seen: Seen) -> dict[str, float | None]:
    """Gather what all observers say of a round; what is not a number becomes None."""
    found: dict[str, float | None] = {}
    for observer in observers:
        told = observer(seen)
        if not isinstance(told, Mapping):
            raise RequestError(f"a tracker returns numbers by name, not {type(told).__name__}.", 'return {"name": 0.5}')
        check_names(told, {})
        found |= {name: check_number(name, value) for name, value in told.items()}
    return found


def check_names(tracked: Iterable[str], measured: Mapping[str, Any]) -> None:
    """Refuse a tracker's number that has the name of another measure of its round, whose place it would take."""
    for name in tracked:
        if name in measured or name in NAMES:
            raise RequestError(f"a tracker may not call its number {name!r}: a round has that already.", "another name")


def check_number(name: str, value: Any) -> float | None:
    """Return what a tracker says as a number; None where it is none that JSON knows."""
    try:
        plain = float(value)
    except (TypeError, ValueError):
        raise RequestError(f"a tracker's {name!r} is no number: {value!r}", "numbers only") from None
    return plain if math.isfinite(plain) else None
