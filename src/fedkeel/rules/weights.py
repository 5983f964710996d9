"""Weightings: how much each client's update counts."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

import torch
from torch import Tensor

from fedkeel.core.rule import State, Weighting, require
from fedkeel.core.trees import Tree
from fedkeel.errors import RunError
from fedkeel.ranges import AnyFinite, NonNegative, ShareBelowOne

__all__ = ["AmongAll", "ByDiscrepancy", "ByEffort", "ByLoss", "ByOthersLoss", "BySize", "Fair", "FairShares", "Uniform"]

SMALL = 1e-10
ROUNDING = 1e-3  # of a loss that is a mean of logarithms, in bfloat16

Metric = Literal["kl", "l1", "l2", "cosine"]


@dataclass(frozen=True)
class BySize(Weighting):
    """In proportion to the training samples: p_i = n_i / Σ n_j.  (FedAvg, McMahan et al. 2017)"""

    def __call__(self, reports: State, server: State) -> Tensor:
        return by_size(reports)


@dataclass(frozen=True)
class Uniform(Weighting):
    """All clients count the same: p_i = 1 / |S|. It is BySize when clients are of equal size."""

    def __call__(self, reports: State, server: State) -> Tensor:
        size: Tensor = reports["size"]
        return torch.full_like(size, 1 / len(size))


@dataclass(frozen=True)
class AmongAll(Weighting):
    """As if those not selected had not moved: p_i = 1 / N, N all clients.  (FedMuon, Takezawa et al. 2025)"""

    def __call__(self, reports: State, server: State) -> Tensor:
        size: Tensor = reports["size"]
        return torch.ones_like(size) / reports["population"]


def to_shares(raw: Tensor, otherwise: Tensor) -> Tensor:
    """Weights that sum to 1; where none is left, the other ones do. Both in the same order."""
    raw = raw.clamp(min=0)
    total = raw.sum()
    return torch.where(total > 0, raw / total.clamp(min=torch.finfo(raw.dtype).tiny), otherwise)


def losses_of(reports: State, name: str = "loss") -> Tensor:
    """The clients' losses, which are to be at least 0; what rounding puts below is 0."""
    loss: Tensor = reports[name]
    if bool((loss < -ROUNDING).any()):
        raise RunError(
            f"clients are weighted by their losses, and one has {float(loss.min()):.3g}: a loss below 0 has no weight.",
            "add a constant to the loss, or choose a method that does not weigh by losses",
        )
    return loss.clamp(min=0)


def finite_norm(tree: Tree) -> Tensor:
    """The norm, also where squares of entries leave the range of numbers."""
    norm = tree.norm()
    if bool(norm.isfinite().all()):
        return norm
    largest = tree.buffer.abs().amax(-1).clamp(min=1)
    return (tree / largest).norm() * largest


def into_range(*trees: Tree) -> tuple[float, tuple[Tree, ...]]:
    """A number, and the trees divided by it, whose products then stay in the range of numbers; mostly it is 1."""
    longest = max(float(finite_norm(tree).max()) for tree in trees)
    safe = torch.finfo(trees[0].buffer.dtype).max ** 0.5 / 100
    return (longest, tuple(tree / longest for tree in trees)) if safe < longest < inf else (1.0, trees)


@dataclass(frozen=True)
class ByLoss(Weighting):
    """More for clients that fit their data well: p_i ∝ 1 / L_i, L_i the mean training loss of the round. (FedLW)

    A client whose loss is 0, as where its targets are all ignored, has nothing to add: it is left out. Uniform when
    nobody lost anything.
    """

    def __call__(self, reports: State, server: State) -> Tensor:
        loss, even = losses_of(reports), Uniform()(reports, server)
        return to_shares(torch.where(loss > 0, 1 / (loss + 1e-8), 0.0), even)


@dataclass(frozen=True)
class ByOthersLoss(Weighting):
    """What the others lost: p_i = (1 − a_i) / (|S| − 1), a_i = L_i / Σ L_j. No weight exceeds 1 / (|S| − 1).

    A client whose loss is 0, as where its targets are all ignored, has nothing to add: it is left out. Uniform when
    nobody lost anything.  (FedNoLoWe, 2025)
    """

    def __call__(self, reports: State, server: State) -> Tensor:
        loss, even = losses_of(reports), Uniform()(reports, server)
        lost = loss > 0
        others = torch.where(lost, 1 - loss / loss.sum().clamp(min=1e-30), 0.0)
        return to_shares(others, to_shares(lost.to(loss), even))  # of one client alone, `others` is 0


