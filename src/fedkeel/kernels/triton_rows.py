"""Rows of numbers `[clients, rows, features]`: layer norms and biases of each client, and their gradients.

A program takes a stretch of rows of one client, a block at a time; what it sums up over rows is one part, and parts are
added by a second kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PROCESSORS = 132  # of an H200
# as many programs as run at once there, by their registers: with a few more, most would wait for the last
NORM, NORM_GRADIENT, ADD, SUM = 10 * PROCESSORS, 5 * PROCESSORS, 16 * PROCESSORS, 12 * PROCESSORS
NUMBERS = 2048  # of a block at least: sixteen for each thread of four warps
WIDEST = 8192  # features that one program can hold


# ---- layer norms ---------------------------------------------------------------------------------------------------
@triton.jit
def _normalise_rows(
    x, gain, bias, y, means, inverses, rows, share, gain_stride, bias_stride, epsilon,
    FEATURES: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    client, first = tl.program_id(1).to(tl.int64), tl.program_id(0) * share
    column = tl.arange(0, WIDE)
    inside = (column < FEATURES)[None, :]
    scale = tl.load(gain + client * gain_stride + column, mask=column < FEATURES, other=0.0).to(tl.float32)
    if BIASED:
        lift = tl.load(bias + client * bias_stride + column, mask=column < FEATURES, other=0.0).to(tl.float32)
    for start in range(first, tl.minimum(first + share, rows), BLOCK):
        row = start + tl.arange(0, BLOCK)
        there = (row < rows)[:, None] & inside
        at = (client * rows + row)[:, None] * FEATURES + column[None, :]
        value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
        mean = tl.sum(value, 1) / FEATURES
        off = tl.where(inside, value - mean[:, None], 0.0)
        inverse = 1.0 / tl.sqrt(tl.sum(off * off, 1) / FEATURES + epsilon)
        made = off * inverse[:, None] * scale[None, :]
        if BIASED:
            made += lift[None, :]
        tl.store(y + at, made.to(y.dtype.element_ty), mask=there)
        tl.store(means + client * rows + row, mean, mask=row < rows)
        tl.store(inverses + client * rows + row, inverse, mask=row < rows)


@triton.jit
def _normalise_rows_gradient(
    dy, x, means, inverses, gain, dx, parts, rows, share, clients, gain_stride,
    FEATURES: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The slopes of a stretch, and parts `[2, clients, stretches, FEATURES]` of those of gain and bias."""
    client, split = tl.program_id(1).to(tl.int64), tl.program_id(0)
    column = tl.arange(0, WIDE)
    inside = column < FEATURES
    scale = tl.load(gain + client * gain_stride + column, mask=inside, other=0.0).to(tl.float32)
    product = tl.zeros((BLOCK, WIDE), dtype=tl.float32)
    plain = tl.zeros((BLOCK, WIDE), dtype=tl.float32)
    for start in range(split * share, tl.minimum(split * share + share, rows), BLOCK):
        row = start + tl.arange(0, BLOCK)
        there = (row < rows)[:, None] & inside[None, :]
        at = (client * rows + row)[:, None] * FEATURES + column[None, :]
        slope = tl.load(dy + at, mask=there, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
        mean = tl.load(means + client * rows + row, mask=row < rows, other=0.0)
        inverse = tl.load(inverses + client * rows + row, mask=row < rows, other=0.0)
        unit = (value - mean[:, None]) * inverse[:, None]
        product += slope * unit
        plain += slope
        slope *= scale[None, :]  # 0 where there is no feature
        level, tilt = tl.sum(slope, 1) / FEATURES, tl.sum(slope * unit, 1) / FEATURES
        slope = (slope - level[:, None] - unit * tilt[:, None]) * inverse[:, None]
        tl.store(dx + at, slope.to(dx.dtype.element_ty), mask=there)
    part = (client * tl.num_programs(0) + split) * FEATURES + column
    tl.store(parts + part, tl.sum(product, 0), mask=inside)
    tl.store(parts + clients * tl.num_programs(0) * FEATURES + part, tl.sum(plain, 0), mask=inside)


@triton.jit
def _sum_parts(
    parts, first, second, count, clients, first_stride, second_stride, features,
    WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add parts `[1 or 2, clients, count, features]` up into the first place and the second."""
    client, which = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    inside = column < features
    total = tl.zeros((BLOCK, WIDE), dtype=tl.float32)
    for start in range(0, count, BLOCK):
        part = start + tl.arange(0, BLOCK)
        at = ((which * clients + client) * count + part)[:, None] * features + column[None, :]
        total += tl.load(parts + at, mask=(part < count)[:, None] & inside[None, :], other=0.0)
    if which == 0:
        tl.store(first + client * first_stride + column, tl.sum(total, 0), mask=inside)
    else:
        tl.store(second + client * second_stride + column, tl.sum(total, 0), mask=inside)


# ---- biases --------------------------------------------------------------------------------------------------------
@triton.jit
def _add_bias(x, bias, y, rows, share, features, columns, bias_stride, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    client, first = tl.program_id(1).to(tl.int64), tl.program_id(0) // columns * share
    column = tl.program_id(0) % columns * WIDE + tl.arange(0, WIDE)
    inside = column < features
    lift = tl.load(bias + client * bias_stride + column, mask=inside, other=0.0).to(tl.float32)
    for start in range(first, tl.minimum(first + share, rows), BLOCK):
        row = start + tl.arange(0, BLOCK)
        there = (row < rows)[:, None] & inside[None, :]
        at = (client * rows + row)[:, None] * features + column[None, :]
        value = tl.load(x + at, mask=there, other=0.0).to(tl.float32) + lift[None, :]
        tl.store(y + at, value.to(y.dtype.element_ty), mask=there)


@triton.jit
def _sum_rows(dy, parts, rows, share, features, columns, client_stride, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Write the sum of each stretch to parts `[clients, stretches, features]`, whose clients may lie apart."""
    client, split = tl.program_id(1).to(tl.int64), tl.program_id(0) // columns
    column = tl.program_id(0) % columns * WIDE + tl.arange(0, WIDE)
    inside = column < features
    total = tl.zeros((BLOCK, WIDE), dtype=tl.float32)
    for start in range(split * share, tl.minimum(split * share + share, rows), BLOCK):
        row = start + tl.arange(0, BLOCK)
        at = (client * rows + row)[:, None] * features + column[None, :]
        total += tl.load(dy + at, mask=(row < rows)[:, None] & inside[None, :], other=0.0).to(tl.float32)
    tl.store(parts + client * client_stride + split * features + column, tl.sum(total, 0), mask=inside)


# ---- how they are called -------------------------------------------------------------------------------------------
def cut_rows(rows: int, block: int, most: int) -> tuple[int, int]:
    """Return how many stretches the rows of a client are cut into, at most so many, and the rows of one."""
    stretches = max(1, min(triton.cdiv(rows, block), most))
    share = triton.cdiv(triton.cdiv(rows, stretches), block) * block
    return triton.cdiv(rows, share), share


def block_of(features: int) -> tuple[int, int, int]:
    """Return the next power of two, the rows of a block, and warps."""
    wide = triton.next_power_of_2(features)
    return wide, max(1, NUMBERS // wide), max(4, wide // 512)


def tile_of(features: int) -> tuple[int, int]:
    """Return the features and the rows of a block where features need not be together."""
    even = features & -features
    wide = min(even if even >= 64 else max(16, triton.next_power_of_2(features)), 512)
    return wide, NUMBERS // wide


def add_parts(parts: Tensor, *into: Tensor) -> None:
    """Add parts `[len(into), clients, count, features]` up."""
    _, clients, count, features = parts.shape
    first, second = into[0], into[-1]
    _sum_parts[(clients, len(into), triton.cdiv(features, 32))](
        parts, first, second, count, clients, first.stride(0), second.stride(0), features, WIDE=32, BLOCK=64
    )


def normalise_rows(x: Tensor, gain: Tensor, bias: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """gain · (x − mean) / std + bias, and the mean and 1 / std of each row."""
    clients, rows, features = x.shape
    y = torch.empty_like(x)
    mean, inverse = torch.empty((2, clients, rows), dtype=torch.float32, device=x.device)
    wide, block, warps = block_of(features)
    stretches, share = cut_rows(rows, block, NORM // clients)
    lift = gain if bias is None else bias
    _normalise_rows[(stretches, clients)](
        x, gain, lift, y, mean, inverse, rows, share, gain.stride(0), lift.stride(0), epsilon, FEATURES=features,
        WIDE=wide, BLOCK=block, BIASED=bias is not None, num_warps=warps,
    )  # fmt: skip
    return y, mean, inverse


def normalise_rows_gradient(
    dy: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, gain: Tensor, into: tuple[Tensor, ...]
) -> Tensor:
    """Return the gradient of x; write those of the gain and, where `into` has two places, of the bias."""
    clients, rows, features = x.shape
    dx = torch.empty_like(x)
    wide, block, warps = block_of(features)
    stretches, share = cut_rows(rows, block, NORM_GRADIENT // clients)
    parts = torch.empty((2, clients, stretches, features), dtype=torch.float32, device=x.device)
    _normalise_rows_gradient[(stretches, clients)](
        dy, x, mean, inverse, gain, dx, parts, rows, share, clients, gain.stride(0), FEATURES=features, WIDE=wide,
        BLOCK=block, num_warps=warps,
    )  # fmt: skip
    add_parts(parts[: len(into)], *into)
    return dx


def add_bias(x: Tensor, bias: Tensor) -> Tensor:
    """x + bias, where x is `[clients, …, features]` and in one piece."""
    clients, features, y = len(x), x.shape[-1], torch.empty_like(x)
    rows, (wide, block) = x[0].numel() // features, tile_of(features)
    columns = triton.cdiv(features, wide)
    stretches, share = cut_rows(rows, block, ADD // (clients * columns))
    _add_bias[(stretches * columns, clients)](
        x, bias, y, rows, share, features, columns, bias.stride(0), WIDE=wide, BLOCK=block
    )
    return y


def sum_rows(dy: Tensor, into: Tensor) -> None:
    """Write the sums over all axes but the first and the last, of slopes that are in one piece."""
    clients, features = len(dy), dy.shape[-1]
    rows, (wide, block) = dy[0].numel() // features, tile_of(features)
    columns = triton.cdiv(features, wide)
    stretches, share = cut_rows(rows, block, SUM // (clients * columns))
    alone = stretches == 1
    parts = into if alone else torch.empty((1, clients, stretches, features), dtype=torch.float32, device=dy.device)
    _sum_rows[(stretches * columns, clients)](
        dy, parts, rows, share, features, columns, into.stride(0) if alone else parts.stride(1), WIDE=wide, BLOCK=block
    )
    if not alone:
        add_parts(parts, into)
