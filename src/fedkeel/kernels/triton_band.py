"""The passes of `band` over whole rows, each reading them once. Products are split in three, which float32 needs."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,no-any-return"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

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
def _subtract(x, low, shapes, out, rows, x_stride, out_stride, scale, WIDTH: tl.constexpr, M: tl.constexpr,
              BR: tl.constexpr, BW: tl.constexpr, BM: tl.constexpr):  # fmt: skip
    """out[client, row, j] = x − scale Σ_m low[client, m, row] · shapes[j, m]."""
    client = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    j, m = tl.arange(0, BW), tl.arange(0, BM)
    there = (row < rows)[:, None] & (j < WIDTH)[None, :]
    a = tl.load(
        low + (client * M + m[None, :]) * rows + row[:, None], mask=(row < rows)[:, None] & (m < M)[None, :], other=0.0
    )
    b = tl.load(shapes + j[None, :] * M + m[:, None], mask=(j < WIDTH)[None, :] & (m < M)[:, None], other=0.0)
    v = tl.load(x + client * x_stride + row[:, None] * WIDTH + j[None, :], mask=there, other=0.0)
    v -= scale * tl.dot(a, b, input_precision="tf32x3")
    tl.store(out + client * out_stride + row[:, None] * WIDTH + j[None, :], v, mask=there)


def remove(x: Tensor, leaves: int, length: int, shapes: Tensor, factors: Tensor, out: Tensor) -> None:
    """x `[clients, leaves · length, width]` without its low band, written to `out`, which is shaped alike."""
    clients, rows, width = x.shape
    m, bins = factors.shape
    wide = triton.next_power_of_2(width)
    sizes = {"WIDTH": width, "M": m, "BR": ROWS, "BW": wide, "BM": max(COUNT, triton.next_power_of_2(m))}
    grid = (triton.cdiv(rows, ROWS), clients)
    thin = torch.empty((clients, m, leaves, length), dtype=x.dtype, device=x.device)
    _analyse[grid](x, shapes, thin, rows, x.stride(0), **sizes, num_warps=4)
    z = torch.fft.rfft(thin)
    half = length // 2 + 1
    low = torch.empty_like(z)
    _project[(triton.cdiv(half, 256), clients * leaves)](
        torch.view_as_real(z), torch.view_as_real(factors), torch.view_as_real(low), leaves, half, bins, M=m, BLOCK=256
    )
    low = torch.fft.irfft(low, n=length)
    _subtract[grid](x, low, shapes, out, rows, x.stride(0), out.stride(0), 1 / width, **sizes, num_warps=4)
