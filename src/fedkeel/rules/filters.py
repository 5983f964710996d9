"""Spectral filters, tensor by tensor: rules for a perturbation or for a gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from math import floor
from typing import Final, Literal, get_args

import torch
from torch import Tensor

from fedkeel.core.layout import LengthGroup, Shape
from fedkeel.core.rule import Local, Rule, State
from fedkeel.core.trees import Tree
from fedkeel.kernels.band import high_pass
from fedkeel.kernels.custom_op import as_custom_op, empty_like
from fedkeel.randomness import key, keyed_uniforms, permutation
from fedkeel.ranges import Share

__all__ = ["HighPass", "HighPass2d", "LowPass", "RandomBand"]

PRUNED_FROM = 2048  # below this length the plain transform is faster


NATURAL: Final = "0123"
Order = Literal["0123", "0231", "0312", "3210", "1230", "2130", "2310", "random"]
"""How a 4-d tensor [out, in, height, width] is laid out in a row: its axes from the slowest to the fastest."""
ORDERS: tuple[Order, ...] = get_args(Order)

MinDims = Literal[0, 1, 2]
"""Tensors of fewer axes are left alone."""


@dataclass(frozen=True)
class BandFilter(Rule, ABC, stackable=True):
    """Removes a share of each tensor's rFFT coefficients. ratio = 0 changes nothing.

    min_dims = 2 leaves biases and normalisation alone. `order` is one of ORDERS; tensors that are not 4-d keep theirs,
    but for "random", which puts every tensor in one random order for good.
    """

    ratio: Share
    min_dims: MinDims = 0
    order: Order = NATURAL
    filters = True

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        def filter_leaves(leaves: Tensor, shape: Shape) -> Tensor:
            if len(shape) < self.min_dims:
                return leaves
            return restore_shape(self.filter(lay_out(leaves, len(shape), self.order), at), shape, self.order)

        if self.order == NATURAL:
            return tree.map_by_length(lambda rows: self.filter(rows, at), vectors=self.min_dims < 2), client
        return tree.map_by_shape(filter_leaves), client

    def filter(self, rows: Tensor, at: Local) -> Tensor:
        """What is left of `[..., leaves, length]`."""
        count = low_bins(rows.shape[-1], self.ratio)
        return self.remove(rows, count, at) if count else rows

    @abstractmethod
    def remove(self, rows: Tensor, count: int, at: Local) -> Tensor:
        """What is left without so many coefficients of each row, at least one."""


@dataclass(frozen=True)
class HighPass(BandFilter, stackable=True):
    """Zero the lowest `ratio` of each tensor's rFFT coefficients, the mean included.  ratio = 0 changes nothing.

    min_dims = 2 leaves biases and normalisation alone.  (FedFFT on perturbations; SpecGradFilter on gradients)
    """

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        if torch.compiler.is_compiling() and self.order == NATURAL:
            return Tree(high_pass(tree.buffer, self.spans(tree.layout.groups)), tree.layout), client
        return BandFilter.step(self, tree, client, at)

    def spans(self, groups: tuple[LengthGroup, ...]) -> list[int]:
        """(offset, leaves, length, removed coefficients) of each group, one after another."""
        spans: list[int] = []
        for offset, leaves, length, vector in groups:
            removed = 0 if vector and self.min_dims >= 2 else low_bins(length, self.ratio)
            spans += [offset, leaves, length, removed]
        return spans

    def remove(self, rows: Tensor, count: int, at: Local) -> Tensor:
        return rows - low_band(rows, count)


@dataclass(frozen=True)
class LowPass(BandFilter, stackable=True):
    """Zero the highest `ratio` of each tensor's rFFT coefficients: the control of HighPass.  ratio = 0: no change."""

    def remove(self, rows: Tensor, count: int, at: Local) -> Tensor:
        return low_band(rows, rows.shape[-1] // 2 + 1 - count)


def draw_per_bin(rows: Tensor, at: Local) -> Tensor:
    """A random number for each of the rows' rFFT coefficients, drawn anew in each step."""
    n, bins = rows.shape[-1], rows.shape[-1] // 2 + 1
    # + n: tensors of different lengths draw differently
    return keyed_uniforms(at.key + n, rows.shape[:-1].numel() * bins).view((*rows.shape[:-1], bins))


@dataclass(frozen=True)
class RandomBand(BandFilter):
    """Zero a random `ratio` of each tensor's rFFT coefficients, drawn anew in each step.  ratio = 0: no change."""

    random = True

    def remove(self, rows: Tensor, count: int, at: Local) -> Tensor:
        draws = draw_per_bin(rows, at)
        # not kthvalue: on a GPU it gives a whole row to one block
        keep = draws > draws.topk(count, largest=False, sorted=False).values.amax(-1, keepdim=True)
        return torch.fft.irfft(torch.fft.rfft(rows) * keep, n=rows.shape[-1])


@dataclass(frozen=True)
class HighPass2d(Rule, stackable=True):
    """Zero the lowest `ratio` of the 2-d coefficients of each kernel, its mean at least.

    Low means: near to the origin of the plane of frequencies. Tensors that are not 4-d, and 1×1 kernels, stay.
    (SpecGradFilter)
    """

    ratio: Share
    filters = True

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        return tree.map_by_shape(self.filter), client

    def filter(self, leaves: Tensor, shape: Shape) -> Tensor:
        height, width = shape[-2:] if len(shape) == 4 else (1, 1)
        if height * width == 1:
            return leaves
        across, along = torch.fft.fftfreq(height, device=leaves.device), torch.fft.rfftfreq(width, device=leaves.device)
        radius = torch.hypot(across[:, None], along[None])
        removed = max(1, floor(self.ratio * radius.numel() + 1e-9))
        # all of one radius together: half of a conjugate pair would leave a complex kernel
        keep = radius > radius.flatten().sort().values[removed - 1] + 1e-6
        return torch.fft.irfft2(torch.fft.rfft2(leaves) * keep, s=(height, width))


# ---- orders --------------------------------------------------------------------------------------------------------
def lay_out(leaves: Tensor, dims: int, order: str) -> Tensor:
    """The last `dims` axes of a tensor as one row, in the given order."""
    first = leaves.dim() - dims
    if order != "random" and dims == 4:
        leaves = leaves.permute([*range(first), *(first + int(axis) for axis in order)])
    row = leaves.flatten(first) if dims else leaves.unsqueeze(-1)
    return shuffle_rows(row, False) if order == "random" else row


def restore_shape(row: Tensor, shape: Shape, order: str) -> Tensor:
    """A row back in the shape of the tensor it was made from."""
    before = row.shape[:-1]
    if order == "random":
        return shuffle_rows(row, True).view((*before, *shape))
    if len(shape) != 4:
        return row.view((*before, *shape))
    axes, first = [int(axis) for axis in order], len(before)
    back = [*range(first), *(first + axes.index(axis) for axis in range(4))]
    return row.view((*before, *(shape[axis] for axis in axes))).permute(back)


@as_custom_op("shuffle_rows(Tensor rows, bool back) -> Tensor", empty_like)
def shuffle_rows(rows: Tensor, back: bool) -> Tensor:
    """Rows in one random order for good, or back from it."""
    order = shuffle_order(rows.shape[-1], rows.device)
    return rows.index_select(-1, order.argsort() if back else order)


@cache
def shuffle_order(length: int, device: torch.device) -> Tensor:
    """One random order for all tensors of a length, the same in every run."""
    return torch.from_numpy(permutation(key(0, "order", length), length)).to(device)


# ---- bands ---------------------------------------------------------------------------------------------------------
def low_bins(length: int, ratio: float) -> int:
    """How many of the ⌊n/2⌋ + 1 coefficients are low: ⌊r (⌊n/2⌋ + 1)⌋, forgiving a rounded product."""
    return floor(ratio * (length // 2 + 1) + 1e-9)


def low_band(rows: Tensor, bins: int) -> Tensor:
    """The part of each row that lies in its lowest `bins` rFFT coefficients, without computing the others.

    With n = a b and a > 2 bins, they are sums of b short transforms, X[q] = Σ_j ω^(jq) rfft_a(row[j::b])[q], and the
    band is synthesised the same way: exact, with less than half of the arithmetic.
    """
    return rows if bins >= rows.shape[-1] // 2 + 1 else low_band_pruned(rows, bins)


@as_custom_op("low_band_pruned(Tensor rows, int bins) -> Tensor", empty_like)
def low_band_pruned(rows: Tensor, bins: int) -> Tensor:
    """The band itself, where it is not the whole row."""
    n = rows.shape[-1]
    a = short_length(n, bins)
    if a is None:
        return torch.fft.irfft(torch.fft.rfft(rows)[..., :bins], n=n)  # irfft pads with zeros
    omega = twiddles(n, bins, n // a, rows.dtype, rows.device)
    z = torch.fft.rfft(rows.reshape((*rows.shape[:-1], a, n // a)), dim=-2)[..., :bins, :]
    x = (z * omega).sum(-1, keepdim=True) / (n // a)
    band = torch.fft.irfft(x * torch.conj_physical(omega), n=a, dim=-2)
    return band.reshape(rows.shape).contiguous()


@cache
def short_length(n: int, bins: int) -> int | None:
    """The smallest divisor of n above 2 bins, when it is short enough to pay."""
    if n < PRUNED_FROM:
        return None
    return next((d for d in range(2 * bins + 1, n // 4) if n % d == 0), None)


@cache
def twiddles(n: int, bins: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """exp(−2πi jq / n) for q < bins and j < columns."""
    angle = torch.outer(torch.arange(bins, dtype=torch.float64), torch.arange(columns, dtype=torch.float64))
    circle = torch.polar(torch.ones_like(angle), angle * (-2 * torch.pi / n))
    return circle.to(torch.promote_types(dtype, torch.complex64)).to(device)
