"""The passes of `band` over whole rows, each reading them once. Products are split in three, which float32 needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from fedkeel.kernels.band import Basis, Onto

ROWS, COUNT = 64, 16  # rows of a program; at least so many functions of the basis, filled up with zeros
TURNS = 64  # numbers of a short spectrum for a program


@triton.jit
def _analyse(x, shapes, thin, rows, client_stride, WIDTH: tl.constexpr, M: tl.constexpr, BR: tl.constexpr,
             BW: tl.constexpr, BM: tl.constexpr):  # fmt: skip
    """thin[client, m, row] = Σ_j x[client, row, j] · shapes[j, m]."""
    client = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    j, m = tl.arange(0, BW), tl.arange(0, BM)
    there = (row < rows)[:, None] & (j < WIDTH)[None, :]
    a = tl.load(x + client * client_stride + row[:, None] * WIDTH + j[None, :], mask=there, other=0.0)
    b = tl.load(shapes + j[:, None] * M + m[None, :], mask=(j < WIDTH)[:, None] & (m < M)[None, :], other=0.0)
    found = tl.dot(a, b, input_precision="tf32x3")
    at = (client * M + m[None, :]) * rows + row[:, None]
    tl.store(thin + at, found, mask=(row < rows)[:, None] & (m < M)[None, :])


@triton.jit
def _project(z, factors, out, leaves, length, bins, M: tl.constexpr, BR: tl.constexpr, BM: tl.constexpr):
    """out[m, r] = Σ_q conj(factors[q, m]) X[q], X[q] = Σ_k factors[q, k] z[k, r], over q = n · length ± r below `bins`.

    Where the sign is −, z and what is put back are conjugate. Numbers are pairs (real, imaginary).
    """
    # neighbouring programs read the same factors
    client = (tl.program_id(0) // leaves).to(tl.int64)
    leaf = tl.program_id(0) % leaves
    half = length // 2 + 1
    r, m = tl.program_id(1) * BR + tl.arange(0, BR), tl.arange(0, BM)
    known = (r < half)[:, None] & (m < M)[None, :]
    at = 2 * (((client * M + m[None, :]) * leaves + leaf) * half + r[:, None])
    real = tl.load(z + at, mask=known, other=0.0)
    imaginary = tl.load(z + at + 1, mask=known, other=0.0)
    kept_real = tl.zeros((BR, BM), dtype=tl.float32)
    kept_imaginary = tl.zeros((BR, BM), dtype=tl.float32)
    alone = ((r == 0) | (2 * r == length)).to(tl.int32)  # such a number is its own mirror image
    for twice in range(2 * ((bins + length - 1) // length) + 1):
        sign = 1 - twice % 2 * 2
        q = (twice + 1) // 2 * length + sign * r
        low = (q < bins) & (alone * (twice % 2) == 0)
        where = factors + 2 * (q[:, None] * M + m[None, :])
        c = tl.load(where, mask=known & low[:, None], other=0.0)
        d = tl.load(where + 1, mask=known & low[:, None], other=0.0)
        turned = imaginary * sign
        # irfft counts a number that is its own image once, and the others with their image
        count = (1 + alone * (q > 0).to(tl.int32))[:, None]
        x = tl.sum(real * c - turned * d, 1)[:, None] * count
        y = tl.sum(real * d + turned * c, 1)[:, None] * count
        kept_real += x * c + y * d
        kept_imaginary += (y * c - x * d) * sign
    tl.store(out + at, kept_real, mask=known)
    tl.store(out + at + 1, kept_imaginary, mask=known)


@triton.jit
def _subtract(x, low, shapes, out, plus, factor, rows, x_stride, out_stride, plus_stride, share, WIDTH: tl.constexpr,
              M: tl.constexpr, BR: tl.constexpr, BW: tl.constexpr, BM: tl.constexpr, ONTO: tl.constexpr):  # fmt: skip
    """out[client, row, j] = x − share Σ_m low[client, m, row] · shapes[j, m]; ONTO: plus + factor[client] · that."""
    client = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    j, m = tl.arange(0, BW), tl.arange(0, BM)
    there = (row < rows)[:, None] & (j < WIDTH)[None, :]
    at = row[:, None] * WIDTH + j[None, :]
    v = tl.load(x + client * x_stride + at, mask=there, other=0.0)
    a = tl.load(
        low + (client * M + m[None, :]) * rows + row[:, None], mask=(row < rows)[:, None] & (m < M)[None, :], other=0.0
    )
    b = tl.load(shapes + j[None, :] * M + m[:, None], mask=(j < WIDTH)[None, :] & (m < M)[:, None], other=0.0)
    v -= share * tl.dot(a, b, input_precision="tf32x3")
    if ONTO:
        v = tl.load(plus + client * plus_stride + at, mask=there, other=0.0) + v * tl.load(factor + client)
    tl.store(out + client * out_stride + at, v, mask=there)


def remove_low_bands(source: Tensor, leaves: int, basis: Basis, target: Tensor, onto: Onto | None) -> None:
    """Remove the low bands of rows `[clients, leaves · n]`; `target` gets the rest, or what `onto` makes of it."""
    length, width, shapes, factors = basis
    (bins, m), clients, rows = factors.shape, len(source), leaves * length
    sizes = {"WIDTH": width, "M": m, "BW": triton.next_power_of_2(width), "BM": max(COUNT, triton.next_power_of_2(m))}
    thin = torch.empty((clients, m, leaves, length), dtype=source.dtype, device=source.device)
    _analyse[(triton.cdiv(rows, ROWS), clients)](
        source, shapes, thin, rows, source.stride(0), **sizes, BR=ROWS, num_warps=4
    )
    z = torch.fft.rfft(thin)
    low = torch.empty_like(z)
    _project[(clients * leaves, triton.cdiv(length // 2 + 1, TURNS))](
        torch.view_as_real(z), torch.view_as_real(factors), torch.view_as_real(low), leaves, length, bins,
        M=m, BR=TURNS, BM=sizes["BM"], num_warps=4,
    )  # fmt: skip
    low = torch.fft.irfft(low, n=length, norm="forward")  # not divided: the last pass does that
    plus, scale = (source, source) if onto is None else (onto.plus, onto.scale.contiguous())
    _subtract[(triton.cdiv(rows, ROWS), clients)](
        source, low, shapes, target, plus, scale, rows, source.stride(0), target.stride(0), plus.stride(0),
        1 / (width * length),
        **sizes, BR=ROWS, ONTO=onto is not None, num_warps=4,
    )  # fmt: skip
