"""Norms over the last axes, with weights of each client: layer norms and RMS norms."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedkeel.kernels.gradient_slots import Into, describe, place
from fedkeel.kernels.layers import GPU_TYPES, Rescale
from fedkeel.kernels.operators import Operand, StackedPass


def layer_norm(
    at: StackedPass, x: Operand, shape: Sequence[int], weight: Operand | None = None, bias: Operand | None = None,
    eps: float = 1e-5, *rest: Any,
) -> Tensor | None:  # fmt: skip
    if not any(part is not None and part.stacked for part in (weight, bias)):
        gain, lift = (None if part is None else at.low(part) for part in (weight, bias))
        return F.layer_norm(at.stack(x), list(shape), gain, lift, eps)
    value = at.stack(x)
    if weight is not None and weight.stacked and (bias is None or bias.stacked) and has_kernel(value, prod(shape)):
        return normalise_rows(at, value, len(shape), weight, bias, eps)
    return rescale(at, F.layer_norm(value, list(shape), None, None, eps), len(shape), weight, bias)


def rms_norm(
    at: StackedPass, x: Operand, shape: Sequence[int], weight: Operand | None = None, eps: float | None = None
) -> Tensor | None:
    return rescale(at, F.rms_norm(at.stack(x), list(shape), None, eps), len(shape), weight, None)


def rescale(at: StackedPass, unit: Tensor, axes: int, weight: Operand | None, bias: Operand | None) -> Tensor:
    """unit · weight + bias, where both have the last axes of unit."""
    if weight is None or not weight.stacked or (bias is not None and not bias.stacked):
        scaled = unit if weight is None else unit * _beside(at, weight, unit)
        return scaled if bias is None else scaled + _beside(at, bias, unit)
    rows, slots = as_rows(unit, axes), (at.claim(weight), at.claim(bias))
    gain, lift = at.short(weight, slots[0]).flatten(1), None if bias is None else at.short(bias, slots[1]).flatten(1)
    into = tuple(None if slot is None else slot.flatten(1) for slot in slots)
    scaled = Rescale.apply(rows, at.anchor, gain, lift, into)
    return scaled.view(unit.shape)


def as_rows(x: Tensor, axes: int) -> Tensor:
    """View `[clients, …]` as rows of its last axes."""
    return x.flatten(-axes).flatten(1, -2) if x.dim() - axes > 1 else x.flatten(-axes).unsqueeze(1)


def _beside(at: StackedPass, weight: Operand, unit: Tensor) -> Tensor:
    """Give a weight axes of size 1 between that of clients and its own."""
    value = at.low(weight)
    return value.view(len(value), *(1,) * (unit.dim() - value.dim()), *value.shape[1:]) if weight.stacked else value


# ---- by one kernel on a GPU ----------------------------------------------------------------------------------------
def has_kernel(x: Tensor, features: int) -> bool:
    """Whether a kernel takes such rows."""
    if not (x.is_cuda and x.dtype in GPU_TYPES and x.numel()):
        return False
    from fedkeel.kernels import triton_rows

    return features <= triton_rows.WIDEST


def normalise_rows(
    at: StackedPass, x: Tensor, axes: int, weight: Operand, bias: Operand | None, epsilon: float
) -> Tensor:
    """A layer norm in one pass; gains and biases are read where they lie, in their own precision."""
    into = tuple(None if slot is None else slot.flatten(1) for slot in (at.claim(weight), at.claim(bias)))
    gain, lift = (None if part is None else at.dense(part).flatten(1) for part in (weight, bias))
    return NormaliseRows.apply(as_rows(x, axes).contiguous(), at.anchor, gain, lift, into, epsilon).view(x.shape)


class NormaliseRows(torch.autograd.Function):
    """gain · (x − mean) / std + bias over the last axis of `[clients, rows, features]`; the bias is optional."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, gain: Tensor, bias: Tensor | None, into: tuple[Into, Into], epsilon: float
    ) -> Tensor:
        from fedkeel.kernels import triton_rows

        y, mean, inverse = triton_rows.normalise_rows(x, gain, bias, epsilon)
        ctx.save_for_backward(x, mean, inverse, gain)
        ctx.into, ctx.biased = into, bias is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        from fedkeel.kernels import triton_rows

        x, mean, inverse, gain = ctx.saved_tensors
        places = [place(part, describe(gain)) for part in ctx.into[: 1 + ctx.biased]]
        into = tuple(part for part, _ in places)
        dx = triton_rows.normalise_rows_gradient(dy.contiguous(), x, mean, inverse, gain, into)
        return dx, None, places[0][1], places[1][1] if ctx.biased else None, None, None
