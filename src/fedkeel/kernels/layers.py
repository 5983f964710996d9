"""Layers with weights per client, as autograd functions that write weight gradients into one flat buffer.

A flat gradient `[clients, D]` is allocated once and each layer writes into its own part of it, so nothing is joined
afterwards. Autograd only sees activations; `anchor` is a number that ties every layer to the graph.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedkeel.core.trees import Tree
from fedkeel.kernels import plain
from fedkeel.kernels.geometry import Geometry
from fedkeel.kernels.plain import Moments, RunningMoments

GPU_TYPES = (torch.bfloat16, torch.float16, torch.float32)


class RunningBuffers(NamedTuple):
    """Running statistics of batch norms: before the batch, and where to write them after it; None while scoring.

    `mask` is 0 for images that only fill a batch up `[clients, batch]`, and None where there are none.
    """

    before: Tree
    after: Tree | None = None
    mask: Tensor | None = None


class Watched(NamedTuple):
    """A layer, and what it has been given."""

    layer: nn.Module | None
    given: list[Tensor]


class Frame(NamedTuple):
    """The weights of all clients, where their gradients go, and the precision of the arithmetic."""

    params: Tree
    into: Tree
    anchor: Tensor
    compute: torch.dtype
    running: RunningBuffers | None = None
    watched: Watched | None = None


class Convolve(torch.autograd.Function):
    """y = x ∗ weight, `[clients, batch, height, width, channels]`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, weight: Tensor, into: Tensor, where: Geometry) -> Tensor:
        ops = convolution_for(x)
        packed = ops.pack(weight, where, x.dtype)
        ctx.save_for_backward(x, packed)
        ctx.into, ctx.where, ctx.ops = into, where, ops
        y: Tensor = ops.convolve(x, packed, where)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, packed = ctx.saved_tensors
        dy = dy.contiguous()
        ctx.ops.convolve_weight_gradient(x, dy, ctx.where, ctx.into)
        dx = ctx.ops.convolve_input_gradient(dy, packed, ctx.where) if ctx.needs_input_grad[0] else None
        return dx, None, None, None, None


class Normalise(torch.autograd.Function):
    """relu(gain · unit(x) + bias + shortcut), by groups of channels; shortcut and ReLU are optional."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, shortcut: Tensor | None, gain: Tensor, bias: Tensor,
        into: tuple[Tensor, Tensor], groups: int, epsilon: float, relu: bool,
    ) -> Tensor:  # fmt: skip
        ops = norm_for(x, groups)
        shortcut = None if shortcut is None else shortcut.contiguous()
        y, mean, inverse = ops.normalise(x, gain, bias, groups, epsilon, shortcut, relu)
        ctx.save_for_backward(x, y, mean, inverse, gain)
        ctx.into, ctx.relu, ctx.ops, ctx.joins = into, relu, ops, shortcut is not None
        result: Tensor = y
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, y, mean, inverse, gain = ctx.saved_tensors
        dx, dz = ctx.ops.normalise_gradient(dy.contiguous(), y, x, mean, inverse, gain, ctx.relu, ctx.into, ctx.joins)
        return dx, None, dz, None, None, None, None, None, None


class BatchNormalise(torch.autograd.Function):
    """relu(gain · (x − mean) / std + bias + shortcut), mean and variance being those of the client's batch."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, shortcut: Tensor | None, gain: Tensor, bias: Tensor,
        into: tuple[Tensor, Tensor], mask: Tensor | None, epsilon: float, relu: bool, running: RunningMoments
    ) -> Tensor:  # fmt: skip
        ops = batch_norm_for(x)
        stats = ops.batch_moments(x, mask, gain, bias, epsilon, running)
        shortcut = None if shortcut is None else shortcut.contiguous()
        y: Tensor = ops.rescale(x, stats.scale, stats.shift, shortcut, relu)
        ctx.save_for_backward(x, y, gain, mask, *stats)
        ctx.into, ctx.relu, ctx.ops, ctx.joins = into, relu, ops, shortcut is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, y, gain, mask, *stats = ctx.saved_tensors
        dx, dz = ctx.ops.rescale_gradient(
            dy.contiguous(), y, x, Moments(*stats), gain, mask, ctx.relu, ctx.into, ctx.joins
        )
        return dx, None, dz, None, None, None, None, None, None, None


class Multiply(torch.autograd.Function):
    """y = x weightᵀ, `[clients, batch, features]`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, weight: Tensor, into: Tensor) -> Tensor:
        low = weight.to(x.dtype)
        ctx.save_for_backward(x, low)
        ctx.into = into
        return torch.bmm(x, low.mT)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, low = ctx.saved_tensors
        ctx.into.copy_(torch.bmm(dy.mT, x))
        return torch.bmm(dy, low) if ctx.needs_input_grad[0] else None, None, None, None


class AddBias(torch.autograd.Function):
    """x + bias along the last axis."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, bias: Tensor, into: Tensor) -> Tensor:
        ctx.into = into
        return x + bias.to(x.dtype).view(len(bias), *(1,) * (x.dim() - 2), -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        ctx.into.copy_(dy.flatten(1, -2).sum(1, dtype=ctx.into.dtype))
        return dy, None, None, None


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


def convolution_for(x: Tensor) -> ModuleType:
    """Triton on a GPU, plain PyTorch elsewhere and in float64."""
    if x.is_cuda and x.dtype in GPU_TYPES:
        from fedkeel.kernels import triton_convolution  # Triton exists where CUDA does

        return triton_convolution
    return plain


def norm_for(x: Tensor, groups: int) -> ModuleType:
    if x.is_cuda and x.dtype in GPU_TYPES:
        from fedkeel.kernels import triton_norm

        if triton_norm.supports(x.shape[-1], groups):
            return triton_norm
    return plain


def batch_norm_for(x: Tensor) -> ModuleType:
    if x.is_cuda and x.dtype in GPU_TYPES:
        from fedkeel.kernels import triton_batch, triton_norm

        if triton_norm.supports(x.shape[-1], groups=x.shape[-1]):
            return triton_batch
    return plain
