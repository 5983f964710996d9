"""How much of a matrix product one program computes: the fastest sizes measured by `benchmarks/tiles_gpu.py`."""

from __future__ import annotations

from typing import NamedTuple

import torch

PROGRAMS = 132 * 4  # enough of them to fill a large GPU
LARGE = 12_288  # rows of one client beyond which larger tiles still make enough programs


class Tile(NamedTuple):
    """Rows and columns of the result, the length of one piece of the sum, and how it is run."""

    rows: int
    columns: int
    depth: int
    warps: int = 4
    stages: int = 3


def pow2(n: int, low: int, high: int) -> int:
    """Return the smallest power of two that is at least n, within bounds."""
    return min(max(1 << (n - 1).bit_length(), low), high)


def within_tap(channels: int) -> int | None:
    """Return a length of sum that lies within one tap; None where channels are too few."""
    return next((depth for depth in (64, 32, 16) if channels % depth == 0), None)


def product_tile(rows: int, columns: int, channels: int, taps: int, clients: int) -> Tile:
    """Choose the tile of a convolution, or of its gradient by the input."""
    if channels % 64 == 0 and columns >= 64:
        if columns == 64:
            return Tile(128, 64, 64, warps=4 if rows > LARGE else 8) if rows > 64 else Tile(64, 64, 64, stages=4)
        if rows >= LARGE // 4:
            return Tile(128, 128, 64)
        few = -(-rows // 64) * -(-columns // 128) * clients < PROGRAMS // 8  # narrower, so that more of them run
        return Tile(64, 64, 128, stages=4) if few and channels % 128 == 0 else Tile(64, 128, 64, stages=4)
    bm, bn = pow2(rows, 16, 128), pow2(columns, 16, 64)
    while -(-rows // bm) * -(-columns // bn) * clients < PROGRAMS // 2 and max(bm, bn) > 32:
        bm, bn = (bm // 2, bn) if bm > bn else (bm, bn // 2)
    return Tile(bm, bn, within_tap(channels) or pow2(channels * taps, 16, 64))


def weight_tile(pixels: int, outer: int, inner: int, taps: int) -> Tile:
    """Choose the tile of a gradient by the weights; rows are the pixels summed at a time."""
    bn = pow2(outer, 16, 64)
    if inner % 64 == 0:
        wide = outer >= 128 and pixels * outer >= 32 * LARGE
        return Tile(64, 128, 64, warps=8, stages=4) if wide else Tile(pow2(pixels, 16, 64), bn, 64)
    if inner == 16:  # a row of taps: three of them
        return Tile(pow2(pixels, 16, 128), bn, 64, warps=2 if bn == 16 else 4, stages=2)
    if inner >= 16:
        if inner == bn == 32:
            return Tile(pow2(pixels, 16, 64), bn, 32, warps=2, stages=2)
        return Tile(pow2(pixels, 16, 128), bn, 32 if inner % 32 == 0 else pow2(inner * taps, 16, 64), stages=2)
    return Tile(64, bn, 64)  # all taps


def narrow_weight_tile(outer: int, inner: int, taps: int) -> Tile | None:
    """Choose the tile of the same gradient for a row of taps at once; None where channels of dy are not few."""
    if taps == 1 or outer < 16 or inner < 2 * outer or taps * outer > 128 or inner % 64:
        return None
    return Tile(64, pow2(taps * outer, 64, 128), 128 if inner % 128 == 0 else 64, warps=8)


def dot_precision(dtype: torch.dtype) -> str:
    """Return Triton's precision of products: TF32 where PyTorch allows it for float32."""
    return "tf32" if dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32 else "ieee"
