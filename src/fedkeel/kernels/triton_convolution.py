"""Convolutions with weights per client as implicit matrix products: no image is ever unfolded in memory.

Each kernel has its twin of the same name in `plain`. Sums are in float32. Channels lie last, so that what a row of
taps sees is one stretch of memory: with few channels the sum runs over such stretches, with many within single taps.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedkeel.kernels.geometry import Geometry
from fedkeel.kernels.tiles import Tile, dot_precision, product_tile
from fedkeel.kernels.triton_weights import convolve_weight_gradient, pack

__all__ = ["convolve", "convolve_input_gradient", "convolve_weight_gradient", "pack"]


@triton.jit
def _convolve(
    x, packed, y, pixels, outer,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, INNER: tl.constexpr, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
    TOP: tl.constexpr, LEFT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ONE_TAP: tl.constexpr,
):  # fmt: skip
    """y[pixel, out] = Σ_(tap, in) x[pixel · stride + tap, in] · packed[out, tap, in]."""
    WIDE: tl.constexpr = COLUMNS * INNER
    CHUNKS: tl.constexpr = (WIDE + BK - 1) // BK
    OUT: tl.constexpr = OUT_HEIGHT * OUT_WIDTH
    client = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(outer, BN)
    m = tl.program_id(0) // tiles * BM + tl.arange(0, BM)
    n = tl.program_id(0) % tiles * BN + tl.arange(0, BN)
    image, pixel = m // OUT, m % OUT
    row, column = pixel // OUT_WIDTH * STRIDE - TOP, pixel % OUT_WIDTH * STRIDE - LEFT
    base = x + client * (pixels // OUT) * (HEIGHT * WIDTH * INNER) + ((image * HEIGHT + row) * WIDTH + column) * INNER
    weights = packed + client * outer * (ROWS * WIDE) + n * (ROWS * WIDE)
    exists, used = m < pixels, n < outer
    k = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(ROWS * CHUNKS):
        down, first = i // CHUNKS, i % CHUNKS * BK
        q = first + k
        seen = exists & (row + down >= 0) & (row + down < HEIGHT)
        source = base[:, None] + (down * (WIDTH * INNER) + q)[None, :]
        if ONE_TAP:
            right = column + first // INNER
            a = tl.load(source, mask=(seen & (right >= 0) & (right < WIDTH))[:, None], other=0.0)
            b = tl.load(weights[None, :] + (down * WIDE + q)[:, None], mask=used[None, :], other=0.0)
        else:
            right = column[:, None] + (q // INNER)[None, :]
            a = tl.load(source, mask=seen[:, None] & (q < WIDE)[None, :] & (right >= 0) & (right < WIDTH), other=0.0)
            b = tl.load(
                weights[None, :] + (down * WIDE + q)[:, None], mask=used[None, :] & (q < WIDE)[:, None], other=0.0
            )
        total = tl.dot(a, b, total, input_precision=PRECISION)
    at = client * pixels * outer + m[:, None] * outer + n[None, :]
    tl.store(y + at, total.to(y.dtype.element_ty), mask=exists[:, None] & used[None, :])


@triton.jit
def _input_gradient(
    dy, packed, beside, dx, images, inner,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUTER: tl.constexpr, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
    TOP: tl.constexpr, LEFT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ONE_TAP: tl.constexpr,
    BESIDE: tl.constexpr,
):  # fmt: skip
    """dx[pixel, in] = Σ_(tap, out) dy[(pixel − tap) / stride, out] · packed[out, tap, in] + beside[pixel, in].

    Pixels that the same taps reach are taken together: with a stride of 2, those in even or odd rows and columns.
    """
    TALL: tl.constexpr = (HEIGHT + STRIDE - 1) // STRIDE
    WIDE: tl.constexpr = (WIDTH + STRIDE - 1) // STRIDE
    client = tl.program_id(1).to(tl.int64)
    phase_row, phase_column = tl.program_id(2) // STRIDE, tl.program_id(2) % STRIDE
    tiles = tl.cdiv(inner, BN)
    m = tl.program_id(0) // tiles * BM + tl.arange(0, BM)
    n = tl.program_id(0) % tiles * BN + tl.arange(0, BN)
    image, pixel = m // (TALL * WIDE), m % (TALL * WIDE)
    row, column = pixel // WIDE * STRIDE + phase_row, pixel % WIDE * STRIDE + phase_column
    source = dy + client * images * (OUT_HEIGHT * OUT_WIDTH * OUTER)
    weights = packed + client * OUTER * (ROWS * COLUMNS) * inner + n
    exists, used = (m < images * (TALL * WIDE)) & (row < HEIGHT) & (column < WIDTH), n < inner
    k = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    first_row, first_column = (phase_row + TOP) % STRIDE, (phase_column + LEFT) % STRIDE
    down_taps = (ROWS - first_row + STRIDE - 1) // STRIDE
    if ONE_TAP:
        CHUNKS: tl.constexpr = (OUTER + BK - 1) // BK
        right_taps = (COLUMNS - first_column + STRIDE - 1) // STRIDE
        for i in range(down_taps * right_taps * CHUNKS):
            tap = i // CHUNKS
            down, right = first_row + tap // right_taps * STRIDE, first_column + tap % right_taps * STRIDE
            y, z = (row + TOP - down) // STRIDE, (column + LEFT - right) // STRIDE
            seen = exists & (row + TOP >= down) & (y < OUT_HEIGHT) & (column + LEFT >= right) & (z < OUT_WIDTH)
            q = i % CHUNKS * BK + k
            a = tl.load(
                source + (((image * OUT_HEIGHT + y) * OUT_WIDTH + z) * OUTER)[:, None] + q[None, :],
                mask=seen[:, None] & (q < OUTER)[None, :], other=0.0,
            )  # fmt: skip
            b = tl.load(
                weights[None, :] + (q * (ROWS * COLUMNS) + down * COLUMNS + right)[:, None] * inner,
                mask=used[None, :] & (q < OUTER)[:, None], other=0.0,
            )  # fmt: skip
            total = tl.dot(a, b, total, input_precision=PRECISION)
    else:  # stride 1: the pixels of dy that a row of taps comes from lie side by side, the last tap first
        PIECES: tl.constexpr = (COLUMNS * OUTER + BK - 1) // BK
        left = column + LEFT - (COLUMNS - 1)
        for i in range(ROWS * PIECES):
            down, q = i // PIECES, i % PIECES * BK + k
            y, z = row + TOP - down, left[:, None] + (q // OUTER)[None, :]
            seen = (exists & (y >= 0) & (y < OUT_HEIGHT))[:, None] & (q < COLUMNS * OUTER)[None, :]
            a = tl.load(
                source + (((image * OUT_HEIGHT + y) * OUT_WIDTH + left) * OUTER)[:, None] + q[None, :],
                mask=seen & (z >= 0) & (z < OUT_WIDTH), other=0.0,
            )  # fmt: skip
            tap = q % OUTER * (ROWS * COLUMNS) + down * COLUMNS + COLUMNS - 1 - q // OUTER
            b = tl.load(
                weights[None, :] + tap[:, None] * inner,
                mask=used[None, :] & (q < COLUMNS * OUTER)[:, None], other=0.0,
            )  # fmt: skip
            total = tl.dot(a, b, total, input_precision=PRECISION)
    at = client * images * (HEIGHT * WIDTH) + (image * HEIGHT + row) * WIDTH + column
    place, there = at[:, None] * inner + n[None, :], exists[:, None] & used[None, :]
    if BESIDE:
        total += tl.load(beside + place, mask=there, other=0.0).to(tl.float32)
    tl.store(dx + place, total.to(dx.dtype.element_ty), mask=there)


# ---- the twins of `plain` ------------------------------------------------------------------------------------------
def convolve(x: Tensor, packed: Tensor, where: Geometry, tile: Tile | None = None) -> Tensor:
    clients, images, height, width, inner = x.shape
    outer, pixels = packed.shape[1], images * where.out_height * where.out_width
    y = torch.empty((clients, images, where.out_height, where.out_width, outer), dtype=x.dtype, device=x.device)
    bm, bn, bk, warps, stages = tile or product_tile(pixels, outer, inner, where.taps[1], clients)
    _convolve[(triton.cdiv(pixels, bm) * triton.cdiv(outer, bn), clients)](
        x, packed, y, pixels, outer, HEIGHT=height, WIDTH=width, INNER=inner, OUT_HEIGHT=where.out_height,
        OUT_WIDTH=where.out_width, TOP=where.top, LEFT=where.left, ROWS=where.taps[0], COLUMNS=where.taps[1],
        STRIDE=where.stride, PRECISION=dot_precision(x.dtype), BM=bm, BN=bn, BK=bk, ONE_TAP=inner % bk == 0,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return y


def convolve_input_gradient(
    dy: Tensor, packed: Tensor, where: Geometry, beside: Tensor | None = None, tile: Tile | None = None
) -> Tensor:
    clients, images, outer = dy.shape[0], dy.shape[1], dy.shape[4]
    (down, right), stride = where.taps, where.stride
    inner = packed.shape[2] // (down * right)
    dx = torch.empty((clients, images, where.height, where.width, inner), dtype=dy.dtype, device=dy.device)
    pixels = images * triton.cdiv(where.height, stride) * triton.cdiv(where.width, stride)
    # with a stride, what a row of taps comes from does not lie side by side
    taps = right if stride == 1 else 1
    bm, bn, bk, warps, stages = tile or product_tile(pixels, inner, outer, taps, clients * stride**2)
    _input_gradient[(triton.cdiv(pixels, bm) * triton.cdiv(inner, bn), clients, stride**2)](
        dy, packed, dx if beside is None else beside.contiguous(), dx, images, inner, HEIGHT=where.height,
        WIDTH=where.width, OUTER=outer, OUT_HEIGHT=where.out_height, OUT_WIDTH=where.out_width, TOP=where.top,
        LEFT=where.left, ROWS=down,
        COLUMNS=right, STRIDE=stride, PRECISION=dot_precision(dy.dtype), BM=bm, BN=bn, BK=bk,
        ONE_TAP=stride > 1 or outer % bk == 0, BESIDE=beside is not None, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return dx
