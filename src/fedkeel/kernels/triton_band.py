"""The passes of `band` over whole rows, each reading them once. Products are split in three, which float32 needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from fedkeel.kernels.band import Basis, Onto

ROWS, COUNT = 64, 16  # rows of a program; functions of the basis, filled up with zeros


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
def _project(z, factors, out, leaves, half, bins, M: tl.constexpr, BLOCK: tl.constexpr):
    """out[m] = conj(factors[m]) Σ_k factors[k] z[k] below `bins`, zero above; numbers are pairs (real, imaginary)."""
    client = (tl.program_id(1) // leaves).to(tl.int64)
    leaf = tl.program_id(1) % leaves
    q = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    low = q < bins
    real = tl.zeros((BLOCK,), dtype=tl.float32)
    imaginary = tl.zeros((BLOCK,), dtype=tl.float32)
    for k in range(M):
        at = ((client * M + k) * leaves + leaf) * half + q
        a, b = tl.load(z + 2 * at, mask=low, other=0.0), tl.load(z + 2 * at + 1, mask=low, other=0.0)
        c, d = (
            tl.load(factors + 2 * (k * bins + q), mask=low, other=0.0),
            tl.load(factors + 2 * (k * bins + q) + 1, mask=low, other=0.0),
        )
        real += a * c - b * d
        imaginary += a * d + b * c
    for k in range(M):
        at = ((client * M + k) * leaves + leaf) * half + q
        c, d = (
            tl.load(factors + 2 * (k * bins + q), mask=low, other=0.0),
            tl.load(factors + 2 * (k * bins + q) + 1, mask=low, other=0.0),
        )
        tl.store(out + 2 * at, real * c + imaginary * d, mask=q < half)
        tl.store(out + 2 * at + 1, imaginary * c - real * d, mask=q < half)


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
    (m, bins), clients, rows = factors.shape, len(source), leaves * length
    sizes = {"WIDTH": width, "M": m, "BW": triton.next_power_of_2(width), "BM": max(COUNT, triton.next_power_of_2(m))}
    thin = torch.empty((clients, m, leaves, length), dtype=source.dtype, device=source.device)
    _analyse[(triton.cdiv(rows, ROWS), clients)](
        source, shapes, thin, rows, source.stride(0), **sizes, BR=ROWS, num_warps=4
    )
    z = torch.fft.rfft(thin)
    half = length // 2 + 1
    low = torch.empty_like(z)
    _project[(triton.cdiv(half, 256), clients * leaves)](
        torch.view_as_real(z), torch.view_as_real(factors), torch.view_as_real(low), leaves, half, bins, M=m, BLOCK=256
    )
    low = torch.fft.irfft(low, n=length, norm="forward")  # not divided: the last pass does that
    plus, scale = (source, source) if onto is None else (onto.plus, onto.scale.contiguous())
    _subtract[(triton.cdiv(rows, ROWS), clients)](
        source, low, shapes, target, plus, scale, rows, source.stride(0), target.stride(0), plus.stride(0),
        1 / (width * length),
        **sizes, BR=ROWS, ONTO=onto is not None, num_warps=4,
    )  # fmt: skip
