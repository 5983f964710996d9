"""Batch norm of stacked clients, with shortcut and ReLU: one pass for the moments, one for the rest. Twins in `plain`.

Rows are the pixels of all images of a client. Images whose mask is 0 only fill a batch up: they are not counted, and
nothing flows back to them.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,no-any-return"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedkeel.kernels.triton_norm import _sum_images

__all__ = ["moments", "rescale", "rescale_gradient"]


@triton.jit
def _moments(
    x, mask, counts, means, squares, rows, pixels, chunks, CHANNELS: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Of one stretch of rows: how many count, their mean, and their squared distances from it."""
    client, chunk = tl.program_id(1).to(tl.int64), tl.program_id(0)
    row, channel = chunk * BLOCK + tl.arange(0, BLOCK), tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    there = row < rows
    weight = there.to(tl.float32)
    if MASKED:
        weight = tl.load(mask + client * (rows // pixels) + row // pixels, mask=there, other=0.0).to(tl.float32)
    at = client * rows * CHANNELS + row[:, None] * CHANNELS + channel[None, :]
    v = tl.load(x + at, mask=there[:, None], other=0.0).to(tl.float32)
    count = tl.sum(weight, 0)
    mean = tl.sum(v * weight[:, None], 0) / tl.maximum(count, 1.0)
    off = v - mean[None, :]
    place = (client * chunks + chunk) * CHANNELS + channel
    tl.store(means + place, mean)
    tl.store(squares + place, tl.sum(off * off * weight[:, None], 0))
    tl.store(counts + client * chunks + chunk, count)


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
        z = tl.maximum(z, 0.0)
    tl.store(y + at, z.to(y.dtype.element_ty), mask=there)


@triton.jit
def _slopes(
    dy, y, x, mean, inverse, dgain, dbias, dz_out, rows, chunks, CHANNELS: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr, SHORTCUT: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """The gradients of gain and bias, of one stretch of rows. What only fills a batch up has no slope."""
    client, chunk = tl.program_id(1).to(tl.int64), tl.program_id(0)
    row, channel = chunk * BLOCK + tl.arange(0, BLOCK), tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    there = (row < rows)[:, None]
    at = client * rows * CHANNELS + row[:, None] * CHANNELS + channel[None, :]
    of = client * CHANNELS + channel
    dz = tl.load(dy + at, mask=there, other=0.0).to(tl.float32)
    if RELU:
        dz = tl.where(tl.load(y + at, mask=there, other=0.0) > 0, dz, 0.0)
    if SHORTCUT:
        tl.store(dz_out + at, dz.to(dz_out.dtype.element_ty), mask=there)
    off = tl.load(x + at, mask=there, other=0.0).to(tl.float32) - tl.load(mean + of)[None, :]
    place = (client * chunks + chunk) * CHANNELS + channel
    tl.store(dgain + place, tl.sum(dz * off, 0) * tl.load(inverse + of))
    tl.store(dbias + place, tl.sum(dz, 0))


@triton.jit
def _input_slopes(
    dy, y, x, mask, mean, inverse, gain, dgain, dbias, counts, dx, rows, pixels, gain_stride, dgain_stride,
    dbias_stride, CHANNELS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, RELU: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """dx = gain / std · (dz − mean(dz) − unit · mean(dz · unit))."""
    client = tl.program_id(1).to(tl.int64)
    row, channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    there = row < rows
    at = client * rows * CHANNELS + row[:, None] * CHANNELS + channel[None, :]
    of = client * CHANNELS + channel
    count, factor = tl.load(counts + client), tl.load(inverse + of)
    level = tl.load(dbias + client * dbias_stride + channel) / count
    tilt = tl.load(dgain + client * dgain_stride + channel) / count * factor
    dz = tl.load(dy + at, mask=there[:, None], other=0.0).to(tl.float32)
    if RELU:
        dz = tl.where(tl.load(y + at, mask=there[:, None], other=0.0) > 0, dz, 0.0)
    off = tl.load(x + at, mask=there[:, None], other=0.0).to(tl.float32) - tl.load(mean + of)[None, :]
    slope = (dz - level[None, :] - off * tilt[None, :]) * (tl.load(gain + client * gain_stride + channel) * factor)
    if MASKED:
        slope *= tl.load(mask + client * (rows // pixels) + row // pixels, mask=there, other=0.0)[:, None]
    tl.store(dx + at, slope.to(dx.dtype.element_ty), mask=there[:, None])


# ---- the twins of `plain` ------------------------------------------------------------------------------------------
def shape(x: Tensor) -> tuple[int, int, int, int, int]:
    """Rows of a client, pixels of an image, channels, and how many rows and channels one program takes."""
    rows, channels = x.shape[1] * x.shape[2] * x.shape[3], x.shape[4]
    wide = min(channels, 64)
    return rows, x.shape[2] * x.shape[3], channels, min(triton.next_power_of_2(rows), 8192 // wide), wide


def moments(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    rows, pixels, channels, block, wide = shape(x)
    clients, chunks = len(x), triton.cdiv(rows, block)
    parts = torch.empty((2, clients, chunks, channels), dtype=torch.float32, device=x.device)
    counts = torch.empty((clients, chunks), dtype=torch.float32, device=x.device)
    count = torch.full_like(counts[:, 0], rows) if mask is None else mask.sum(1, dtype=torch.float32) * pixels
    _moments[(chunks, clients, channels // wide)](
        x, x if mask is None else mask.contiguous(), counts, parts[0], parts[1], rows, pixels, chunks,
        CHANNELS=channels, WIDE=wide, BLOCK=block, MASKED=mask is not None, num_warps=8,
    )  # fmt: skip
    (means, squares), share = parts, (counts / count[:, None]).unsqueeze(-1)
    mean = (means * share).sum(1)
    variance = (squares.sum(1) / count[:, None]) + ((means - mean[:, None]).square() * share).sum(1)
    return mean, variance, count


def rescale(x: Tensor, scale: Tensor, shift: Tensor, shortcut: Tensor | None, relu: bool) -> Tensor:
    rows, _, channels, block, wide = shape(x)
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
    mean: Tensor,
    inverse: Tensor,
    gain: Tensor,
    count: Tensor,
    mask: Tensor | None,
    relu: bool,
    into: tuple[Tensor, Tensor],
    joins: bool,
) -> tuple[Tensor, Tensor | None]:
    rows, pixels, channels, block, wide = shape(x)
    clients, chunks = len(x), triton.cdiv(rows, block)
    dx, dz = torch.empty_like(x), torch.empty_like(x) if joins else None
    parts = torch.empty((2, clients, chunks, channels), dtype=torch.float32, device=x.device)
    grid, sizes = (chunks, clients, channels // wide), {"CHANNELS": channels, "WIDE": wide, "BLOCK": block}
    _slopes[grid](
        dy, y, x, mean, inverse, parts[0], parts[1], dz if joins else dx, rows, chunks, **sizes, SHORTCUT=joins,
        RELU=relu, num_warps=8,
    )  # fmt: skip
    _sum_images[(clients, 2, channels // wide)](
        parts, *into, chunks, clients, into[0].stride(0), into[1].stride(0), CHANNELS=channels, WIDE=wide, BLOCK=64
    )
    _input_slopes[grid](
        dy, y, x, x if mask is None else mask.contiguous(), mean, inverse, gain, into[0], into[1], count, dx, rows,
        pixels, gain.stride(0), into[0].stride(0), into[1].stride(0), **sizes, RELU=relu, MASKED=mask is not None,
        num_warps=8,
    )  # fmt: skip
    return dx, dz
