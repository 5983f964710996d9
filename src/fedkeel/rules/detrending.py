"""Filters that subtract a moving average, and limits on single coordinates: rules for a perturbation or a gradient.

min_dims = 2 leaves biases and normalisation alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional

from fedkeel.core.rule import Local, Rule, State, require
from fedkeel.core.trees import Tree
from fedkeel.ranges import Count, Positive, Range
from fedkeel.rules.filters import MinDims

__all__ = ["ClipMedian", "GaussianDetrend", "PoolDetrend"]


@dataclass(frozen=True)
class PoolDetrend(Rule, stackable=True):
    """Subtract the mean of a sliding window from each tensor laid out in a row: v − pool(v).

    At the ends the window holds only what there is. Tensors shorter than the window stay. window = 25 halves the same
    frequency as HighPass(0.05).  (LAP-D of SpecGradFilter)
    """

    window: Count = 25
    min_dims: MinDims = 0
    filters = True

    def __post_init__(self) -> None:
        require(self.window % 2 == 1, self, "window must be odd")

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        return tree.map_by_length(self.detrend, vectors=self.min_dims < 2), client

    def detrend(self, rows: Tensor) -> Tensor:
        n = rows.shape[-1]
        if n < self.window:
            return rows
        flat = rows.reshape(-1, 1, n)
        mean = functional.avg_pool1d(flat, self.window, 1, self.window // 2, count_include_pad=False)
        return rows - mean.view(rows.shape)


@dataclass(frozen=True)
class GaussianDetrend(Rule, stackable=True):
    """Subtract a Gaussian mean from each tensor laid out in a row: v − G_σ ∗ v, mirrored at the ends.

    The kernel ends at 4 σ; tensors shorter than it stay. sigma = 7.5 halves the same frequency as HighPass(0.05).
    (GD of SpecGradFilter)
    """

    sigma: Annotated[float, Range(0, 10**6, above=True)] = 7.5
    min_dims: MinDims = 0
    filters = True

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        return tree.map_by_length(self.detrend, vectors=self.min_dims < 2), client

    def detrend(self, rows: Tensor) -> Tensor:
        kernel, n = gaussian_kernel(self.sigma, rows.dtype, rows.device), rows.shape[-1]
        if n < len(kernel):
            return rows
        wide = functional.pad(rows.reshape(-1, 1, n), (len(kernel) // 2, len(kernel) // 2), mode="reflect")
        return rows - functional.conv1d(wide, kernel.view(1, 1, -1)).view(rows.shape)


def gaussian_kernel(sigma: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A Gaussian kernel that sums to 1."""
    radius = ceil(4 * sigma)
    at = torch.arange(-radius, radius + 1, dtype=torch.float64, device=device)
    weights = torch.exp(-0.5 * (at / sigma) ** 2)
    return (weights / weights.sum()).to(dtype)


@dataclass(frozen=True)
class ClipMedian(Rule, stackable=True):
    """Limit each coordinate to `times` the median size in its tensor: |v_j| ≤ τ · median |v|.  (FedFFT's ablation)"""

    times: Positive = 3.0
    min_dims: MinDims = 0
    filters = True

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        return tree.map_by_length(self.limit, vectors=self.min_dims < 2), client

    def limit(self, rows: Tensor) -> Tensor:
        most = self.times * rows.abs().median(-1, keepdim=True).values
        return torch.minimum(torch.maximum(rows, -most), most)
