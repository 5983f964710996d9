"""Weightings: how much each client's update counts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedkeel.rule import State, Weighting


@dataclass(frozen=True)
class BySize(Weighting):
    """In proportion to the training samples: p_i = n_i / Σ n_j.  (FedAvg, McMahan et al. 2017)"""

    def __call__(self, reports: State, server: State) -> Tensor:
        size: Tensor = reports["size"]
        return size / size.sum()


@dataclass(frozen=True)
class Uniform(Weighting):
    """All alike: p_i = 1 / |S|. The same as BySize when clients are of equal size."""

    def __call__(self, reports: State, server: State) -> Tensor:
        size: Tensor = reports["size"]
        return torch.full_like(size, 1 / len(size))
