"""Layers with weights per client, as autograd functions that write weight gradients into one flat buffer.

A flat gradient `[clients, D]` is allocated once and each layer writes into its own part of it, so nothing is joined
afterwards. Autograd only sees activations; `anchor` is a number that ties every layer to the graph. A weight that is
no leaf has no such part: `into` is None, and its gradient goes the way of autograd.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedkeel.core.trees import Tree
from fedkeel.kernels import plain
from fedkeel.kernels.geometry import Geometry
from fedkeel.kernels.gradient_slots import Into, describe, place, place_both
from fedkeel.kernels.plain import Moments, RunningMoments
from fedkeel.kernels.side_stream import SideStream

if TYPE_CHECKING:
    from fedkeel.kernels.packed_ahead import PackedAhead

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
    side: SideStream | None = None
    packed: PackedAhead | None = None


class Convolve(torch.autograd.Function):
    """y = x ∗ weight, `[clients, batch, height, width, channels]`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, weight: Tensor, into: Into, where: Geometry,
        side: SideStream | None = None, packed: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        ops = convolution_for(x)
        packed = ops.pack(weight, where, x.dtype) if packed is None else packed
        ctx.save_for_backward(x, packed)
        ctx.into, ctx.where, ctx.ops, ctx.weight, ctx.side = into, where, ops, describe(weight), side
        return ops.convolve(x, packed, where)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dz: Tensor | None = None) -> tuple[Tensor | None, ...]:
        x, packed = ctx.saved_tensors
        dy = dy.contiguous()
        into, dw = place(ctx.into, ctx.weight)
        compute = partial(ctx.ops.convolve_weight_gradient, x, dy, ctx.where, into)
        if ctx.side is not None and dw is None:
            ctx.side.run(compute, x, dy)
        else:
            compute()
        beside = None if dz is None else dz.contiguous()
        dx = ctx.ops.convolve_input_gradient(dy, packed, ctx.where, beside) if ctx.needs_input_grad[0] else None
        return dx, None, dw, *(None,) * 4


class ConvolveAndFork(Convolve):
    """The same, and x once more, for a shortcut: the input's gradient is added to the shortcut's where it is made."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *given: Any) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return Convolve.forward(ctx, x, *given), x


class Normalise(torch.autograd.Function):
    """relu(gain · unit(x) + bias + shortcut), by groups of channels; shortcut and ReLU are optional.

    Where it `passes` x on, other uses of x take it from here, and their slopes are added while its own are written.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, shortcut: Tensor | None, gain: Tensor, bias: Tensor,
        into: tuple[Into, Into], groups: int, epsilon: float, relu: bool, passes: bool, side: SideStream | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
        ops = norm_for(x, groups)
        shortcut = None if shortcut is None else shortcut.contiguous()
        y, mean, inverse = ops.normalise(x, gain, bias, groups, epsilon, shortcut, relu)
        # y is read behind a ReLU only; without one a network may change it in place
        ctx.save_for_backward(x, y if relu else x, mean, inverse, gain, bias)
        ctx.into, ctx.relu, ctx.ops, ctx.joins, ctx.side = into, relu, ops, shortcut is not None, side
        ctx.set_materialize_grads(False)
        return (y, x) if passes else y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, passed: Tensor | None = None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return passed, *(None,) * 10
        x, y, mean, inverse, gain, bias = ctx.saved_tensors
        into, slopes = place_both(ctx.into, gain)
        side = ctx.side if all(slope is None for slope in slopes) else None  # autograd reads slopes at once
        dx, dz = ctx.ops.normalise_gradient(
            dy.contiguous(), y, x, mean, inverse, gain, bias, ctx.relu, into, ctx.joins, passed, side
        )
        return dx, None, dz, *slopes, *(None,) * 6


class BatchNormalise(torch.autograd.Function):
    """relu(gain · (x − mean) / std + bias + shortcut), mean and variance being those of the client's batch.

    It passes x on as `Normalise` does.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, shortcut: Tensor | None, gain: Tensor, bias: Tensor,
        into: tuple[Into, Into], mask: Tensor | None, epsilon: float, relu: bool,
        running: RunningMoments | None, passes: bool,
    ) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
        ops = batch_norm_for(x)
        stats = ops.batch_moments(x, mask, gain, bias, epsilon, running)
        shortcut = None if shortcut is None else shortcut.contiguous()
        y: Tensor = ops.rescale(x, stats.scale, stats.shift, shortcut, relu)
        ctx.save_for_backward(x, y if relu else x, gain, mask, *stats)
        ctx.into, ctx.relu, ctx.ops, ctx.joins = into, relu, ops, shortcut is not None
        ctx.set_materialize_grads(False)
        return (y, x) if passes else y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, passed: Tensor | None = None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return passed, *(None,) * 10
        x, y, gain, mask, *stats = ctx.saved_tensors
        into, slopes = place_both(ctx.into, gain)
        dx, dz = ctx.ops.rescale_gradient(
            dy.contiguous(), y, x, Moments(*stats), gain, mask, ctx.relu, into, ctx.joins, passed
        )
        return dx, None, dz, *slopes, *(None,) * 6


class Multiply(torch.autograd.Function):
    """y = x weightᵀ, `[clients, batch, features]`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, weight: Tensor, into: Into) -> Tensor:
        low = weight.to(x.dtype)
        ctx.save_for_backward(x, low)
        ctx.into, ctx.weight = into, describe(weight)
        return torch.bmm(x, low.mT)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, low = ctx.saved_tensors
        into, dw = place(ctx.into, ctx.weight)
        into.copy_(torch.bmm(dy.mT, x))
        return torch.bmm(dy, low) if ctx.needs_input_grad[0] else None, None, dw, None


