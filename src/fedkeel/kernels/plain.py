"""The kernels in plain PyTorch, on any device and in any precision: the reference of the Triton kernels.

Images are `[clients, batch, height, width, channels]`; weights `[clients, out, in, rows, columns]` as in modules.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedkeel.kernels.geometry import Geometry
from fedkeel.kernels.side_stream import SideStream


# ---- convolution ---------------------------------------------------------------------------------------------------
def pack(weight: Tensor, where: Geometry, dtype: torch.dtype) -> Tensor:
    """Pack live taps with channels last: `[clients, out, taps · in]`."""
    taps = weight[..., slice(*where.rows), slice(*where.columns)]
    return taps.permute(0, 1, 3, 4, 2).flatten(2).to(dtype)


def unfold(x: Tensor, where: Geometry) -> Tensor:
    """Gather the input pixels of each output pixel: `[clients, pixels, taps · in]`."""
    down, right = where.taps
    bottom = (where.out_height - 1) * where.stride - where.top + down - where.height
    side = (where.out_width - 1) * where.stride - where.left + right - where.width
    x = F.pad(x, (0, 0, where.left, side, where.top, bottom))
    seen = x.unfold(2, down, where.stride).unfold(3, right, where.stride)
    return seen.permute(0, 1, 2, 3, 5, 6, 4).reshape(len(x), -1, down * right * x.shape[-1])


def convolve(x: Tensor, packed: Tensor, where: Geometry) -> Tensor:
    y = x.new_empty(*x.shape[:2], where.out_height, where.out_width, packed.shape[1])  # no view: it may be written into
    torch.bmm(unfold(x, where), packed.mT, out=y.flatten(1, 3))
    return y


def convolve_input_gradient(dy: Tensor, packed: Tensor, where: Geometry, beside: Tensor | None = None) -> Tensor:
    """Return the gradient of the input, plus slopes that come `beside` it, from a shortcut."""
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
    dx = dx[:, :, where.top : where.top + where.height, where.left : where.left + where.width].contiguous()
    return dx if beside is None else dx + beside


def convolve_weight_gradient(x: Tensor, dy: Tensor, where: Geometry, into: Tensor) -> None:
    """Write the gradient to `into`, laid out like the weight; zero for taps that never meet the image."""
    dw = dy.flatten(1, 3).mT @ unfold(x, where)
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
    y = ((parts - mean) * inverse).flatten(-2) * over_pixels(gain) + over_pixels(bias)
    y = y if shortcut is None else y + shortcut
    return (F.relu(y) if relu else y).to(x.dtype), mean[:, :, 0, 0, :, 0], inverse[:, :, 0, 0, :, 0]


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
    beside: Tensor | None = None,
    side: SideStream | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of x and, where one `joins`, of the shortcut; write those of gain and bias to `into`.

    What x has for a gradient from elsewhere, `beside`, is added. Only the Triton twin reads the bias, and has work that
    can be done at the `side`.
    """
    groups = mean.shape[-1]
    dz = dy.to(gain.dtype) * (y > 0) if relu else dy.to(gain.dtype)
    parts = x.unflatten(-1, (groups, -1)).to(gain.dtype)
    unit = ((parts - mean[:, :, None, None, :, None]) * inverse[:, :, None, None, :, None]).flatten(-2)
    into[0].copy_((dz * unit).sum((1, 2, 3)))
    into[1].copy_(dz.sum((1, 2, 3)))
    du = (dz * over_pixels(gain)).unflatten(-1, (groups, -1))
    unit = unit.unflatten(-1, (groups, -1))
    level = du.mean((2, 3, 5), keepdim=True)
    slope = (du * unit).mean((2, 3, 5), keepdim=True)
    dx = (du - level - unit * slope) * inverse[:, :, None, None, :, None]
    dx = dx.flatten(-2).to(x.dtype)
    return dx if beside is None else dx + beside, dz.to(x.dtype) if joins else None


# ---- batch norm: moments over the images of a client, then as above -------------------------------------------------
class RunningMoments(NamedTuple):
    """Running mean and variance `[clients, channels]`: before the batch, after it, and how fast they follow."""

    before: tuple[Tensor, Tensor]
    after: tuple[Tensor, Tensor]
    momentum: float


class Moments(NamedTuple):
    """Mean and variance `[clients, channels]` over the pixels of the images that count, and how many pixels these are.

    A batch norm is x · scale + shift with inverse = 1 / √(variance + ε), scale = gain · inverse and
    shift = bias − mean · scale.
    """

    mean: Tensor
    variance: Tensor
    pixels: Tensor
    inverse: Tensor
    scale: Tensor
    shift: Tensor


def batch_moments(
    x: Tensor, mask: Tensor | None, gain: Tensor, bias: Tensor, epsilon: float, running: RunningMoments | None = None
) -> Moments:
    """Compute the moments of a batch and update the running ones, whose variance is that of a sample."""
    v = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    weight = v.new_ones(x.shape[:2]) if mask is None else mask.to(v.dtype)
    count = weight.sum(1) * (x.shape[2] * x.shape[3])
    of = weight[:, :, None, None, None]
    mean = (v * of).sum((1, 2, 3)) / count[:, None]
    variance = ((v - over_pixels(mean)).square() * of).sum((1, 2, 3)) / count[:, None]
    if running is not None:
        of_sample = variance * (count / (count - 1).clamp(min=1))[:, None]
        for old, new, into in zip(running.before, (mean, of_sample), running.after, strict=True):
            into.copy_(torch.lerp(old, new.to(old.dtype), running.momentum))
    inverse = (variance + epsilon).rsqrt()
    scale = gain * inverse
    return Moments(mean, variance, count, inverse, scale, bias - mean * scale)


def rescale(x: Tensor, scale: Tensor, shift: Tensor, shortcut: Tensor | None, relu: bool) -> Tensor:
    """relu(scale · x + shift + shortcut), by channel."""
    y = x.to(scale.dtype) * over_pixels(scale) + over_pixels(shift)
    y = y if shortcut is None else y + shortcut
    return (F.relu(y) if relu else y).to(x.dtype)


def rescale_gradient(
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    stats: Moments,
    gain: Tensor,
    mask: Tensor | None,
    relu: bool,
    into: tuple[Tensor, Tensor],
    joins: bool,
    beside: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return gradients as `normalise_gradient` does, where scale and shift follow from the moments of x.

    Images that do not count must have no slope, as they have none where the loss leaves them out.
    """
    dz = dy.to(gain.dtype) * (y > 0) if relu else dy.to(gain.dtype)
    unit = (x.to(gain.dtype) - over_pixels(stats.mean)) * over_pixels(stats.inverse)
    into[0].copy_((dz * unit).sum((1, 2, 3)))
    into[1].copy_(dz.sum((1, 2, 3)))
    level, tilt = (over_pixels(part / stats.pixels[:, None]) for part in (into[1], into[0]))
    dx = (dz - level - unit * tilt) * over_pixels(stats.scale)
    if mask is not None:
        dx = dx * mask[:, :, None, None, None]
    dx = dx.to(x.dtype)
    return dx if beside is None else dx + beside, dz.to(x.dtype) if joins else None


def over_pixels(v: Tensor) -> Tensor:
    """Give `[clients, channels]` axes of size 1 for batch, height and width."""
    return v[:, None, None, None, :]
