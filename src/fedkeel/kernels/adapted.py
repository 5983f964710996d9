"""Layers with low-rank adapters of stacked clients: one product with the frozen weight, and thin ones for each client.

What the adapter adds is added by its last product, forwards and backwards: nothing as wide as the layer is written for
it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedkeel.kernels.gradient_slots import Into, describe, place
from fedkeel.kernels.operators import Operand, StackedPass


def adapt_linear(
    at: StackedPass, x: Operand, weight: Operand, bias: Operand | None, a: Operand, b: Operand, scale: float
) -> Tensor | None:
    """`models.adapters.adapt_linear` for all clients, where the layer is frozen and its adapter is not."""
    shared = not weight.stacked and not weight.value.requires_grad
    frozen = bias is None or (not bias.stacked and not bias.value.requires_grad)
    if not (shared and frozen and x.stacked and a.stacked and b.stacked):
        return None
    slots = at.claim(a), at.claim(b)
    at.multiplied.update(slot.name for slot in slots if slot is not None)
    low, given = at.low(x), None if bias is None else at.low(bias)
    y: Tensor = AdaptLinear.apply(
        low.reshape(at.clients, -1, low.shape[-1]), at.anchor, at.low(weight), given, at.short(a, slots[0]),
        at.short(b, slots[1]), scale, slots,
    )  # fmt: skip
    return y.view(*low.shape[:-1], -1)


class AdaptLinear(torch.autograd.Function):
    """y = x Wᵀ + c + scale · (x Aᵀ) Bᵀ, `[clients, rows, features]`; A and B have a client axis, W and c have none."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float,
        into: tuple[Into, Into],
    ) -> Tensor:  # fmt: skip
        low_a, low_b = a.to(x.dtype), b.to(x.dtype)
        thin = torch.bmm(x, low_a.mT)
        ctx.save_for_backward(x, thin, weight, low_a, low_b)
        ctx.into, ctx.scale, ctx.weights = into, scale, (describe(a), describe(b))
        return F.linear(x, weight, bias).baddbmm_(thin, low_b.mT, alpha=scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, thin, weight, a, b = ctx.saved_tensors
        dthin = torch.bmm(dy, b).mul_(ctx.scale)
        (into_a, da), (into_b, db) = (place(*given) for given in zip(ctx.into, ctx.weights, strict=True))
        into_a.copy_(torch.bmm(dthin.mT, x))
        into_b.copy_(torch.bmm(dy.mT, thin).mul_(ctx.scale))
        dx = torch.matmul(dy, weight).baddbmm_(dthin, a) if ctx.needs_input_grad[0] else None
        return dx, None, None, None, da, db, None, None
