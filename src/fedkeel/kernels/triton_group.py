"""Group norms of any eighth number of channels, from the kernels of batch norms: an image stands for a client there.

`triton_norm` reads an image once, where channels and groups are powers of two; this reads it twice. Twins in `plain`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedkeel.kernels.triton_batch import _moments, _rescale, _slopes
from fedkeel.kernels.triton_norm import _sum_images

__all__ = ["normalise", "normalise_gradient", "supports"]


@triton.jit
def _join(
    means, squares, gain, bias, mean_out, inverse_out, scale, shift, images, pixels, gain_stride, bias_stride, epsilon,
    CHANNELS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The moments of one group of one image from those of its channels, and the scale and shift that follow."""
    image, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    client, inside = image // images, tl.arange(0, BLOCK) < GROUP
    channel = group * GROUP + tl.arange(0, BLOCK)
    at = image * CHANNELS + channel
    value = tl.load(means + at, mask=inside, other=0.0)
    mean = tl.sum(value, 0) / GROUP
    off = tl.where(inside, value - mean, 0.0)
    square = tl.sum(tl.load(squares + at, mask=inside, other=0.0), 0)
    inverse = 1.0 / tl.sqrt((square / pixels + tl.sum(off * off, 0)) / GROUP + epsilon)
    factor = tl.load(gain + client * gain_stride + channel, mask=inside, other=0.0) * inverse
    tl.store(scale + at, factor, mask=inside)
    lift = tl.load(bias + client * bias_stride + channel, mask=inside, other=0.0)
    tl.store(shift + at, lift - mean * factor, mask=inside)
    tl.store(mean_out + image * (CHANNELS // GROUP) + group, mean)
    tl.store(inverse_out + image * (CHANNELS // GROUP) + group, inverse)


@triton.jit
def _weigh(
    dgain, dbias, gain, means, inverses, by_slope, by_value, alone, images, pixels, gain_stride,
    CHANNELS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The numbers of `_combine` for one group of one image, from the slopes of its gains and biases."""
    image, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    client, inside = image // images, tl.arange(0, BLOCK) < GROUP
    channel = group * GROUP + tl.arange(0, BLOCK)
    at = image * CHANNELS + channel
    weight = tl.load(gain + client * gain_stride + channel, mask=inside, other=0.0)
    level = tl.sum(weight * tl.load(dbias + at, mask=inside, other=0.0), 0) / (GROUP * pixels)
    tilt = tl.sum(weight * tl.load(dgain + at, mask=inside, other=0.0), 0) / (GROUP * pixels)
    inverse = tl.load(inverses + image * (CHANNELS // GROUP) + group)
    tilt *= inverse * inverse
    rest = tl.load(means + image * (CHANNELS // GROUP) + group) * tilt - inverse * level
    tl.store(by_slope + at, weight * inverse, mask=inside)
    tl.store(by_value + at, tl.zeros((BLOCK,), dtype=tl.float32) - tilt, mask=inside)
    tl.store(alone + at, tl.zeros((BLOCK,), dtype=tl.float32) + rest, mask=inside)


@triton.jit
def _combine(
    dz, x, by_slope, by_value, alone, dx, rows, CHANNELS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """dx = by_slope · dz + by_value · x + alone, with numbers of each image and channel."""
    image = tl.program_id(1).to(tl.int64)
    row, channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    there = (row < rows)[:, None]
    at = image * rows * CHANNELS + row[:, None] * CHANNELS + channel[None, :]
    of = image * CHANNELS + channel
    slope = tl.load(dz + at, mask=there, other=0.0).to(tl.float32) * tl.load(by_slope + of)[None, :]
    slope += tl.load(x + at, mask=there, other=0.0).to(tl.float32) * tl.load(by_value + of)[None, :]
    slope += tl.load(alone + of)[None, :]
    tl.store(dx + at, slope.to(dx.dtype.element_ty), mask=there)


def supports(channels: int, groups: int) -> bool:
    """Whether these kernels take it: a program has eight channels at least."""
    return channels % 8 == 0 and channels % groups == 0


def launch_shape(x: Tensor) -> tuple[int, int, int, int]:
    """Return the images, the pixels of one, and the pixels and channels that a program takes at a time."""
    pixels, channels = x.shape[2] * x.shape[3], x.shape[4]
    wide = min(channels & -channels, 64)
    return x.shape[0] * x.shape[1], pixels, min(triton.next_power_of_2(pixels), 4096 // wide), wide


def normalise(
    x: Tensor, gain: Tensor, bias: Tensor, groups: int, epsilon: float, shortcut: Tensor | None, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    (images, pixels, block, wide), channels = launch_shape(x), x.shape[4]
    means, squares, scale, shift = torch.empty((4, *x.shape[:2], channels), dtype=torch.float32, device=x.device)
    counts = torch.empty((images,), dtype=torch.float32, device=x.device)
    _moments[(1, images, channels // wide)](
        x, x, counts, means, squares, pixels, pixels, 1, triton.cdiv(pixels, block), CHANNELS=channels, WIDE=wide,
        BLOCK=block, MASKED=False, num_warps=4,
    )  # fmt: skip
    mean, inverse = torch.empty((2, *x.shape[:2], groups), dtype=torch.float32, device=x.device)
    _join[(images, groups)](
        means, squares, gain, bias, mean, inverse, scale, shift, x.shape[1], pixels, gain.stride(0), bias.stride(0),
        epsilon, CHANNELS=channels, GROUP=channels // groups, BLOCK=triton.next_power_of_2(channels // groups),
        num_warps=1,
    )  # fmt: skip
    y = torch.empty_like(x)
    _rescale[(triton.cdiv(pixels, block), images, channels // wide)](
        x, scale, shift, x if shortcut is None else shortcut, y, pixels, CHANNELS=channels, WIDE=wide, BLOCK=block,
        SHORTCUT=shortcut is not None, RELU=relu, num_warps=4,
    )  # fmt: skip
    return y, mean, inverse


def normalise_gradient(
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    gain: Tensor,
    bias: Tensor,
    relu: bool,
    into: tuple[Tensor, Tensor],
    joins: bool,
) -> tuple[Tensor, Tensor | None]:
    (images, pixels, block, wide), channels, groups = launch_shape(x), x.shape[4], mean.shape[-1]
    apart = relu or joins  # whether slopes differ from dy
    dx, dz = torch.empty_like(x), torch.empty_like(x) if apart else dy
    dgain, dbias, by_slope, by_value, alone = torch.empty(
        (5, *x.shape[:2], channels), dtype=torch.float32, device=x.device
    )
    _slopes[(1, images, channels // wide)](
        dy, y, x, mean, inverse, inverse, inverse, dgain, dbias, dz if apart else dx, pixels, 1,
        triton.cdiv(pixels, block), CHANNELS=channels, WIDE=wide, BLOCK=block, GROUP=channels // groups,
        SHORTCUT=apart, RELU=relu, num_warps=4,
    )  # fmt: skip
    _sum_images[(x.shape[0], 2, channels // wide)](
        dgain, *into, x.shape[1], x.shape[0], into[0].stride(0), into[1].stride(0), CHANNELS=channels, WIDE=wide,
        BLOCK=64,
    )  # fmt: skip
    _weigh[(images, groups)](
        dgain, dbias, gain, mean, inverse, by_slope, by_value, alone, x.shape[1], pixels, gain.stride(0),
        CHANNELS=channels, GROUP=channels // groups, BLOCK=triton.next_power_of_2(channels // groups), num_warps=1,
    )  # fmt: skip
    _combine[(triton.cdiv(pixels, block), images, channels // wide)](
        dz, x, by_slope, by_value, alone, dx, pixels, CHANNELS=channels, WIDE=wide, BLOCK=block, num_warps=4
    )
    return dx, dz if joins else None
