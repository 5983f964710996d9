"""Convolutions with weights per client as implicit matrix products: no image is ever unfolded in memory.

Each kernel has its twin of the same name in `plain`. Sums are in float32.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,no-any-return"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedkeel.kernels.geometry import Geometry

SPLIT_ROWS = 512  # pixels that one program of the weight gradient sums up at least
PROGRAMS = 132 * 4  # enough of them to fill a large GPU


@triton.jit
def _pack(
    weight, packed, pairs, inner, row_stride, first_row, first_column, kernel_columns,
    FULL: tl.constexpr, TAPS: tl.constexpr, COLUMNS: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """weight [clients, out, in, FULL] -> packed [clients, out, TAPS, in]."""
    client = tl.program_id(1).to(tl.int64)
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # (out, in), flat
    tap = tl.arange(0, PADDED)
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
    for split in range(splits):
        total += tl.load(parts + split * split_stride + client * pairs * ROWS * COLUMNS + at, mask=there, other=0.0)
    inside = (pair < pairs)[:, None] & (tap < FULL)[None, :]
    tl.store(into + client * row_stride + pair[:, None] * FULL + tap[None, :], total, mask=inside)


@triton.jit
def _convolve(
    x, packed, y, pixels, height, width, inner, out_height, out_width, outer, top, left, depth,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BY_TAP: tl.constexpr,
):  # fmt: skip
    """y[pixel, out] = Σ_(tap, in) x[pixel · stride + tap, in] · packed[out, tap, in]."""
    client = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(outer, BN)
    m = tl.program_id(0) // tiles * BM + tl.arange(0, BM)
    n = tl.program_id(0) % tiles * BN + tl.arange(0, BN)
    image, pixel = m // (out_height * out_width), m % (out_height * out_width)
    row, column = pixel // out_width * STRIDE - top, pixel % out_width * STRIDE - left
    images = pixels // (out_height * out_width)
    base = x + client * images * height * width * inner + ((image * height + row) * width + column) * inner
    weights = packed + client * outer * depth + n * depth
    exists, used = m < pixels, n < outer
    total = tl.zeros((BM, BN), dtype=tl.float32)
    k = tl.arange(0, BK)
    if BY_TAP:
        per_tap = inner // BK
        for i in range(ROWS * COLUMNS * per_tap):
            tap = i // per_tap
            down, right = tap // COLUMNS, tap % COLUMNS
            seen = exists & (row + down >= 0) & (row + down < height) & (column + right >= 0) & (column + right < width)
            at = (down * width + right) * inner + (i % per_tap) * BK
            a = tl.load(base[:, None] + (at + k)[None, :], mask=seen[:, None], other=0.0)
            b = tl.load(weights[None, :] + (i * BK + k)[:, None], mask=used[None, :], other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
    else:
        for start in range(0, depth, BK):
            q = start + k
            down, rest = q // (COLUMNS * inner), q % (COLUMNS * inner)
            right = rest // inner
            rows, columns = row[:, None] + down[None, :], column[:, None] + right[None, :]
            seen = (
                exists[:, None]
                & (q < depth)[None, :]
                & (rows >= 0)
                & (rows < height)
                & (columns >= 0)
                & (columns < width)
            )
            a = tl.load(base[:, None] + (down * width * inner + rest)[None, :], mask=seen, other=0.0)
            b = tl.load(weights[None, :] + q[:, None], mask=used[None, :] & (q < depth)[:, None], other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
    at = client * pixels * outer + m[:, None] * outer + n[None, :]
    tl.store(y + at, total.to(y.dtype.element_ty), mask=exists[:, None] & used[None, :])


@triton.jit
def _input_gradient(
    dy, packed, dx, pixels, height, width, inner, out_height, out_width, outer, top, left, depth,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dx[pixel, in] = Σ_(tap, out) dy[(pixel − tap) / stride, out] · packed[out, tap, in]."""
    client = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(inner, BN)
    m = tl.program_id(0) // tiles * BM + tl.arange(0, BM)
    n = tl.program_id(0) % tiles * BN + tl.arange(0, BN)
    image, pixel = m // (height * width), m % (height * width)
    row, column = pixel // width + top, pixel % width + left
    images = pixels // (height * width)
    source = dy + client * images * out_height * out_width * outer
    weights = packed + client * outer * depth + n
    exists, used = m < pixels, n < inner
    total = tl.zeros((BM, BN), dtype=tl.float32)
    k = tl.arange(0, BK)
    per_tap = tl.cdiv(outer, BK)
    for i in range(ROWS * COLUMNS * per_tap):
        tap = i // per_tap
        down, right = row - tap // COLUMNS, column - tap % COLUMNS
        seen = exists & (down >= 0) & (down < out_height * STRIDE) & (right >= 0) & (right < out_width * STRIDE)
        if STRIDE > 1:
            seen = seen & (down % STRIDE == 0) & (right % STRIDE == 0)
        at = ((image * out_height + down // STRIDE) * out_width + right // STRIDE) * outer
        q = (i % per_tap) * BK + k
        a = tl.load(source + at[:, None] + q[None, :], mask=seen[:, None] & (q < outer)[None, :], other=0.0)
        b = tl.load(
            weights[None, :] + q[:, None] * depth + tap * inner, mask=(q < outer)[:, None] & used[None, :], other=0.0
        )
        total = tl.dot(a, b, total, input_precision=PRECISION)
    at = client * pixels * inner + m[:, None] * inner + n[None, :]
    tl.store(dx + at, total.to(dx.dtype.element_ty), mask=exists[:, None] & used[None, :])


@triton.jit
def _weight_gradient(
    x, dy, parts, pixels, outer, share, clients,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, INNER: tl.constexpr, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
    TOP: tl.constexpr, LEFT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """parts[split, out, tap, in] = Σ_pixel dy[pixel, out] · x[pixel · stride + tap, in], over the split's pixels.

    Sizes are constants: where each pixel lies is worked out in the loop, and division by a constant is cheap.
    """
    DEPTH: tl.constexpr = ROWS * COLUMNS * INNER
    OUT: tl.constexpr = OUT_HEIGHT * OUT_WIDTH
    client = tl.program_id(2).to(tl.int64)
    split = tl.program_id(1)
    tiles = tl.cdiv(DEPTH, BK)
    n = tl.program_id(0) // tiles * BN + tl.arange(0, BN)  # out
    q = tl.program_id(0) % tiles * BK + tl.arange(0, BK)
    down, rest = q // (COLUMNS * INNER), q % (COLUMNS * INNER)
    right = rest // INNER
    offset = (down * WIDTH + right) * INNER + q % INNER
    source = x + client * (pixels // OUT) * (HEIGHT * WIDTH * INNER)
    slopes = dy + client * pixels * outer
    used, inside = n < outer, q < DEPTH
    total = tl.zeros((BN, BK), dtype=tl.float32)
    end = tl.minimum(split * share + share, pixels)
    for start in range(split * share, end, BM):
        m = start + tl.arange(0, BM)
        exists = m < end
        image, pixel = m // OUT, m % OUT
        row, column = pixel // OUT_WIDTH * STRIDE - TOP, pixel % OUT_WIDTH * STRIDE - LEFT
        base = ((image * HEIGHT + row) * WIDTH + column) * INNER
        rows, columns = row[:, None] + down[None, :], column[:, None] + right[None, :]
        seen = exists[:, None] & inside[None, :] & (rows >= 0) & (rows < HEIGHT) & (columns >= 0) & (columns < WIDTH)
        b = tl.load(source + base[:, None] + offset[None, :], mask=seen, other=0.0)
        a = tl.load(slopes + m[:, None] * outer + n[None, :], mask=exists[:, None] & used[None, :], other=0.0)
        total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION)
    at = (split * clients + client) * outer * DEPTH + n[:, None] * DEPTH + q[None, :]
    tl.store(parts + at, total, mask=used[:, None] & inside[None, :])


@triton.jit
def _weight_gradient_by_tap(
    x, dy, parts, pixels, outer, share, clients,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, INNER: tl.constexpr, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
    TOP: tl.constexpr, LEFT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TAPS: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    """The same where `in` is a multiple of BK: TAPS taps at a time share the pixels and slopes they are summed over."""
    DEPTH: tl.constexpr = ROWS * COLUMNS * INNER
    OUT: tl.constexpr = OUT_HEIGHT * OUT_WIDTH
    GROUPS: tl.constexpr = (ROWS * COLUMNS + TAPS - 1) // TAPS
    client = tl.program_id(2).to(tl.int64)
    split = tl.program_id(1)
    tile = tl.program_id(0)
    first_tap = tile % GROUPS * TAPS
    first = tile // GROUPS % (INNER // BK) * BK
    n = tile // (GROUPS * (INNER // BK)) * BN + tl.arange(0, BN)  # out
    k = first + tl.arange(0, BK)
    number = tl.arange(0, PADDED)[:, None, None]
    source = x + client * (pixels // OUT) * (HEIGHT * WIDTH * INNER)
    slopes = dy + client * pixels * outer
    used = n < outer
    total = tl.zeros((PADDED, BN, BK), dtype=tl.float32)
    end = tl.minimum(split * share + share, pixels)
    for start in range(split * share, end, BM):
        m = start + tl.arange(0, BM)
        exists = m < end
        image, pixel = m // OUT, m % OUT
        row, column = pixel // OUT_WIDTH * STRIDE - TOP, pixel % OUT_WIDTH * STRIDE - LEFT
        base = ((image * HEIGHT + row) * WIDTH + column) * INNER
        a = tl.load(slopes + m[:, None] * outer + n[None, :], mask=exists[:, None] & used[None, :], other=0.0)
        for t in tl.static_range(TAPS):
            down, right = (first_tap + t) // COLUMNS, (first_tap + t) % COLUMNS
            seen = exists & (row + down >= 0) & (row + down < HEIGHT) & (column + right >= 0) & (column + right < WIDTH)
            at = (down * WIDTH + right) * INNER
            b = tl.load(source + (base + at)[:, None] + k[None, :], mask=seen[:, None] & (down < ROWS), other=0.0)
            found = tl.dot(tl.trans(a), b, input_precision=PRECISION)
            total += tl.where(number == t, found[None, :, :], 0.0)
    tap = first_tap + number
    at = (split * clients + client) * outer * DEPTH + n[None, :, None] * DEPTH + tap * INNER + k[None, None, :]
    there = used[None, :, None] & (number < TAPS) & (tap < ROWS * COLUMNS)
    tl.store(parts + at, total, mask=there)


# ---- the twins of `plain` ------------------------------------------------------------------------------------------
def power(n: int, low: int, high: int) -> int:
    """The power of two that covers n, within bounds."""
    return min(max(triton.next_power_of_2(n), low), high)


def taps_together(taps: int, tile: int) -> tuple[int, int]:
    """Pixels at once and taps of one program of the weight gradient: small tiles leave room for several."""
    if tile <= 16 * 16:
        return 128, min(taps, 9)
    return 64, min(taps, 3) if tile <= 32 * 32 else 1


def tile(rows: int, columns: int, clients: int) -> tuple[int, int]:
    """How much of a product one program makes: less where there would be too few programs to fill the GPU."""
    bm, bn = power(rows, 16, 128), power(columns, 16, 64)
    while triton.cdiv(rows, bm) * triton.cdiv(columns, bn) * clients < PROGRAMS // 2 and max(bm, bn) > 32:
        bm, bn = (bm // 2, bn) if bm > bn else (bm, bn // 2)
    return bm, bn


def precision(dtype: torch.dtype) -> str:
    return "tf32" if dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32 else "ieee"


def pack(weight: Tensor, where: Geometry, dtype: torch.dtype) -> Tensor:
    clients, outer, inner = weight.shape[:3]
    (down, right), full = where.taps, where.kernel[0] * where.kernel[1]
    packed = torch.empty((clients, outer, down * right * inner), dtype=dtype, device=weight.device)
    padded, pairs = power(down * right, 1, 64), outer * inner
    block = max(16, 2048 // padded)
    _pack[(triton.cdiv(pairs, block), clients)](
        weight, packed, pairs, inner, weight.stride(0), where.rows[0], where.columns[0], where.kernel[1],
        FULL=full, TAPS=down * right, COLUMNS=right, PADDED=padded, BLOCK=block,
    )  # fmt: skip
    return packed


def convolve(x: Tensor, packed: Tensor, where: Geometry) -> Tensor:
    clients, images, height, width, inner = x.shape
    outer, depth = packed.shape[1:]
    y = torch.empty((clients, images, where.out_height, where.out_width, outer), dtype=x.dtype, device=x.device)
    pixels = images * where.out_height * where.out_width
    by_tap = inner % 16 == 0
    bm, bn = tile(pixels, outer, clients)
    bk = next(b for b in (64, 32, 16) if inner % b == 0) if by_tap else power(depth, 16, 32)
    _convolve[(triton.cdiv(pixels, bm) * triton.cdiv(outer, bn), clients)](
        x, packed, y, pixels, height, width, inner, where.out_height, where.out_width, outer, where.top, where.left,
        depth, ROWS=where.taps[0], COLUMNS=where.taps[1], STRIDE=where.stride, PRECISION=precision(x.dtype),
        BM=bm, BN=bn, BK=bk, BY_TAP=by_tap, num_warps=4, num_stages=3,
    )  # fmt: skip
    return y


def convolve_input_gradient(dy: Tensor, packed: Tensor, where: Geometry) -> Tensor:
    clients, images, outer = dy.shape[0], dy.shape[1], dy.shape[4]
    depth = packed.shape[2]
    inner = depth // (where.taps[0] * where.taps[1])
    dx = torch.empty((clients, images, where.height, where.width, inner), dtype=dy.dtype, device=dy.device)
    pixels = images * where.height * where.width
    bm, bn = tile(pixels, inner, clients)
    bk = power(outer, 16, 64)
    _input_gradient[(triton.cdiv(pixels, bm) * triton.cdiv(inner, bn), clients)](
        dy, packed, dx, pixels, where.height, where.width, inner, where.out_height, where.out_width, outer,
        where.top, where.left, depth, ROWS=where.taps[0], COLUMNS=where.taps[1], STRIDE=where.stride,
        PRECISION=precision(dy.dtype), BM=bm, BN=bn, BK=bk, num_warps=4, num_stages=3,
    )  # fmt: skip
    return dx


def convolve_weight_gradient(x: Tensor, dy: Tensor, where: Geometry, into: Tensor) -> None:
    clients, images, height, width, inner = x.shape
    outer, (down, right) = dy.shape[4], where.taps
    depth, pixels = down * right * inner, images * where.out_height * where.out_width
    bn, shared = power(outer, 16, 64), {}
    if inner % 16 == 0:
        bk = next(b for b in (64, 32, 16) if inner % b == 0)
        bm, taps = taps_together(down * right, bn * bk)
        kernel, shared = _weight_gradient_by_tap, {"TAPS": taps, "PADDED": triton.next_power_of_2(taps)}
        tiles = triton.cdiv(outer, bn) * (inner // bk) * triton.cdiv(down * right, taps)
    else:
        bm, bk, kernel = 64, power(depth, 16, 64), _weight_gradient
        tiles = triton.cdiv(outer, bn) * triton.cdiv(depth, bk)
    bm = min(bm, power(pixels, 16, bm))
    splits = max(1, min(triton.cdiv(pixels, SPLIT_ROWS), PROGRAMS // (tiles * clients)))
    share = triton.cdiv(triton.cdiv(pixels, splits), bm) * bm
    splits = triton.cdiv(pixels, share)
    parts = torch.empty((splits, clients, outer, depth), dtype=torch.float32, device=x.device)
    kernel[(tiles, splits, clients)](
        x, dy, parts, pixels, outer, share, clients, HEIGHT=height, WIDTH=width, INNER=inner,
        OUT_HEIGHT=where.out_height, OUT_WIDTH=where.out_width, TOP=where.top, LEFT=where.left, ROWS=down,
        COLUMNS=right, STRIDE=where.stride, PRECISION=precision(x.dtype), BM=bm, BN=bn, BK=bk, num_warps=4,
        num_stages=3, **shared,
    )  # fmt: skip
    if splits > 4:  # summed in parallel; few are added while they are put in order
        parts, splits = parts.sum(0, keepdim=True), 1
    full, pairs = where.kernel[0] * where.kernel[1], outer * inner
    padded = power(full, 1, 64)
    block = max(16, 2048 // padded)
    _unpack[(triton.cdiv(pairs, block), clients)](
        parts, into, pairs, inner, into.stride(0), splits, parts.stride(0), where.rows[0], where.columns[0],
        where.kernel[1], FULL=full, ROWS=down, COLUMNS=right, PADDED=padded, BLOCK=block,
    )  # fmt: skip
