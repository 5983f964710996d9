"""What a gradient may be the gradient of, by name: the problem's own loss, or one that a method brings along.

A name may carry a number: `distil:3` is distillation at temperature 3. Each objective is a function of the model's
output and the targets that gives one value per sample, so any engine can offer it. One may ask for another output than
that of `forward`: of a method that the model must have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedkeel.errors import MethodError, nearest
from fedkeel.ranges import AnyFinite, NonNegative, Positive, find_fault


class Given(NamedTuple):
    """What an objective may read besides outputs and targets."""

    reference: Tensor | None = None  # the output of the model that the server sent, on the same samples
    histogram: Tensor | None = None  # how many samples of each class the client has
    message: dict[str, Any] = {}  # noqa: RUF012 - read, never written
    key: Tensor | None = None  # 0-d int64: randomness for this (seed, round, client, step)


@dataclass(frozen=True)
class Objective:
    """`losses(output, target, number, given)`: one value per sample. None: the problem's own loss.

    `of`: the method of the model that gives the output, called with the step's key too if "key" is in `asks`; empty:
    the model itself. `numbers`: which ones the name may carry. `total`: the values of a batch are added, not averaged.
    """

    losses: Callable[[Any, Tensor, float, Given], Tensor] | None = None
    number: float = 0.0
    numbers: Any = AnyFinite
    reference: bool = False
    asks: tuple[str, ...] = ()
    differentiable: bool = True
    of: str = ""
    total: bool = False


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


def bottleneck(output: tuple[Tensor, Tensor, Tensor], target: Tensor, beta: float, given: Given) -> Tensor:
    """Cross-entropy averaged over samples of the code, + β KL(r_y ‖ q(z|x)); r_y: the common prior of the label."""
    code, prior = output[:2], prior_of(target, given)
    return sampled_cross_entropy(output[2], target) + beta * divergence(*prior, *code)


def bottleneck_usual(output: tuple[Tensor, Tensor, Tensor], target: Tensor, beta: float, given: Given) -> Tensor:
    """The same with the usual direction of the divergence, β KL(q(z|x) ‖ r_y)."""
    code, prior = output[:2], prior_of(target, given)
    return sampled_cross_entropy(output[2], target) + beta * divergence(*code, *prior)


def prior_of(target: Tensor, given: Given) -> tuple[Tensor, Tensor]:
    """μ and σ of each label, as the server sent them."""
    ((_, mean),), ((_, spread),) = given.message["prior_mean"].items(), given.message["prior_spread"].items()
    return mean[target], spread[target]


def sampled_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """The mean over draws of `[batch, draws, classes]`."""
    each = target.unsqueeze(1).expand(logits.shape[:2])
    return -functional.log_softmax(logits, -1).gather(-1, each.unsqueeze(-1)).squeeze(-1).mean(1)


def divergence(mean: Tensor, spread: Tensor, other_mean: Tensor, other_spread: Tensor) -> Tensor:
    """KL(N(μ, σ) ‖ N(μ', σ')) = Σ log(σ'/σ) + (σ² + (μ − μ')²) / 2σ'² − ½, over the last axis."""
    ratio = (spread / other_spread).square()
    return 0.5 * (ratio - 1 - ratio.log() + ((mean - other_mean) / other_spread).square()).sum(-1)


def at_target(output: Tensor, target: Tensor, number: float, given: Given) -> Tensor:
    """The output of each sample's own class: its slope in a linear head collects what went into that head by class."""
    return output.gather(-1, target.unsqueeze(-1)).squeeze(-1)


OBJECTIVES: dict[str, Objective] = {
    "loss": Objective(),
    "value": Objective(differentiable=False),
    "distil": Objective(distil, 3.0, Positive, reference=True),
    "calibrated": Objective(calibrated, 1.0, NonNegative, asks=("histogram",)),
    "bottleneck": Objective(bottleneck, 1e-3, NonNegative, asks=("key",), of="sampled"),
    "bottleneck-usual": Objective(bottleneck_usual, 1e-3, NonNegative, asks=("key",), of="sampled"),
    "precision": Objective(at_target, of="precision", total=True),
    "evidence": Objective(at_target, of="evidence", total=True),
}


def objective_of(name: str) -> tuple[Objective, float]:
    """The objective and its number; `calibrated` alone has the number of its paper."""
    kind, _, number = name.partition(":")
    found = OBJECTIVES.get(kind)
    if found is None:
        raise MethodError(f"unknown objective: {kind}", nearest(kind, OBJECTIVES, "objectives"))
    try:
        value = float(number) if number else found.number
    except ValueError:
        raise MethodError(
            f"the number of objective {kind} is not one: {number}", f"write {kind}:{found.number}"
        ) from None
    fault = find_fault(value, found.numbers)
    if fault:
        raise MethodError(f"the number of objective {kind} {fault}: {number}", f"write {kind}:{found.number}")
    return found, value
