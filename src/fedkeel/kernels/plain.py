"""The kernels in plain PyTorch: what the Triton ones are held against, on any device and in any precision.

Images are `[clients, batch, height, width, channels]`; weights `[clients, out, in, rows, columns]` as in modules.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedkeel.kernels.geometry import Geometry


# ---- convolution ---------------------------------------------------------------------------------------------------
def pack(weight: Tensor, where: Geometry, dtype: torch.dtype) -> Tensor:
    """Live taps with channels last: `[clients, out, taps · in]`."""
    taps = weight[..., slice(*where.rows), slice(*where.columns)]
    return taps.permute(0, 1, 3, 4, 2).flatten(2).to(dtype)


def columns(x: Tensor, where: Geometry) -> Tensor:
    """What each output pixel looks at: `[clients, pixels, taps · in]`."""
    down, right = where.taps
    bottom = (where.out_height - 1) * where.stride - where.top + down - where.height
    side = (where.out_width - 1) * where.stride - where.left + right - where.width
    x = F.pad(x, (0, 0, where.left, side, where.top, bottom))
    seen = x.unfold(2, down, where.stride).unfold(3, right, where.stride)
    return seen.permute(0, 1, 2, 3, 5, 6, 4).reshape(len(x), -1, down * right * x.shape[-1])


def convolve(x: Tensor, packed: Tensor, where: Geometry) -> Tensor:
    y = columns(x, where) @ packed.mT
    return y.view(*x.shape[:2], where.out_height, where.out_width, -1)


def convolve_input_gradient(dy: Tensor, packed: Tensor, where: Geometry) -> Tensor:
    down, right = where.taps
    seen = (dy.flatten(1, 3) @ packed).view(*dy.shape[:4], down, right, -1)
    tall = (where.out_height - 1) * where.stride + down
    wide = (where.out_width - 1) * where.stride + right
    dx = dy.new_zeros(
        *dy.shape[:2], max(tall, where.top + where.height), max(wide, where.left + where.width), seen.shape[-1]
    )
    for i in range(down):
        for j in range(right):
            dx[:, :, i : i + tall - down + 1 : where.stride, j : j + wide - right + 1 : where.stride] += seen[
                ..., i, j, :
            ]
    return dx[:, :, where.top : where.top + where.height, where.left : where.left + where.width].contiguous()


def convolve_weight_gradient(x: Tensor, dy: Tensor, where: Geometry, into: Tensor) -> None:
    """Written to `into`, which is laid out like the weight; zero for taps that never meet the image."""
    dw = dy.flatten(1, 3).mT @ columns(x, where)
    dw = dw.unflatten(2, (*where.taps, -1)).permute(0, 1, 4, 2, 3)
    if not where.whole:
        into.zero_()
    into[..., slice(*where.rows), slice(*where.columns)] = dw.to(into.dtype)


# ---- group norm, then an optional shortcut, then an optional ReLU --------------------------------------------------
def normalise(
    x: Tensor, gain: Tensor, bias: Tensor, groups: int, epsilon: float, shortcut: Tensor | None, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """relu(gain · (x − mean) / std + bias + shortcut), and the mean and 1 / std of each image's groups."""
    parts = x.unflatten(-1, (groups, -1)).to(gain.dtype)
    mean = parts.mean((2, 3, 5), keepdim=True)
    inverse = ((parts - mean).square().mean((2, 3, 5), keepdim=True) + epsilon).rsqrt()
    y = ((parts - mean) * inverse).flatten(-2) * spatial(gain) + spatial(bias)
    y = y if shortcut is None else y + shortcut
    return (F.relu(y) if relu else y).to(x.dtype), mean[:, :, 0, 0, :, 0], inverse[:, :, 0, 0, :, 0]


