"""Pools of images `[clients, batch, height, width, channels]` as autograd functions; on a GPU only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class MaxPool(torch.autograd.Function):
    """The largest value of each window; on a GPU only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int, stride: int, padding: int) -> Tensor:
        from fedkeel.kernels import triton_pool

        y, taps = triton_pool.pool(x, size, stride, padding)
        ctx.save_for_backward(taps)
        ctx.window = (x.shape[2], x.shape[3], size, stride, padding)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        from fedkeel.kernels import triton_pool

        (taps,) = ctx.saved_tensors
        return triton_pool.pool_gradient(dy.contiguous(), taps, *ctx.window), None, None, None


class AveragePool(torch.autograd.Function):
    """The mean of each window, where windows lie side by side; on a GPU only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int) -> Tensor:
        from fedkeel.kernels import triton_pool

        ctx.window = (x.shape[2], x.shape[3], size)
        return triton_pool.average(x, size)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        from fedkeel.kernels import triton_pool

        return triton_pool.average_gradient(dy.contiguous(), *ctx.window), None
