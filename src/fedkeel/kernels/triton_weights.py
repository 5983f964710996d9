"""Weights and their gradients: in a module's order outside, with channels last inside. Twins in `plain`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedkeel.kernels.geometry import Geometry
from fedkeel.kernels.tiles import PROGRAMS, Tile, dot_precision, narrow_weight_tile, pow2, weight_tile

SPLIT_ROWS = 512  # pixels that one program of the weight gradient sums up at least


@triton.jit
def _pack(
    weight, packed, pairs, inner, row_stride, first_row, first_column, kernel_columns,
    FULL: tl.constexpr, TAPS: tl.constexpr, COLUMNS: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """weight [clients, out, in, FULL] -> packed [clients, out, TAPS, in]."""
    client = tl.program_id(1).to(tl.int64)
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # (out, in), flat
    tap = tl.arange(0, PADDED)
    if TAPS == FULL:  # reads then lie side by side, which Triton sees and turns through shared memory
        source = tap
    else:
        source = (tap // COLUMNS + first_row) * kernel_columns + tap % COLUMNS + first_column
    there = (pair < pairs)[:, None] & (tap < TAPS)[None, :]
    value = tl.load(weight + client * row_stride + pair[:, None] * FULL + source[None, :], mask=there, other=0.0)
    out = pair // inner
    at = (out * (TAPS - 1) * inner + pair)[:, None] + tap[None, :] * inner
    tl.store(packed + client * pairs * TAPS + at, value.to(packed.dtype.element_ty), mask=there)


@triton.jit
def _unpack(
    parts, into, pairs, inner, row_stride, splits, split_stride, first_row, first_column, kernel_columns,
    FULL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
    TOGETHER: tl.constexpr,
):  # fmt: skip
    """Σ_split parts [splits, clients, out, taps, in] -> into [clients, out, in, FULL], zero for dead taps."""
    client = tl.program_id(1).to(tl.int64)
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tap = tl.arange(0, PADDED)
    row = tap // kernel_columns - first_row
    column = tap % kernel_columns - first_column
    live = (row >= 0) & (row < ROWS) & (column >= 0) & (column < COLUMNS)
    out = pair // inner
    at = (out * (ROWS * COLUMNS - 1) * inner + pair)[:, None] + (row * COLUMNS + column)[None, :] * inner
    there = (pair < pairs)[:, None] & live[None, :]
    total = tl.zeros((BLOCK, PADDED), dtype=tl.float32)
    source = parts + client * pairs * ROWS * COLUMNS + at
    for first in range(0, splits, TOGETHER):
        if TOGETHER == 1:
            total += tl.load(source + first * split_stride, mask=there, other=0.0)
        else:  # one after another, each would wait for memory
            split = (first + tl.arange(0, TOGETHER))[:, None, None]
            some = tl.load(source[None] + split * split_stride, mask=there[None] & (split < splits), other=0.0)
            total += tl.sum(some, 0)
    inside = (pair < pairs)[:, None] & (tap < FULL)[None, :]
    tl.store(into + client * row_stride + pair[:, None] * FULL + tap[None, :], total, mask=inside)


@triton.jit
def _weight_gradient(
    x, dy, parts, pixels, outer, share, clients,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, INNER: tl.constexpr, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
    TOP: tl.constexpr, LEFT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ONE_TAP: tl.constexpr,
    ONE_ROW: tl.constexpr,
):  # fmt: skip
    """parts[split, out, tap, in] = Σ_pixel dy[pixel, out] · x[pixel · stride + tap, in], over the split's pixels.

    One program makes a piece of one tap, of one row of taps or, with very few channels, of all of them. Sizes are
    constants: where each pixel lies is worked out in the loop, and division by a constant is cheap.
    """
    WIDE: tl.constexpr = COLUMNS * INNER if ONE_ROW else ROWS * COLUMNS * INNER
    CHUNKS: tl.constexpr = (WIDE + BK - 1) // BK
    PIECES: tl.constexpr = CHUNKS * ROWS if ONE_ROW else CHUNKS
    OUT: tl.constexpr = OUT_HEIGHT * OUT_WIDTH
    client = tl.program_id(2).to(tl.int64)
    split = tl.program_id(1)
    tile = tl.program_id(0)
    first, down = tile % CHUNKS * BK, tile % PIECES // CHUNKS  # down is 0 where a piece has all rows
    n = tile // PIECES * BN + tl.arange(0, BN)  # out
    q = first + tl.arange(0, BK)
    source = x + client * (pixels // OUT) * (HEIGHT * WIDTH * INNER)
    slopes = dy + client * pixels * outer
    used, inside = n < outer, q < WIDE
    total = tl.zeros((BN, BK), dtype=tl.float32)
    end = tl.minimum(split * share + share, pixels)
    for start in range(split * share, end, BM):
        m = start + tl.arange(0, BM)
        exists = m < end
        image, pixel = m // OUT, m % OUT
        row, column = pixel // OUT_WIDTH * STRIDE - TOP + down, pixel % OUT_WIDTH * STRIDE - LEFT
        base = ((image * HEIGHT + row) * WIDTH + column) * INNER
        seen = exists & (row >= 0) & (row < HEIGHT)
        if ONE_TAP:
            right = column + first // INNER
            b = tl.load(
                source + base[:, None] + q[None, :], mask=(seen & (right >= 0) & (right < WIDTH))[:, None], other=0.0
            )
        elif ONE_ROW:
            right = column[:, None] + (q // INNER)[None, :]
            b = tl.load(
                source + base[:, None] + q[None, :],
                mask=seen[:, None] & inside[None, :] & (right >= 0) & (right < WIDTH), other=0.0,
            )  # fmt: skip
        else:
            below, beside = q // (COLUMNS * INNER), q % (COLUMNS * INNER)
            low, right = row[:, None] + below[None, :], column[:, None] + (beside // INNER)[None, :]
            known = exists[:, None] & inside[None, :] & (low >= 0) & (low < HEIGHT)
            b = tl.load(
                source + base[:, None] + (below * (WIDTH * INNER) + beside)[None, :],
                mask=known & (right >= 0) & (right < WIDTH), other=0.0,
            )  # fmt: skip
        a = tl.load(slopes + m[:, None] * outer + n[None, :], mask=exists[:, None] & used[None, :], other=0.0)
        total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION)
    DEPTH: tl.constexpr = ROWS * COLUMNS * INNER
    at = (split * clients + client) * outer * DEPTH + n[:, None] * DEPTH + down * WIDE + q[None, :]
    tl.store(parts + at, total, mask=used[:, None] & inside[None, :])


@triton.jit
def _narrow_weight_gradient(
    x, dy, parts, pixels, share, clients,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr, OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The same for a stride of 1 and few channels of dy, by the pixels of x, which are read once for a row of taps.

    The pixels of dy that a row of taps takes a pixel of x to lie side by side, the last tap first.
    """
    CHUNKS: tl.constexpr = (INNER + BK - 1) // BK
    client = tl.program_id(2).to(tl.int64)
    split = tl.program_id(1)
    first, down = tl.program_id(0) % CHUNKS * BK, tl.program_id(0) // CHUNKS
    n, k = tl.arange(0, BN), first + tl.arange(0, BK)  # (tap, out), in
    source = x + client * pixels * INNER + k
    slopes = dy + client * (pixels // (HEIGHT * WIDTH)) * (OUT_HEIGHT * OUT_WIDTH * OUTER) + n
    used, inside = n < COLUMNS * OUTER, k < INNER
    total = tl.zeros((BN, BK), dtype=tl.float32)
    end = tl.minimum(split * share + share, pixels)
    for start in range(split * share, end, BM):
        m = start + tl.arange(0, BM)
        exists = m < end
        image, pixel = m // (HEIGHT * WIDTH), m % (HEIGHT * WIDTH)
        row, left = pixel // WIDTH + TOP - down, pixel % WIDTH + LEFT - (COLUMNS - 1)
        column = left[:, None] + (n // OUTER)[None, :]
        seen = (exists & (row >= 0) & (row < OUT_HEIGHT))[:, None] & used[None, :]
        a = tl.load(
            slopes[None, :] + (((image * OUT_HEIGHT + row) * OUT_WIDTH + left) * OUTER)[:, None],
            mask=seen & (column >= 0) & (column < OUT_WIDTH), other=0.0,
        )  # fmt: skip
        b = tl.load(source[None, :] + m[:, None] * INNER, mask=exists[:, None] & inside[None, :], other=0.0)
        total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION)
    out, right = n % OUTER, COLUMNS - 1 - n // OUTER
    at = ((split * clients + client) * OUTER + out) * (ROWS * COLUMNS * INNER) + (down * COLUMNS + right) * INNER
    tl.store(parts + at[:, None] + k[None, :], total, mask=used[:, None] & inside[None, :])


# ---- the twins of `plain` ------------------------------------------------------------------------------------------
def pack(weight: Tensor, where: Geometry, dtype: torch.dtype) -> Tensor:
    clients, outer, inner = weight.shape[:3]
    (down, right), full = where.taps, where.kernel[0] * where.kernel[1]
    packed = torch.empty((clients, outer, down * right * inner), dtype=dtype, device=weight.device)
    padded, pairs = pow2(down * right, 1, 1024), outer * inner
    block = max(16, 2048 // padded)
    _pack[(triton.cdiv(pairs, block), clients)](
        weight, packed, pairs, inner, weight.stride(0), where.rows[0], where.columns[0], where.kernel[1],
        FULL=full, TAPS=down * right, COLUMNS=right, PADDED=padded, BLOCK=block,
    )  # fmt: skip
    return packed


def split_sum(pixels: int, parts: int, rows: int) -> tuple[int, int]:
    """Return into how many parts, at most, a sum over pixels is split, and the pixels of one."""
    splits = max(1, min(triton.cdiv(pixels, SPLIT_ROWS), parts))
    share = triton.cdiv(triton.cdiv(pixels, splits), rows) * rows
    return triton.cdiv(pixels, share), share


def convolve_weight_gradient(x: Tensor, dy: Tensor, where: Geometry, into: Tensor, tile: Tile | None = None) -> None:
    clients, images, height, width, inner = x.shape
    outer, (down, right) = dy.shape[4], where.taps
    depth, pixels = down * right * inner, images * where.out_height * where.out_width
    narrow = narrow_weight_tile(outer, inner, right) if tile is None and where.stride == 1 else None
    bm, bn, bk, warps, stages = narrow or tile or weight_tile(pixels, outer, inner, right)
    one_row = inner >= 16
    if narrow is not None:
        pixels, tiles = images * height * width, down * triton.cdiv(inner, bk)
    else:
        tiles = triton.cdiv(outer, bn) * (down * triton.cdiv(right * inner, bk) if one_row else triton.cdiv(depth, bk))
    filled = PROGRAMS // 2 if narrow else 4 * PROGRAMS if warps <= 2 else PROGRAMS  # of small ones more
    splits, share = split_sum(pixels, filled // (tiles * clients), bm)
    parts = torch.empty((splits, clients, outer, depth), dtype=torch.float32, device=x.device)
    grid, sizes = (tiles, splits, clients), {
        "HEIGHT": height, "WIDTH": width, "INNER": inner, "OUT_HEIGHT": where.out_height, "OUT_WIDTH": where.out_width,
        "TOP": where.top, "LEFT": where.left, "ROWS": down, "COLUMNS": right, "PRECISION": dot_precision(x.dtype),
        "BM": bm, "BN": bn, "BK": bk, "num_warps": warps, "num_stages": stages,
    }  # fmt: skip
    if narrow is not None:
        _narrow_weight_gradient[grid](x, dy, parts, pixels, share, clients, OUTER=outer, **sizes)
    else:
        _weight_gradient[grid](
            x, dy, parts, pixels, outer, share, clients, STRIDE=where.stride, ONE_TAP=inner % bk == 0, ONE_ROW=one_row,
            **sizes,
        )  # fmt: skip
    full, pairs = where.kernel[0] * where.kernel[1], outer * inner
    padded = pow2(full, 1, 1024)
    at_once = pow2(splits, 1, min(16, 1024 // padded))
    block = max(4, 2048 // (padded * at_once))
    _unpack[(triton.cdiv(pairs, block), clients)](
        parts, into, pairs, inner, into.stride(0), splits, parts.stride(0), where.rows[0], where.columns[0],
        where.kernel[1], FULL=full, ROWS=down, COLUMNS=right, PADDED=padded, BLOCK=block,
        TOGETHER=at_once,
    )  # fmt: skip
