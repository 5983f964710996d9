"""Group norm, shortcut and ReLU in one pass over an image that stays in registers. Twins in `plain`."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,no-any-return"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _normalise(
    x, gain, bias, shortcut, y, means, inverses, images, pixels, gain_stride, bias_stride, epsilon,
    CHANNELS: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr, SHORTCUT: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    client = image // images
    WIDE: tl.constexpr = CHANNELS // GROUPS
    channel = tl.arange(0, CHANNELS)
    count = pixels * WIDE
    row = tl.arange(0, BLOCK)
    start = image * pixels * CHANNELS
    # sums by channel first, then by group: the blocks of an image may be many
    total = tl.zeros((CHANNELS,), dtype=tl.float32)
    for first in range(0, pixels, BLOCK):
        at = (first + row)[:, None] * CHANNELS + channel[None, :]
        there = (first + row < pixels)[:, None]
        total += tl.sum(tl.load(x + start + at, mask=there, other=0.0).to(tl.float32), 0)
    mean = tl.sum(tl.reshape(total, (GROUPS, WIDE)), 1) / count
    mean_of = tl.reshape(tl.broadcast_to(mean[:, None], (GROUPS, WIDE)), (CHANNELS,))
    total = tl.zeros((CHANNELS,), dtype=tl.float32)
    for first in range(0, pixels, BLOCK):
        at = (first + row)[:, None] * CHANNELS + channel[None, :]
        there = (first + row < pixels)[:, None]
        far = tl.load(x + start + at, mask=there, other=0.0).to(tl.float32) - mean_of[None, :]
        total += tl.sum(tl.where(there, far * far, 0.0), 0)
    inverse = tl.rsqrt(tl.sum(tl.reshape(total, (GROUPS, WIDE)), 1) / count + epsilon)
    inverse_of = tl.reshape(tl.broadcast_to(inverse[:, None], (GROUPS, WIDE)), (CHANNELS,))
    scale = tl.load(gain + client * gain_stride + channel) * inverse_of
    shift = tl.load(bias + client * bias_stride + channel) - mean_of * scale
    for first in range(0, pixels, BLOCK):
        at = (first + row)[:, None] * CHANNELS + channel[None, :]
        there = (first + row < pixels)[:, None]
        z = tl.load(x + start + at, mask=there, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
        if SHORTCUT:
            z += tl.load(shortcut + start + at, mask=there, other=0.0).to(tl.float32)
        if RELU:
            z = tl.maximum(z, 0.0)
        tl.store(y + start + at, z.to(y.dtype.element_ty), mask=there)
    groups = tl.arange(0, GROUPS)
    tl.store(means + image * GROUPS + groups, mean)
    tl.store(inverses + image * GROUPS + groups, inverse)


@triton.jit
def _normalise_gradient(
    dy, y, x, means, inverses, gain, dx, dz_out, dgain, dbias, images, pixels, gain_stride,
    CHANNELS: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr, SHORTCUT: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    client = image // images
    WIDE: tl.constexpr = CHANNELS // GROUPS
    channel = tl.arange(0, CHANNELS)
    group = channel // WIDE
    row = tl.arange(0, BLOCK)
    start = image * pixels * CHANNELS
    mean = tl.load(means + image * GROUPS + group)
    inverse = tl.load(inverses + image * GROUPS + group)
    scale = tl.load(gain + client * gain_stride + channel)
    plain = tl.zeros((CHANNELS,), dtype=tl.float32)
    product = tl.zeros((CHANNELS,), dtype=tl.float32)
    for first in range(0, pixels, BLOCK):
        at = (first + row)[:, None] * CHANNELS + channel[None, :]
        there = (first + row < pixels)[:, None]
        dz = tl.load(dy + start + at, mask=there, other=0.0).to(tl.float32)
        if RELU:
            dz = tl.where(tl.load(y + start + at, mask=there, other=0.0) > 0, dz, 0.0)
        if SHORTCUT:
            tl.store(dz_out + start + at, dz.to(dz_out.dtype.element_ty), mask=there)
        unit = (tl.load(x + start + at, mask=there, other=0.0).to(tl.float32) - mean[None, :]) * inverse[None, :]
        plain += tl.sum(dz, 0)
        product += tl.sum(dz * unit, 0)
    tl.store(dgain + image * CHANNELS + channel, product)
    tl.store(dbias + image * CHANNELS + channel, plain)
    count = pixels * WIDE
    level = tl.sum(tl.reshape(plain * scale, (GROUPS, WIDE)), 1) / count
    slope = tl.sum(tl.reshape(product * scale, (GROUPS, WIDE)), 1) / count
    level_of = tl.reshape(tl.broadcast_to(level[:, None], (GROUPS, WIDE)), (CHANNELS,))
    slope_of = tl.reshape(tl.broadcast_to(slope[:, None], (GROUPS, WIDE)), (CHANNELS,))
    for first in range(0, pixels, BLOCK):
        at = (first + row)[:, None] * CHANNELS + channel[None, :]
        there = (first + row < pixels)[:, None]
        dz = tl.load(dy + start + at, mask=there, other=0.0).to(tl.float32)
        if RELU:
            dz = tl.where(tl.load(y + start + at, mask=there, other=0.0) > 0, dz, 0.0)
        unit = (tl.load(x + start + at, mask=there, other=0.0).to(tl.float32) - mean[None, :]) * inverse[None, :]
        slopes = (dz * scale[None, :] - level_of[None, :] - unit * slope_of[None, :]) * inverse[None, :]
        tl.store(dx + start + at, slopes.to(dx.dtype.element_ty), mask=there)


@triton.jit
def _sum_images(
    parts, gain, bias, images, clients, gain_stride, bias_stride, CHANNELS: tl.constexpr, BLOCK: tl.constexpr
):
    client = tl.program_id(0).to(tl.int64)
    which = tl.program_id(1)  # 0: gain, 1: bias
    channel = tl.arange(0, CHANNELS)
    total = tl.zeros((CHANNELS,), dtype=tl.float32)
    for first in range(0, images, BLOCK):
        image = first + tl.arange(0, BLOCK)
        at = ((which * clients + client) * images + image)[:, None] * CHANNELS + channel[None, :]
        total += tl.sum(tl.load(parts + at, mask=(image < images)[:, None], other=0.0), 0)
    if which == 0:
        tl.store(gain + client * gain_stride + channel, total)
    else:
        tl.store(bias + client * bias_stride + channel, total)


# ---- the twins of `plain` ------------------------------------------------------------------------------------------
def fits(channels: int, groups: int) -> bool:
    """Whether these kernels take it: powers of two."""
    return channels & (channels - 1) == 0 and groups & (groups - 1) == 0


def block(pixels: int, channels: int) -> tuple[int, int]:
    """Pixels at once, and warps."""
    rows = min(triton.next_power_of_2(pixels), max(1, 16384 // channels))
    return rows, min(8, max(1, rows * channels // 1024))


def normalise(
    x: Tensor, gain: Tensor, bias: Tensor, groups: int, epsilon: float, shortcut: Tensor | None, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    clients, images, height, width, channels = x.shape
    y, mean = torch.empty_like(x), gain.new_empty((clients, images, groups))
    inverse = torch.empty_like(mean)
    rows, warps = block(height * width, channels)
    _normalise[(clients * images,)](
        x, gain, bias, shortcut if shortcut is not None else x, y, mean, inverse, images, height * width,
        gain.stride(0), bias.stride(0), epsilon, CHANNELS=channels, GROUPS=groups, BLOCK=rows,
        SHORTCUT=shortcut is not None, RELU=relu, num_warps=warps,
    )  # fmt: skip
    return y, mean, inverse


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
    clients, images, height, width, channels = x.shape
    dx, dz = torch.empty_like(x), torch.empty_like(x) if joins else None
    parts = gain.new_empty((2, clients, images, channels))
    rows, warps = block(height * width, channels)
    _normalise_gradient[(clients * images,)](
        dy, y, x, mean, inverse, gain, dx, dz if joins else dx, parts[0], parts[1], images, height * width,
        gain.stride(0), CHANNELS=channels, GROUPS=mean.shape[-1], BLOCK=rows, SHORTCUT=joins, RELU=relu,
        num_warps=warps,
    )  # fmt: skip
    _sum_images[(clients, 2)](
        parts, *into, images, clients, into[0].stride(0), into[1].stride(0), CHANNELS=channels, BLOCK=64
    )
    return dx, dz