def normalise_gradient(
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    gain: Tensor,
    relu: bool,
    into: tuple[Tensor, Tensor],
    joins: bool,
) -> tuple[Tensor, Tensor | None]:
    """Of x, and of the shortcut where one `joins`; those of gain and bias are written to `into`."""
    groups = mean.shape[-1]
    dz = dy.to(gain.dtype) * (y > 0) if relu else dy.to(gain.dtype)
    parts = x.unflatten(-1, (groups, -1)).to(gain.dtype)
    unit = ((parts - mean[:, :, None, None, :, None]) * inverse[:, :, None, None, :, None]).flatten(-2)
    into[0].copy_((dz * unit).sum((1, 2, 3)))
    into[1].copy_(dz.sum((1, 2, 3)))
    du = (dz * spatial(gain)).unflatten(-1, (groups, -1))
    unit = unit.unflatten(-1, (groups, -1))
    level = du.mean((2, 3, 5), keepdim=True)
    slope = (du * unit).mean((2, 3, 5), keepdim=True)
    dx = (du - level - unit * slope) * inverse[:, :, None, None, :, None]
    return dx.flatten(-2).to(x.dtype), dz.to(x.dtype) if joins else None


# ---- batch norm: moments over the images of a client, then as above -------------------------------------------------
class Memory(NamedTuple):
    """Running mean and variance `[clients, channels]`: as they are, where they are written to, how fast they follow."""

    before: tuple[Tensor, Tensor]
    after: tuple[Tensor, Tensor]
    momentum: float


class Moments(NamedTuple):
    """Mean and variance `[clients, channels]` over the pixels of the images that count, and how many these are;

    with inverse = 1 / √(variance + ε), a batch norm is x · scale + shift: gain · inverse, bias − mean · scale.
    """

    mean: Tensor
    variance: Tensor
    pixels: Tensor
    inverse: Tensor
    scale: Tensor
    shift: Tensor


def moments(
    x: Tensor, mask: Tensor | None, gain: Tensor, bias: Tensor, epsilon: float, memory: Memory | None = None
) -> Moments:
    """Of a batch; `memory` follows them, its variance as that of a sample."""
    v = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    weight = v.new_ones(x.shape[:2]) if mask is None else mask.to(v.dtype)
    count = weight.sum(1) * (x.shape[2] * x.shape[3])
    of = weight[:, :, None, None, None]
    mean = (v * of).sum((1, 2, 3)) / count[:, None]
    variance = ((v - spatial(mean)).square() * of).sum((1, 2, 3)) / count[:, None]
    if memory is not None:
        of_sample = variance * (count / (count - 1).clamp(min=1))[:, None]
        for old, new, into in zip(memory.before, (mean, of_sample), memory.after, strict=True):
            into.copy_(torch.lerp(old, new.to(old.dtype), memory.momentum))
    inverse = (variance + epsilon).rsqrt()
    scale = gain * inverse
    return Moments(mean, variance, count, inverse, scale, bias - mean * scale)


def rescale(x: Tensor, scale: Tensor, shift: Tensor, shortcut: Tensor | None, relu: bool) -> Tensor:
    """relu(scale · x + shift + shortcut), by channel."""
    y = x.to(scale.dtype) * spatial(scale) + spatial(shift)
    y = y if shortcut is None else y + shortcut
    return (F.relu(y) if relu else y).to(x.dtype)


def rescale_gradient(
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    made: Moments,
    gain: Tensor,
    mask: Tensor | None,
    relu: bool,
    into: tuple[Tensor, Tensor],
    joins: bool,
) -> tuple[Tensor, Tensor | None]:
    """Of x, where scale and shift follow from its moments, and of the shortcut; the others as in `normalise_gradient`.

    Images that do not count must have no slope, as they have none where the loss leaves them out.
    """
    dz = dy.to(gain.dtype) * (y > 0) if relu else dy.to(gain.dtype)
    unit = (x.to(gain.dtype) - spatial(made.mean)) * spatial(made.inverse)
    into[0].copy_((dz * unit).sum((1, 2, 3)))
    into[1].copy_(dz.sum((1, 2, 3)))
    level, tilt = (spatial(part / made.pixels[:, None]) for part in (into[1], into[0]))
    dx = (dz - level - unit * tilt) * spatial(made.scale)
    if mask is not None:
        dx = dx * mask[:, :, None, None, None]
    return dx.to(x.dtype), dz.to(x.dtype) if joins else None


def spatial(v: Tensor) -> Tensor:
    """`[clients, channels]` beside images."""
    return v[:, None, None, None, :]
