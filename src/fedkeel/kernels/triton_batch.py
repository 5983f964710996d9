"""Batch norm of stacked clients, with shortcut and ReLU: one pass for the moments, one for the rest. Twins in `plain`.

Rows are the pixels of all images of a client. Images whose mask is 0 only fill a batch up: they are not counted, and
nothing flows back to them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedkeel.kernels.plain import Moments, RunningMoments
from fedkeel.kernels.tiles import PROGRAMS
from fedkeel.kernels.triton_slopes import as_rows, slopes_behind_relu, sum_images

__all__ = ["batch_moments", "rescale", "rescale_gradient"]


@triton.jit
def _moments(
    x, mask, counts, means, squares, rows, pixels, chunks, turns, CHANNELS: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Of one stretch of rows: how many count, their mean, and their squared distances from it.

    Sums are of distances from the stretch's first row, so that those of squares lose nothing far from zero.
    """
    client, chunk = tl.program_id(1).to(tl.int64), tl.program_id(0)
    channel = tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    base = x + client * rows * CHANNELS + channel
    pivot = tl.load(base + chunk * turns * BLOCK * CHANNELS).to(tl.float32)
    total, square = tl.zeros((BLOCK, WIDE), dtype=tl.float32), tl.zeros((BLOCK, WIDE), dtype=tl.float32)
    counted = tl.zeros((BLOCK,), dtype=tl.float32)
    for turn in range(turns):
        row = (chunk * turns + turn) * BLOCK + tl.arange(0, BLOCK)
        there = row < rows
        weight = there.to(tl.float32)
        if MASKED:
            weight = tl.load(mask + client * (rows // pixels) + row // pixels, mask=there, other=0.0).to(tl.float32)
        v = tl.load(base[None, :] + row[:, None] * CHANNELS, mask=there[:, None], other=0.0).to(tl.float32)
        off = (v - pivot[None, :]) * weight[:, None]
        counted += weight
        total += off
        square += off * off
    count, off_sum = tl.sum(counted, 0), tl.sum(total, 0)
    off_mean = off_sum / tl.maximum(count, 1.0)
    place = (client * chunks + chunk) * CHANNELS + channel
    tl.store(means + place, pivot + off_mean)
    tl.store(squares + place, tl.maximum(tl.sum(square, 0) - off_sum * off_mean, 0.0))
    tl.store(counts + client * chunks + chunk, count)


@triton.jit
def _join(
    counts, means, squares, gain, bias, old_mean, old_variance, new_mean, new_variance, made, count_out, chunks,
    clients, gain_stride, bias_stride, old_stride, new_stride, epsilon, momentum, CHANNELS: tl.constexpr,
    WIDE: tl.constexpr, BLOCK: tl.constexpr, REMEMBERED: tl.constexpr,
):  # fmt: skip
    """The moments of all stretches from those of each, what follows from them, and what is remembered."""
    client = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    chunk = tl.arange(0, BLOCK)
    weights, total = tl.zeros((BLOCK,), dtype=tl.float32), tl.zeros((BLOCK, WIDE), dtype=tl.float32)
    for first in range(0, chunks, BLOCK):
        there, at = first + chunk < chunks, client * chunks + first + chunk
        weight = tl.load(counts + at, mask=there, other=0.0)
        value = tl.load(means + at[:, None] * CHANNELS + channel[None, :], mask=there[:, None], other=0.0)
        weights += weight
        total += weight[:, None] * value
    count = tl.sum(weights, 0)
    mean = tl.sum(total, 0) / count
    spread = tl.zeros((BLOCK, WIDE), dtype=tl.float32)
    for first in range(0, chunks, BLOCK):
        there, at = first + chunk < chunks, client * chunks + first + chunk
        weight, place = tl.load(counts + at, mask=there, other=0.0), at[:, None] * CHANNELS + channel[None, :]
        off = tl.load(means + place, mask=there[:, None], other=0.0) - mean[None, :]
        spread += tl.load(squares + place, mask=there[:, None], other=0.0) + weight[:, None] * (off * off)
    variance = tl.sum(spread, 0) / count
    inverse = 1.0 / tl.sqrt(variance + epsilon)
    scale = tl.load(gain + client * gain_stride + channel) * inverse
    shift = tl.load(bias + client * bias_stride + channel) - mean * scale
    at, apart = made + client * CHANNELS + channel, clients * CHANNELS
    tl.store(at, mean)
    tl.store(at + apart, variance)
    tl.store(at + 2 * apart, inverse)
    tl.store(at + 3 * apart, scale)
    tl.store(at + 4 * apart, shift)
    tl.store(count_out + client, count)
    if REMEMBERED:
        old, new = client * old_stride + channel, client * new_stride + channel
        before = tl.load(old_mean + old)
        tl.store(new_mean + new, before + momentum * (mean - before))
        before = tl.load(old_variance + old)
        tl.store(new_variance + new, before + momentum * (variance * (count / tl.maximum(count - 1, 1.0)) - before))


@triton.jit
def _rescale(
    x, scale, shift, shortcut, y, rows, CHANNELS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
    SHORTCUT: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    row, channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    there = (row < rows)[:, None]
    at = client * rows * CHANNELS + row[:, None] * CHANNELS + channel[None, :]
    of = client * CHANNELS + channel
    z = tl.load(x + at, mask=there, other=0.0).to(tl.float32) * tl.load(scale + of)[None, :]
    z += tl.load(shift + of)[None, :]
    if SHORTCUT:
        z += tl.load(shortcut + at, mask=there, other=0.0).to(tl.float32)
    if RELU:
        z = tl.where(z < 0, 0.0, z)  # unlike a maximum, keeps what is not a number
    tl.store(y + at, z.to(y.dtype.element_ty), mask=there)


@triton.jit
def _slopes(
    dy, y, x, mean, inverse, scale, shift, dgain, dbias, dz_out, rows, chunks, turns, CHANNELS: tl.constexpr,
    WIDE: tl.constexpr, BLOCK: tl.constexpr, SHORTCUT: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """The gradients of gain and bias, of one stretch of rows. What only fills a batch up has no slope."""
    client, chunk = tl.program_id(1).to(tl.int64), tl.program_id(0)
    channel = tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    of = client * CHANNELS + channel
    middle, factor, lift = tl.load(mean + of), tl.load(scale + of), tl.load(shift + of)
    level, tilt = tl.zeros((BLOCK, WIDE), dtype=tl.float32), tl.zeros((BLOCK, WIDE), dtype=tl.float32)
    for turn in range(turns):
        row = (chunk * turns + turn) * BLOCK + tl.arange(0, BLOCK)
        there = (row < rows)[:, None]
        at = client * rows * CHANNELS + row[:, None] * CHANNELS + channel[None, :]
        v = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
        dz = tl.load(dy + at, mask=there, other=0.0).to(tl.float32)
        dz = slopes_behind_relu(dz, y, v, at, there, factor, lift, SHORTCUT, RELU)
        if SHORTCUT:
            tl.store(dz_out + at, dz.to(dz_out.dtype.element_ty), mask=there)
        level += dz
        tilt += dz * (v - middle[None, :])
    place = (client * chunks + chunk) * CHANNELS + channel
    tl.store(dgain + place, tl.sum(tilt, 0) * tl.load(inverse + of))
    tl.store(dbias + place, tl.sum(level, 0))


@triton.jit
def _input_slopes(
    dy, x, mask, mean, inverse, scale, shift, dgain, dbias, counts, beside, dx, rows, pixels, dgain_stride,
    dbias_stride, beside_stride, CHANNELS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, RELU: tl.constexpr,
    MASKED: tl.constexpr, BESIDE: tl.constexpr,
):  # fmt: skip
    """dx = gain / std · (dz − mean(dz) − unit · mean(dz · unit)) + beside. RELU: dy has not met it yet."""
    client = tl.program_id(1).to(tl.int64)
    row, channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    there = row < rows
    at = client * rows * CHANNELS + row[:, None] * CHANNELS + channel[None, :]
    of = client * CHANNELS + channel
    count, factor = tl.load(counts + client), tl.load(scale + of)
    level = tl.load(dbias + client * dbias_stride + channel) / count
    tilt = tl.load(dgain + client * dgain_stride + channel) / count * tl.load(inverse + of)
    dz = tl.load(dy + at, mask=there[:, None], other=0.0).to(tl.float32)
    v = tl.load(x + at, mask=there[:, None], other=0.0).to(tl.float32)
    if RELU:
        dz = tl.where(v * factor[None, :] + tl.load(shift + of)[None, :] > 0, dz, 0.0)
    off = v - tl.load(mean + of)[None, :]
    slope = (dz - level[None, :] - off * tilt[None, :]) * factor[None, :]
    if MASKED:
        slope *= tl.load(mask + client * (rows // pixels) + row // pixels, mask=there, other=0.0)[:, None]
    if BESIDE:
        place = (client * rows + row)[:, None] * beside_stride + channel[None, :]
        slope += tl.load(beside + place, mask=there[:, None], other=0.0).to(tl.float32)
    tl.store(dx + at, slope.to(dx.dtype.element_ty), mask=there[:, None])


# ---- the twins of `plain` ------------------------------------------------------------------------------------------
def supports(channels: int) -> bool:
    """Whether these kernels take it: channels that a program can have eight of at least, or a power of two."""
    return channels % 8 == 0 or channels & (channels - 1) == 0


def launch_shape(x: Tensor) -> tuple[int, int, int, int, int]:
    """Return the rows of a client, pixels of an image, channels, and the rows and channels of one program."""
    rows, channels = x.shape[1] * x.shape[2] * x.shape[3], x.shape[4]
    wide = min(channels & -channels, 64)  # a power of two that divides the channels
    return rows, x.shape[2] * x.shape[3], channels, min(triton.next_power_of_2(rows), 8192 // wide), wide


def launch_sums(x: Tensor) -> tuple[int, int, int]:
    """Plan sums over rows: the rows a program takes at a time, its turns, and the programs of a client."""
    rows, _, channels, block, wide = launch_shape(x)
    block = min(block, 4096 // wide)
    turns = max(1, min(16, rows * len(x) * (channels // wide) // (block * 2 * PROGRAMS)))
    return block, turns, triton.cdiv(rows, block * turns)


def batch_moments(
    x: Tensor, mask: Tensor | None, gain: Tensor, bias: Tensor, epsilon: float, running: RunningMoments | None = None
) -> Moments:
    rows, pixels, channels, _, wide = launch_shape(x)
    clients, (block, turns, chunks) = len(x), launch_sums(x)
    parts = torch.empty((2, clients, chunks, channels), dtype=torch.float32, device=x.device)
    counts = torch.empty((clients, chunks), dtype=torch.float32, device=x.device)
    _moments[(chunks, clients, channels // wide)](
        x, x if mask is None else mask.contiguous(), counts, parts[0], parts[1], rows, pixels, chunks, turns,
        CHANNELS=channels, WIDE=wide, BLOCK=block, MASKED=mask is not None, num_warps=4,
    )  # fmt: skip
    stats = torch.empty((5, clients, channels), dtype=torch.float32, device=x.device)
    count = torch.empty((clients,), dtype=torch.float32, device=x.device)
    before, after, momentum = running or ((stats[0], stats[1]), (stats[0], stats[1]), 0.0)
    assert before[0].stride() == before[1].stride()
    assert after[0].stride() == after[1].stride()
    _join[(clients, channels // wide)](
        counts, parts[0], parts[1], gain, bias, *before, *after, stats, count, chunks, clients, gain.stride(0),
        bias.stride(0), before[0].stride(0), after[0].stride(0), epsilon, momentum, CHANNELS=channels, WIDE=wide,
        BLOCK=64, REMEMBERED=running is not None
    )  # fmt: skip
    mean, variance, inverse, scale, shift = stats
    return Moments(mean, variance, count, inverse, scale, shift)


def rescale(x: Tensor, scale: Tensor, shift: Tensor, shortcut: Tensor | None, relu: bool) -> Tensor:
    rows, _, channels, block, wide = launch_shape(x)
    y = torch.empty_like(x)
    _rescale[(triton.cdiv(rows, block), len(x), channels // wide)](
        x, scale.contiguous(), shift.contiguous(), x if shortcut is None else shortcut, y, rows, CHANNELS=channels,
        WIDE=wide, BLOCK=block, SHORTCUT=shortcut is not None, RELU=relu, num_warps=8,
    )  # fmt: skip
    return y


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
    """Where no shortcut joins, what the ReLU let through is worked out again from x, which is read anyway."""
    rows, pixels, channels, block, wide = launch_shape(x)
    clients, (some, turns, chunks) = len(x), launch_sums(x)
    dx, dz = torch.empty_like(x), torch.empty_like(x) if joins else None
    parts = torch.empty((2, clients, chunks, channels), dtype=torch.float32, device=x.device)
    _slopes[(chunks, clients, channels // wide)](
        dy, y, x, stats.mean, stats.inverse, stats.scale, stats.shift, parts[0], parts[1], dx if dz is None else dz,
        rows, chunks, turns, CHANNELS=channels, WIDE=wide, BLOCK=some, SHORTCUT=joins, RELU=relu, num_warps=4
    )  # fmt: skip
    sum_images(parts, into)
    others = x.flatten(0, 3) if beside is None else as_rows(beside)
    _input_slopes[(triton.cdiv(rows, block), clients, channels // wide)](
        dy if dz is None else dz, x, x if mask is None else mask.contiguous(), stats.mean, stats.inverse, stats.scale,
        stats.shift, into[0], into[1], stats.pixels, others, dx, rows, pixels, into[0].stride(0), into[1].stride(0),
        others.stride(0), CHANNELS=channels, WIDE=wide, BLOCK=block, RELU=relu and dz is None, MASKED=mask is not None,
        BESIDE=beside is not None, num_warps=8,
    )  # fmt: skip
    return dx, dz
