"""Spectral filters: rules for a perturbation or for a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import floor

import torch
from torch import Tensor

from fedkeel.kernels.band import without_low_band
from fedkeel.kernels.constants import traced_as_constant
from fedkeel.rule import Local, Rule, State, require
from fedkeel.trees import Tree

PRUNED_FROM = 2048  # below this length the plain transform is faster


@dataclass(frozen=True)
class HighPass(Rule):
    """Zero the lowest `ratio` of each tensor's rFFT coefficients, the mean included.  ratio = 0 changes nothing.

    min_dims = 2 leaves biases and normalisation alone.  (FedFFT on perturbations; SpecGradFilter on gradients)
    """

    ratio: float
    min_dims: int = 0

    def __post_init__(self) -> None:
        require(0 <= self.ratio <= 1, self, "ratio must lie in [0, 1]")

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        return tree.map_by_length(self.filter, vectors=self.min_dims < 2), client

    def filter(self, rows: Tensor) -> Tensor:
        removed = low_bins(rows.shape[-1], self.ratio)
        if not removed:
            return rows
        kept = without_low_band(rows, removed) if rows.is_cuda and rows.dtype == torch.float32 else None
        return rows - low_band(rows, removed) if kept is None else kept


def low_bins(length: int, ratio: float) -> int:
    """How many of the ⌊n/2⌋ + 1 coefficients are low: ⌊r (⌊n/2⌋ + 1)⌋, forgiving a rounded product."""
    return floor(ratio * (length // 2 + 1) + 1e-9)


def low_band(rows: Tensor, bins: int) -> Tensor:
    """The part of each row that lies in its lowest `bins` rFFT coefficients, without computing the others.

    With n = a b and a > 2 bins, they are sums of b short transforms, X[q] = Σ_j ω^(jq) rfft_a(row[j::b])[q], and the
    band is synthesised the same way: exact, with less than half of the arithmetic.
    """
    n = rows.shape[-1]
    if bins >= n // 2 + 1:
        return rows
    a = short_length(n, bins)
    if a is None:
        band: Tensor = torch.fft.irfft(torch.fft.rfft(rows)[..., :bins], n=n)  # irfft pads with zeros
        return band
    omega = twiddles(n, bins, n // a, rows.dtype, rows.device)
    z = torch.fft.rfft(rows.view((*rows.shape[:-1], a, n // a)), dim=-2)[..., :bins, :]
    x = (z * omega).sum(-1, keepdim=True) / (n // a)
    band = torch.fft.irfft(x * omega.conj(), n=a, dim=-2)
    return band.reshape(rows.shape)


@traced_as_constant
def short_length(n: int, bins: int) -> int | None:
    return _short_length(n, bins)


@cache
def _short_length(n: int, bins: int) -> int | None:
    """The smallest divisor of n above 2 bins, when it is short enough to pay."""
    if n < PRUNED_FROM:
        return None
    return next((d for d in range(2 * bins + 1, n // 4) if n % d == 0), None)


@traced_as_constant
def twiddles(n: int, bins: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return _twiddles(n, bins, columns, dtype, device)


@cache
def _twiddles(n: int, bins: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """exp(−2πi jq / n) for q < bins and j < columns."""
    angle = torch.outer(torch.arange(bins, dtype=torch.float64), torch.arange(columns, dtype=torch.float64))
    circle = torch.polar(torch.ones_like(angle), angle * (-2 * torch.pi / n))
    return circle.to(torch.promote_types(dtype, torch.complex64)).to(device)