@dataclass(frozen=True)
class Fair(Weighting):
    """Favour clients whose loss is high: w ← w + Σ F_i^q Δ_i / (η Σ h_i), F_i the loss before training.

    h_i = q F_i^(q−1) ‖Δ_i / η‖² + F_i^q / η bounds the curvature, so the weights need not sum to 1.
    q = 0 is uniform averaging.  (q-FedAvg, Li et al. 2020)
    """

    q: NonNegative

    def __call__(self, reports: State, server: State) -> Tensor:
        loss: Tensor = losses_of(reports, "loss_before") + SMALL
        lr: Tensor = reports["lr"]
        length = (reports["delta"].norm() / lr).square()
        largest = loss.max()
        loss = loss / largest  # the same weights, and no power of a loss leaves the range of numbers
        curvature = self.q * loss ** (self.q - 1) * length / largest + loss**self.q / lr
        return loss**self.q / lr / curvature.sum()


@dataclass(frozen=True)
class FairShares(Weighting):
    """Favour clients whose loss is high: p_i ∝ n_i F_i^q, F_i the loss before training.  q = 0 is by size.

    The convex relative of q-FedAvg, whose step stays that of FedAvg.
    """

    q: NonNegative

    def __call__(self, reports: State, server: State) -> Tensor:
        loss: Tensor = losses_of(reports, "loss_before") + SMALL
        return to_shares(reports["size"] * (loss / loss.max()) ** self.q, by_size(reports))


def by_size(reports: State) -> Tensor:
    size: Tensor = reports["size"]
    return size / size.sum()


@dataclass(frozen=True)
class ByEffort(Weighting):
    """By size, each update divided by its effort: w ← w + τ Σ p_i Δ_i / a_i, so the weights need not sum to 1.

    a_i = K_i, the steps of plain SGD, and τ = Σ p_i a_i: clients that take as many steps are averaged by size. Where
    the rate changes within a round, each counts by its mean rate.
    momentum = 0 is plain SGD; with a local momentum ρ, a_i = [K_i − ρ (1 − ρ^K_i) / (1 − ρ)] / (1 − ρ). mu = 0 is
    without a proximal term; with one, a_i = [1 − (1 − η μ)^K_i] / (η μ) and τ = Σ p_i K_i.
    (FedNova, Wang et al. 2020)
    """

    momentum: ShareBelowOne = 0.0
    mu: NonNegative = 0.0

    def __post_init__(self) -> None:
        require(not (self.momentum and self.mu), self, "the effort is known of momentum or mu, not of both")

    def __call__(self, reports: State, server: State) -> Tensor:
        shares, steps, lr, rho = by_size(reports), reports["steps"], reports["lr"], self.momentum
        effort = steps
        if rho:
            effort = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
        if self.mu:
            pull = self.mu * lr
            lost = -torch.expm1(steps * torch.log1p(-pull.clamp(max=0.5)))  # 1 − (1 − ημ)^K would cancel for small ημ
            effort = torch.where(pull < 0.5, lost, 1 - (1 - pull) ** steps) / pull
        return shares * (shares * lr * (steps if self.mu else effort)).sum() / (lr * effort)


@dataclass(frozen=True)
class ByDiscrepancy(Weighting):
    """Less for clients whose labels are far from uniform: p_i ∝ max(0, π_i − a d_i + b), π_i by size.

    d_i is the divergence of the client's label shares from the uniform ones: metric = "kl" (scaled to sum to 1 over the
    selected), "l1", "l2" or "cosine". a = b = 0 is FedAvg.  (FedDisco, Ye et al. 2023)
    """

    a: AnyFinite = 0.5
    b: AnyFinite = 0.1
    metric: Metric = "kl"
    asks = ("histogram",)

    def __call__(self, reports: State, server: State) -> Tensor:
        counts = reports["histogram"]
        labels = counts / counts.sum(-1, keepdim=True).clamp(min=1)
        sizes = by_size(reports)
        return to_shares(sizes - self.a * self.distance(labels) + self.b, sizes)

    def distance(self, labels: Tensor) -> Tensor:
        even = torch.full_like(labels, 1 / labels.shape[-1])
        if self.metric == "kl":
            divergence = (torch.xlogy(labels, labels / even) - labels + even).sum(-1).clamp(min=0)
            return divergence / divergence.sum().clamp(min=1e-12)
        if self.metric == "cosine":
            return 1 - torch.cosine_similarity(labels, even, dim=-1)
        return torch.linalg.vector_norm(labels - even, ord=1 if self.metric == "l1" else 2, dim=-1)
