"""Group norm, shortcut and ReLU in one pass over an image that stays in registers. Twins in `plain`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _groups(v, CHANNELS: tl.constexpr, GROUPS: tl.constexpr):
    """Sums over the channels of each group."""
    return tl.sum(tl.reshape(v, (GROUPS, CHANNELS // GROUPS)), 1)


@triton.jit
def _channels(v, CHANNELS: tl.constexpr, GROUPS: tl.constexpr):
    """Each group's number for all its channels."""
    return tl.reshape(tl.broadcast_to(v[:, None], (GROUPS, CHANNELS // GROUPS)), (CHANNELS,))


@triton.jit
def _normalise(
    x, gain, bias, shortcut, y, means, inverses, images, pixels, gain_stride, bias_stride, epsilon,
    CHANNELS: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr, SHORTCUT: tl.constexpr, RELU: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """One image. WHOLE: it fits into one block, is read once and stays in registers."""
    image = tl.program_id(0).to(tl.int64)
    client = image // images
    channel, row = tl.arange(0, CHANNELS), tl.arange(0, BLOCK)
    count = pixels * (CHANNELS // GROUPS)
    start = image * pixels * CHANNELS
    at = row[:, None] * CHANNELS + channel[None, :]
    there = (row < pixels)[:, None]
    if WHOLE:
        v = tl.load(x + start + at, mask=there, other=0.0).to(tl.float32)
        total = tl.sum(v, 0)
    else:
        total = tl.zeros((CHANNELS,), dtype=tl.float32)
        for first in range(0, pixels, BLOCK):
            near = (first + row < pixels)[:, None]
            total += tl.sum(tl.load(x + start + first * CHANNELS + at, mask=near, other=0.0).to(tl.float32), 0)
    means_of = _groups(total, CHANNELS, GROUPS) / count
    mean = _channels(means_of, CHANNELS, GROUPS)
    if WHOLE:
        far = tl.where(there, v - mean[None, :], 0.0)
        total = tl.sum(far * far, 0)
    else:
        total = tl.zeros((CHANNELS,), dtype=tl.float32)
        for first in range(0, pixels, BLOCK):
            near = (first + row < pixels)[:, None]
            off = tl.load(x + start + first * CHANNELS + at, mask=near, other=0.0).to(tl.float32) - mean[None, :]
            total += tl.sum(tl.where(near, off * off, 0.0), 0)
    inverses_of = tl.rsqrt(_groups(total, CHANNELS, GROUPS) / count + epsilon)
    inverse = _channels(inverses_of, CHANNELS, GROUPS)
    scale = tl.load(gain + client * gain_stride + channel) * inverse
    shift = tl.load(bias + client * bias_stride + channel) - mean * scale
    if WHOLE:
        z = v * scale[None, :] + shift[None, :]
        if SHORTCUT:
            z += tl.load(shortcut + start + at, mask=there, other=0.0).to(tl.float32)
        if RELU:
            z = tl.where(z < 0, 0.0, z)  # unlike a maximum, keeps what is not a number
        tl.store(y + start + at, z.to(y.dtype.element_ty), mask=there)
    else:
        for first in range(0, pixels, BLOCK):
            near, here = (first + row < pixels)[:, None], start + first * CHANNELS + at
            u = tl.load(x + here, mask=near, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
            if SHORTCUT:
                u += tl.load(shortcut + here, mask=near, other=0.0).to(tl.float32)
            if RELU:
                u = tl.where(u < 0, 0.0, u)
            tl.store(y + here, u.to(y.dtype.element_ty), mask=near)
    group = tl.arange(0, GROUPS)
    tl.store(means + image * GROUPS + group, means_of)
    tl.store(inverses + image * GROUPS + group, inverses_of)


@triton.jit
def _normalise_gradient(
    dy, y, x, means, inverses, gain, bias, dx, dz_out, dgain, dbias, images, pixels, gain_stride, bias_stride,
    CHANNELS: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr, SHORTCUT: tl.constexpr, RELU: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """One image, as above. Without a shortcut, x tells where the ReLU let something through, and y is not read."""
    image = tl.program_id(0).to(tl.int64)
    client = image // images
    channel, row = tl.arange(0, CHANNELS), tl.arange(0, BLOCK)
    count = pixels * (CHANNELS // GROUPS)
    start = image * pixels * CHANNELS
    at = row[:, None] * CHANNELS + channel[None, :]
    there = (row < pixels)[:, None]
    group = channel // (CHANNELS // GROUPS)
    mean, inverse = tl.load(means + image * GROUPS + group), tl.load(inverses + image * GROUPS + group)
    scale = tl.load(gain + client * gain_stride + channel)
    steep = scale * inverse
    shift = tl.load(bias + client * bias_stride + channel) - mean * steep
    if WHOLE:
        dz = tl.load(dy + start + at, mask=there, other=0.0).to(tl.float32)
        v = tl.load(x + start + at, mask=there, other=0.0).to(tl.float32)
        if SHORTCUT:
            if RELU:
                dz = tl.where(tl.load(y + start + at, mask=there, other=0.0) > 0, dz, 0.0)
            tl.store(dz_out + start + at, dz.to(dz_out.dtype.element_ty), mask=there)
        elif RELU:
            dz = tl.where(v * steep[None, :] + shift[None, :] > 0, dz, 0.0)
        unit = (v - mean[None, :]) * inverse[None, :]
        plain = tl.sum(dz, 0)
        product = tl.sum(dz * unit, 0)
    else:
        plain = tl.zeros((CHANNELS,), dtype=tl.float32)
        product = tl.zeros((CHANNELS,), dtype=tl.float32)
        for first in range(0, pixels, BLOCK):
            near, here = (first + row < pixels)[:, None], start + first * CHANNELS + at
            slope = tl.load(dy + here, mask=near, other=0.0).to(tl.float32)
            w = tl.load(x + here, mask=near, other=0.0).to(tl.float32)
            if SHORTCUT:
                if RELU:
                    slope = tl.where(tl.load(y + here, mask=near, other=0.0) > 0, slope, 0.0)
                tl.store(dz_out + here, slope.to(dz_out.dtype.element_ty), mask=near)
            elif RELU:
                slope = tl.where(w * steep[None, :] + shift[None, :] > 0, slope, 0.0)
            u = (w - mean[None, :]) * inverse[None, :]
            plain += tl.sum(slope, 0)
            product += tl.sum(slope * u, 0)
    tl.store(dgain + image * CHANNELS + channel, product)
    tl.store(dbias + image * CHANNELS + channel, plain)
    level = _channels(_groups(plain * scale, CHANNELS, GROUPS), CHANNELS, GROUPS) / count
    tilt = _channels(_groups(product * scale, CHANNELS, GROUPS), CHANNELS, GROUPS) / count
    if WHOLE:
        slopes = (dz * scale[None, :] - level[None, :] - unit * tilt[None, :]) * inverse[None, :]
        tl.store(dx + start + at, slopes.to(dx.dtype.element_ty), mask=there)
    else:
        for first in range(0, pixels, BLOCK):
            near, here = (first + row < pixels)[:, None], start + first * CHANNELS + at
            slope = tl.load(dy + here, mask=near, other=0.0).to(tl.float32)
            w = tl.load(x + here, mask=near, other=0.0).to(tl.float32)
            if RELU:
                if SHORTCUT:
                    slope = tl.where(tl.load(y + here, mask=near, other=0.0) > 0, slope, 0.0)
                else:
                    slope = tl.where(w * steep[None, :] + shift[None, :] > 0, slope, 0.0)
            u = (w - mean[None, :]) * inverse[None, :]
            slope = (slope * scale[None, :] - level[None, :] - u * tilt[None, :]) * inverse[None, :]
            tl.store(dx + here, slope.to(dx.dtype.element_ty), mask=near)


@triton.jit
def _sum_images(
    parts, gain, bias, images, clients, gain_stride, bias_stride, CHANNELS: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(0).to(tl.int64)
    which = tl.program_id(1)  # 0: gain, 1: bias
    channel = tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    total = tl.zeros((WIDE,), dtype=tl.float32)
    for first in range(0, images, BLOCK):
        image = first + tl.arange(0, BLOCK)
        at = ((which * clients + client) * images + image)[:, None] * CHANNELS + channel[None, :]
        total += tl.sum(tl.load(parts + at, mask=(image < images)[:, None], other=0.0), 0)
    if which == 0:
        tl.store(gain + client * gain_stride + channel, total)
    else:
        tl.store(bias + client * bias_stride + channel, total)


# ---- the twins of `plain` ------------------------------------------------------------------------------------------
def supports(channels: int, groups: int) -> bool:
    """Whether these kernels take it: powers of two."""
    return channels & (channels - 1) == 0 and groups & (groups - 1) == 0


def block_size(pixels: int, channels: int) -> tuple[int, int]:
    """Pixels at once, and warps."""
    rows = min(triton.next_power_of_2(pixels), max(1, 16384 // channels))
    return rows, min(8, max(1, rows * channels // 1024))


def normalise(
    x: Tensor, gain: Tensor, bias: Tensor, groups: int, epsilon: float, shortcut: Tensor | None, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    clients, images, height, width, channels = x.shape
    y, mean = torch.empty_like(x), gain.new_empty((clients, images, groups))
    inverse = torch.empty_like(mean)
    rows, warps = block_size(height * width, channels)
    _normalise[(clients * images,)](
        x, gain, bias, shortcut if shortcut is not None else x, y, mean, inverse, images, height * width,
        gain.stride(0), bias.stride(0), epsilon, CHANNELS=channels, GROUPS=groups, BLOCK=rows,
        SHORTCUT=shortcut is not None, RELU=relu, WHOLE=rows >= height * width, num_warps=warps,
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
    clients, images, height, width, channels = x.shape
    dx, dz = torch.empty_like(x), torch.empty_like(x) if joins else None
    parts = gain.new_empty((2, clients, images, channels))
    rows, warps = block_size(height * width, channels)
    _normalise_gradient[(clients * images,)](
        dy, y, x, mean, inverse, gain, bias, dx, dz if joins else dx, parts[0], parts[1], images, height * width,
        gain.stride(0), bias.stride(0), CHANNELS=channels, GROUPS=mean.shape[-1], BLOCK=rows, SHORTCUT=joins, RELU=relu,
        WHOLE=rows >= height * width, num_warps=warps,
    )  # fmt: skip
    wide = min(channels, 64)
    _sum_images[(clients, 2, channels // wide)](
        parts, *into, images, clients, into[0].stride(0), into[1].stride(0), CHANNELS=channels, WIDE=wide, BLOCK=64
    )
    return dx, dz
