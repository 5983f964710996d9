"""The objectives that methods bring along, by their names in files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedkeel.core.objective import Given, Loss, Objective, Value, divide_by_counted, names_a_class, put_classes_last
from fedkeel.errors import MethodError, explain_typos
from fedkeel.ranges import NonNegative, Positive, Share


@dataclass(frozen=True)
class Distilled(Objective):
    """How far the outputs are from those of the model the server sent: KL(softmax(z_t / T) ‖ softmax(z / T)).

    Where targets name no class, such as -100, or one that the loss ignores, outputs are left out of the mean.
    """

    temperature: Positive = 3.0
    reference: ClassVar[bool] = True
    scores: ClassVar[bool] = True

    def losses(self, output: Tensor, target: Tensor, given: Given) -> Tensor:
        both = (put_classes_last(scores, target) / self.temperature for scores in (output, given.reference))
        mine, theirs = (functional.log_softmax(scores, -1) for scores in both)
        apart = (theirs.exp() * (theirs - mine)).sum(-1)
        if target.shape != apart.shape:  # a share for each class
            return apart
        counts = names_a_class(target, mine.shape[-1], given.ignored)
        return apart.masked_fill(~counts, 0.0) * divide_by_counted(counts.to(apart), given.mask)


@dataclass(frozen=True)
class Guided(Objective):
    """The loss + γ T² KL(softmax(z_e / T) ‖ softmax(z / T)), z_e the outputs of the trajectory's mean model.

    Where targets name no class, such as -100, outputs are left out of the mean.
    """

    gamma: NonNegative = 1.0
    temperature: Positive = 3.0
    reference: ClassVar[bool] = True
    teacher: ClassVar[str] = "trajectory"
    adds: ClassVar[bool] = True
    scores: ClassVar[bool] = True

    def losses(self, output: Tensor, target: Tensor, given: Given) -> Tensor:
        return self.gamma * self.temperature**2 * Distilled(self.temperature).losses(output, target, given)


@dataclass(frozen=True)
class Decorrelated(Objective):
    """The loss + β times the mean square of the off-diagonal of XᵀX, divided by the number n of samples.

    X are the features that the classifier is given, each standardised over the batch. A batch of one sample adds 0.
    """

    beta: NonNegative = 0.1
    features: ClassVar[bool] = True
    adds: ClassVar[bool] = True

    def losses(self, output: tuple[Tensor, Tensor], target: Tensor, given: Given) -> Tensor:
        features = output[1].flatten(1)
        return self.beta * correlation(features, given.mask).expand(features.shape[0])


def correlation(features: Tensor, mask: Tensor | None) -> Tensor:
    """Σ_(j≠k) (XᵀX)_jk² / (d (d − 1) n), X the columns standardised over the real samples."""
    real = features.new_ones(features.shape[0]) if mask is None else mask
    n, d = real.sum(), features.shape[1]
    centred = (features - (real @ features) / n) * real.unsqueeze(1)
    variance = centred.square().sum(0) / (n - 1).clamp(min=1.0)
    x = centred / (variance + 1e-8).sqrt()
    # ‖XᵀX‖ = ‖XXᵀ‖, which is the smaller matrix where features are many
    off = (x @ x.T).square().sum() - x.square().sum(0).square().sum()
    return off / (max(d * (d - 1), 1) * n)


@dataclass(frozen=True)
class Smoothed(Objective):
    """The loss + ε (z_y − Σ_c z_c / C), z the outputs before the softmax: cross-entropy then has the target
    (1 − ε) e_y + ε / C.  smoothing = 0: no change.

    Targets that name no class, such as -100, are left out of the mean.  (label smoothing, Szegedy et al. 2016)
    """

    smoothing: Share = 0.1
    adds: ClassVar[bool] = True
    scores: ClassVar[bool] = True
    labels: ClassVar[bool] = True

    def losses(self, output: Tensor, target: Tensor, given: Given) -> Tensor:
        scores = put_classes_last(output, target)
        counts = names_a_class(target, scores.shape[-1], given.ignored)
        own = scores.gather(-1, target.masked_fill(~counts, 0).unsqueeze(-1)).squeeze(-1)
        ahead = (own - scores.mean(-1)).masked_fill(~counts, 0.0)
        return self.smoothing * ahead * divide_by_counted(counts.to(ahead), given.mask)


@dataclass(frozen=True)
class Calibrated(Objective):
    """Cross-entropy of outputs lowered by τ n_c^(−1/4); classes the client has no sample of do not compete.

    Targets that name no class, such as -100, are left out of the mean.
    """

    tau: NonNegative = 1.0
    asks: ClassVar[tuple[str, ...]] = ("histogram",)
    scores: ClassVar[bool] = True

    def losses(self, output: Tensor, target: Tensor, given: Given) -> Tensor:
        assert given.histogram is not None
        margin = self.tau * given.histogram.clamp(min=1.0) ** -0.25
        shifted = (put_classes_last(output, target) - margin).masked_fill(given.histogram == 0, -torch.inf)
        counts = names_a_class(target, shifted.shape[-1], given.ignored)
        each = functional.cross_entropy(shifted.movedim(-1, 1), target.masked_fill(~counts, -100), reduction="none")
        return each * divide_by_counted(counts.to(each), given.mask)


@dataclass(frozen=True)
class CodeBottleneck(Objective):
    """Cross-entropy averaged over samples of the code, + β KL(r_y ‖ q(z|x)); r_y: the common prior of the label.

    Targets that name no class, such as -100, are left out of the mean.
    """

    beta: NonNegative = 1e-3
    asks: ClassVar[tuple[str, ...]] = ("key",)
    of: ClassVar[str] = "sampled"
    usual: ClassVar[bool] = False  # the direction of the divergence: from the code to the prior

    def losses(self, output: tuple[Tensor, Tensor, Tensor], target: Tensor, given: Given) -> Tensor:
        counts = names_a_class(target, output[2].shape[-1], given.ignored)
        label = target.masked_fill(~counts, 0)
        code, prior = output[:2], prior_of(label, given)
        apart = divergence(*code, *prior) if self.usual else divergence(*prior, *code)
        each = (sampled_cross_entropy(output[2], label) + self.beta * apart).masked_fill(~counts, 0.0)
        return each * divide_by_counted(counts.to(each), given.mask)


@dataclass(frozen=True)
class UsualBottleneck(CodeBottleneck):
    """The same with the usual direction of the divergence, β KL(q(z|x) ‖ r_y)."""

    usual: ClassVar[bool] = True


def prior_of(target: Tensor, given: Given) -> tuple[Tensor, Tensor]:
    """Return μ and σ of each label, as the server sent them."""
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


@dataclass(frozen=True)
class Precision(Objective):
    """1/σ² of each sample's own class: its slope in a linear head collects what went into that head by class."""

    of: ClassVar[str] = "precision"
    total: ClassVar[bool] = True

    def losses(self, output: Tensor, target: Tensor, given: Given) -> Tensor:
        counts = names_a_class(target, output.shape[-1], given.ignored)
        own = output.gather(-1, target.masked_fill(~counts, 0).unsqueeze(-1)).squeeze(-1)
        return own.masked_fill(~counts, 0.0)


@dataclass(frozen=True)
class Evidence(Precision):
    """μ/σ² of each sample's own class: its slope in a linear head collects what went into that head by class."""

    of: ClassVar[str] = "evidence"


OBJECTIVES: dict[str, type[Objective]] = {
    "loss": Loss,
    "value": Value,
    "distil": Distilled,
    "guided": Guided,
    "decorrelated": Decorrelated,
    "smoothed": Smoothed,
    "calibrated": Calibrated,
    "bottleneck": CodeBottleneck,
    "bottleneck-usual": UsualBottleneck,
    "precision": Precision,
    "evidence": Evidence,
}
"""Objectives by their names in files."""

for _name, _kind in OBJECTIVES.items():
    explain_typos(f"objective {_name}", MethodError)(_kind)
