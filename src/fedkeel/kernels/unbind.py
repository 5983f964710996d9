"""Queries, keys and values taken out of one tensor: their slopes are joined in the order in which that tensor lies."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedkeel.kernels.operators import Operand, StackedPass


def unbind(at: StackedPass, x: Operand, dim: int = 0) -> tuple[Tensor, ...] | None:
    """`torch.unbind` of what is computed; a weight is left to vmap, in the precision of the arithmetic."""
    if not x.stacked or x.name is not None or not x.value.requires_grad or x.value.numel() == 0:
        return None
    return Unbind.apply(x.value, dim % x.axes + 1)


class Unbind(torch.autograd.Function):
    """The parts of x along an axis.

    PyTorch would join slopes as if x lay in the order of its axes, and copy the whole once more to where they lie.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int) -> tuple[Tensor, ...]:
        ctx.axis, ctx.order = axis, sorted(range(x.dim()), key=x.stride().__getitem__, reverse=True)
        return x.unbind(axis)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        place, others = ctx.order.index(ctx.axis), [one - (one > ctx.axis) for one in ctx.order if one != ctx.axis]
        parts = [slope.permute(others) for slope in slopes]
        before, after = parts[0].shape[:place], parts[0].shape[place:]
        # matrices: with more than four axes PyTorch copies the parts one by one
        joined = torch.cat([part.reshape(prod(before), -1) for part in parts], 1).view(*before, len(parts), *after)
        return joined.permute([ctx.order.index(one) for one in range(joined.dim())]), None
