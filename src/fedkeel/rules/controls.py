"""Controls of the spectral filters: what else changes when a band is removed, without the band."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from fedkeel.core.rule import Local, Rule, State
from fedkeel.core.trees import Tree
from fedkeel.ranges import Share
from fedkeel.rules.filters import BandFilter, HighPass, MinDims, draw_per_bin, low_band, low_bins

__all__ = ["MeasureStep", "RandomEnergy", "Rescale"]


@dataclass(frozen=True)
class Rescale(Rule, stackable=True):
    """Shorten each tensor to the length that HighPass(ratio, min_dims) would leave it, keeping its direction.

    The control that separates the effect of the band from that of the length. whole = True shortens all tensors by one
    factor, so that the direction of the whole vector is kept. ratio = 0 changes nothing.  (SpecGradFilter)
    """

    ratio: Share
    min_dims: MinDims = 0
    band: ClassVar[HighPass]
    whole: bool = False
    filters = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "band", HighPass(self.ratio, self.min_dims))

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        if self.whole:
            left, _ = self.band.step(tree, client, at)
            return (left.norm() / (tree.norm() + 1e-12)) * tree, client
        return tree.map_by_length(self.shorten, vectors=self.min_dims < 2), client

    def shorten(self, rows: Tensor) -> Tensor:
        removed = low_bins(rows.shape[-1], self.ratio)
        if not removed:
            return rows
        left: Tensor = torch.linalg.vector_norm(rows - low_band(rows, removed), dim=-1, keepdim=True)
        whole: Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        return rows * (left / (whole + 1e-12))


@dataclass(frozen=True)
class RandomEnergy(BandFilter):
    """Remove as much energy from each tensor as HighPass(ratio) would, from rFFT coefficients in random order.

    Coefficients are zeroed one after another; the last is shortened, so that the sum is met. The order is drawn anew in
    each step. The control that separates which frequencies go from how much goes. ratio = 0 changes nothing.
    """

    random = True

    def remove(self, rows: Tensor, count: int, at: Local) -> Tensor:
        n = rows.shape[-1]
        spectrum = torch.fft.rfft(rows)
        # in float64: the sum of a million terms is compared with its parts
        energy = spectrum.abs().to(torch.float64).square() * multiplicity(n, rows.device)
        goal = energy[..., :count].sum(-1, keepdim=True)
        order = draw_per_bin(rows, at).argsort(-1)
        drawn = energy.gather(-1, order)
        taken = goal - (drawn.cumsum(-1) - drawn)  # what is still to be removed when a coefficient's turn comes
        left = 1 - (taken / drawn.clamp(min=1e-300)).clamp(0, 1)
        factor = torch.zeros_like(left).scatter(-1, order, left.sqrt()).to(rows.dtype)
        return torch.fft.irfft(spectrum * factor, n=n)


@cache
def multiplicity(n: int, device: torch.device) -> Tensor:
    """How often an rFFT coefficient stands in the whole spectrum: twice, but for the mean and, of even n, the last."""
    counts = torch.full((n // 2 + 1,), 2.0, dtype=torch.float64, device=device)
    counts[0] = 1.0
    if n % 2 == 0:
        counts[-1] = 1.0
    return counts


@dataclass(frozen=True)
class MeasureStep(Rule, stackable=True):
    """Report the mean length of a local step, (1/K) Σ_k ‖w_(k+1) − w_k‖ = (1/K) Σ_k η ‖d_k‖. Changes nothing.

    Last in a gradient chain, after ClipHere and DecayHere, it sees the direction d_k in which the client goes.
    """

    def client_slots(self, params: Tree) -> State:
        return {"travelled": params.scalar(0.0)}

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        before = torch.where(at.step > 0, client["travelled"], torch.zeros_like(client["travelled"]))
        return tree, client | {"travelled": before + at.lr * tree.norm()}

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        return report | {"step_length": client["travelled"] / at.steps}, client
