"""What a gradient may be the gradient of, by name: the problem's own loss, or one that a method brings along.

A name may carry a number: `distil:3` is distillation at temperature 3. Each objective is a function of the model's
output and the targets that gives one value per sample, so any engine can offer it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedkeel.errors import MethodError, nearest


class Given(NamedTuple):
    """What an objective may read besides outputs and targets."""

    reference: Tensor | None = None  # the output of the model that the server sent, on the same samples
    histogram: Tensor | None = None  # how many samples of each class the client has
    message: dict[str, Any] = {}  # noqa: RUF012 - read, never written


@dataclass(frozen=True)
class Objective:
    """`losses(output, target, number, given)`: one value per sample. None: the problem's own loss."""

    losses: Callable[[Any, Tensor, float, Given], Tensor] | None = None
    number: float = 0.0
    reference: bool = False
    asks: tuple[str, ...] = ()
    differentiable: bool = True


def distil(output: Tensor, target: Tensor, temperature: float, given: Given) -> Tensor:
    """How far the outputs are from those of the model the server sent: KL(softmax(z_t / T) ‖ softmax(z / T))."""
    assert given.reference is not None
    mine = functional.log_softmax(output / temperature, -1)
    theirs = functional.log_softmax(given.reference / temperature, -1)
    return (theirs.exp() * (theirs - mine)).sum(-1)


def calibrated(output: Tensor, target: Tensor, tau: float, given: Given) -> Tensor:
    """Cross-entropy of outputs lowered by τ n_c^(−1/4); classes the client has no sample of do not compete."""
    assert given.histogram is not None
    margin = tau * given.histogram.clamp(min=1.0) ** -0.25
    shifted = (output - margin).masked_fill(given.histogram == 0, -torch.inf)
    return functional.cross_entropy(shifted, target, reduction="none")


OBJECTIVES: dict[str, Objective] = {
    "loss": Objective(),
    "value": Objective(differentiable=False),
    "distil": Objective(distil, 3.0, reference=True),
    "calibrated": Objective(calibrated, 1.0, asks=("histogram",)),
}


def objective_of(name: str) -> tuple[Objective, float]:
    """The objective and its number; `calibrated` alone has the number of its paper."""
    kind, _, number = name.partition(":")
    found = OBJECTIVES.get(kind)
    if found is None:
        raise MethodError(f"unknown objective: {kind}", nearest(kind, OBJECTIVES, "objectives"))
    try:
        return found, float(number) if number else found.number
    except ValueError:
        raise MethodError(
            f"the number of objective {kind} is not one: {number}", f"write {kind}:{found.number}"
        ) from None