class AddBias(torch.autograd.Function):
    """x + bias along the last axis."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, bias: Tensor, into: Into) -> Tensor:
        ctx.into, ctx.weight = into, describe(bias)
        if takes_rows(x):
            from fedkeel.kernels import triton_rows

            return triton_rows.add_bias(x, bias)
        return x + bias.to(x.dtype).view(len(bias), *(1,) * (x.dim() - 2), -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        into, db = place(ctx.into, ctx.weight)
        if takes_rows(dy):
            from fedkeel.kernels import triton_rows

            triton_rows.sum_rows(dy, into)
        else:
            into.copy_(dy.flatten(1, -2).sum(1, dtype=into.dtype))
        return dy, None, db, None


class Rescale(torch.autograd.Function):
    """unit · gain + bias along the last axis of `[clients, rows, features]`; the bias is optional."""

    @staticmethod
    def forward(
        ctx: Any, unit: Tensor, anchor: Tensor, gain: Tensor, bias: Tensor | None, into: tuple[Into, Into]
    ) -> Tensor:
        ctx.save_for_backward(unit, gain)
        ctx.into, ctx.biased = into, bias is not None
        scale = gain.to(unit.dtype).unsqueeze(1)
        return unit * scale if bias is None else torch.addcmul(bias.to(unit.dtype).unsqueeze(1), unit, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        unit, gain = ctx.saved_tensors
        dgain, slope = place(ctx.into[0], describe(gain))
        dgain.copy_((dy * unit).sum(1, dtype=dgain.dtype))
        tilt = None
        if ctx.biased:
            dbias, tilt = place(ctx.into[1], describe(gain))
            dbias.copy_(dy.sum(1, dtype=dbias.dtype))
        return dy * gain.to(dy.dtype).unsqueeze(1), None, slope, tilt, None


class Embed(torch.autograd.Function):
    """The rows of a table of each client, `[clients, rows, width]`, that numbers `[clients, count]` ask for.

    They have one axis, for a network may write into them, and PyTorch lets none write into a view that is made here.
    """

    @staticmethod
    def forward(
        ctx: Any, table: Tensor, anchor: Tensor, numbers: Tensor, into: Into, padding: int | None, dtype: torch.dtype
    ) -> Tensor:
        clients, rows, width = table.shape
        flat = (numbers + rows * torch.arange(clients, device=numbers.device).unsqueeze(1)).flatten()
        ctx.save_for_backward(flat, numbers)
        ctx.into, ctx.weight, ctx.padding = into, describe(table), padding
        return table.reshape(clients * rows, width).index_select(0, flat).to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        flat, numbers = ctx.saved_tensors
        into, slope = place(ctx.into, ctx.weight)
        clients, rows, width = into.shape
        dy = dy if ctx.padding is None else dy.where((numbers != ctx.padding).reshape(-1, 1), 0.0)
        sums = torch.zeros((clients * rows, width), dtype=into.dtype, device=dy.device)
        into.copy_(sums.index_add_(0, flat, dy.to(into.dtype)).view_as(into))
        return slope, None, None, None, None, None


def convolution_for(x: Tensor) -> ModuleType:
    """Triton on a GPU, plain PyTorch elsewhere and in float64."""
    if x.is_cuda and x.dtype in GPU_TYPES:
        from fedkeel.kernels import triton_convolution  # Triton exists where CUDA does

        return triton_convolution
    return plain


def takes_rows(x: Tensor) -> bool:
    """Whether kernels of rows take it: on a GPU, in one piece."""
    return x.is_cuda and x.dtype in GPU_TYPES and x.is_contiguous() and x.numel() > 0


def norm_for(x: Tensor, groups: int) -> ModuleType:
    if x.is_cuda and x.dtype in GPU_TYPES:
        from fedkeel.kernels import triton_norm

        if triton_norm.supports(x.shape[-1], groups):
            return triton_norm
    return plain


def batch_norm_for(x: Tensor) -> ModuleType:
    if x.is_cuda and x.dtype in GPU_TYPES:
        from fedkeel.kernels import triton_batch

        if triton_batch.supports(x.shape[-1]):
            return triton_batch
    return plain
