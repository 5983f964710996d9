"""The three passes of `band_tables`: x to partial spectra, to what the band keeps of them, and to x without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedkeel.kernels.band_tables import COUNT, TALL, TURNS, WIDE, Plan

if TYPE_CHECKING:
    from fedkeel.kernels.band import Onto

STEP = 64  # rows of a Fourier matrix at a time


@triton.jit
def _analyse_tile(x, tiles, numbers, parts, stride, size, BI: tl.constexpr, BJ: tl.constexpr, BM: tl.constexpr,
                  BQ: tl.constexpr):  # fmt: skip
    """parts[row, m] = Σ_i fourier[row, i] Σ_j x[i, j] · shapes[j, m], over the i of one tile."""
    entry, client = tiles + tl.program_id(0) * 8, tl.program_id(1).to(tl.int64)
    at, count, width, length = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    shapes, fourier, own = tl.load(entry + 4), tl.load(entry + 5), tl.load(entry + 6)
    if length > 0:  # else left alone
        i, j, m = tl.arange(0, BI), tl.arange(0, BJ), tl.arange(0, BM)
        here = i[:, None] * width + j[None, :]
        v = tl.load(x + client * stride + at + here, mask=(j < width)[None, :] & (here < count), other=0.0)
        basis = tl.load(numbers + shapes + j[:, None] * BM + m[None, :], mask=(j < width)[:, None], other=0.0)
        thin = tl.dot(v, basis, input_precision="tf32x3")
        rows = (length // 2 + 1) * 2
        for first in range(0, rows, BQ):
            q = first + tl.arange(0, BQ)
            there = (q < rows)[:, None] & (i * width < count)[None, :]
            turn = tl.load(numbers + fourier + q[:, None] * length + i[None, :], mask=there, other=0.0)
            found = tl.dot(turn, thin, input_precision="tf32x3")
            tl.store(parts + client * size + own + q[:, None] * BM + m[None, :], found, mask=(q < rows)[:, None])


@triton.jit
def _keep_band(parts, pieces, numbers, spectra, size, spectra_size, BM: tl.constexpr, BR: tl.constexpr):
    """What the coefficients q = k · length ± r below `bins` are, and what they make of each row r of the spectrum."""
    entry, client = pieces + tl.program_id(0) * 8, tl.program_id(1).to(tl.int64)
    own, tiles, length, bins = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    factors, into, first = tl.load(entry + 4), tl.load(entry + 5), tl.load(entry + 6)
    half = length // 2 + 1
    r, m = first + tl.arange(0, BR), tl.arange(0, BM)
    here, known = r[:, None] * BM + m[None, :], (r < half)[:, None]
    cosine = tl.zeros((BR, BM), dtype=tl.float32)
    sine = tl.zeros((BR, BM), dtype=tl.float32)
    for tile in range(tiles):
        source = parts + client * size + own + tile * (2 * half * BM) + here
        cosine += tl.load(source, mask=known, other=0.0)
        sine += tl.load(source + half * BM, mask=known, other=0.0)
    kept_cosine = tl.zeros((BR, BM), dtype=tl.float32)
    kept_sine = tl.zeros((BR, BM), dtype=tl.float32)
    alone = ((r == 0) | (2 * r == length)).to(tl.int32)  # such a row is its own mirror image
    for twice in range(2 * ((bins + length - 1) // length) + 1):
        sign = 1 - twice % 2 * 2
        q = (twice + 1) // 2 * length + sign * r
        low = (r < half) & (q < bins) & (alone * (twice % 2) == 0)
        at = numbers + factors + q[:, None] * BM + m[None, :]
        c = tl.load(at, mask=low[:, None], other=0.0)
        s = tl.load(at + bins * BM, mask=low[:, None], other=0.0)
        turned = sine * sign
        even = tl.sum(c * cosine - s * turned, 1)[:, None]
        odd = tl.sum(c * turned + s * cosine, 1)[:, None]
        kept_cosine += even * c + odd * s
        kept_sine += (odd * c - even * s) * sign
    target = spectra + client * spectra_size + into + here
    tl.store(target, kept_cosine, mask=known)
    tl.store(target + half * BM, kept_sine, mask=known)


@triton.jit
def _subtract_tile(x, tiles, numbers, spectra, out, plus, factor, x_stride, out_stride, plus_stride, size,
                   BI: tl.constexpr, BJ: tl.constexpr, BM: tl.constexpr, BQ: tl.constexpr,
                   ONTO: tl.constexpr):  # fmt: skip
    """out = x − Σ_m shapes[j, m] Σ_row fourier[row, i] · spectra[row, m]; ONTO: plus + factor[client] · that."""
    entry, client = tiles + tl.program_id(0) * 8, tl.program_id(1).to(tl.int64)
    at, count, width, length = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    shapes, fourier, own = tl.load(entry + 4), tl.load(entry + 5), tl.load(entry + 7)
    i, j, m = tl.arange(0, BI), tl.arange(0, BJ), tl.arange(0, BM)
    here = i[:, None] * width + j[None, :]
    inside = (j < width)[None, :] & (here < count)
    low = tl.zeros((BI, BJ), dtype=tl.float32)
    if length > 0:
        thin = tl.zeros((BI, BM), dtype=tl.float32)
        rows = (length // 2 + 1) * 2
        for first in range(0, rows, BQ):
            q = first + tl.arange(0, BQ)
            there = (q < rows)[None, :] & (i * width < count)[:, None]
            turn = tl.load(numbers + fourier + q[None, :] * length + i[:, None], mask=there, other=0.0)
            kept = tl.load(
                spectra + client * size + own + q[:, None] * BM + m[None, :], mask=(q < rows)[:, None], other=0.0
            )
            thin = tl.dot(turn, kept, thin, input_precision="tf32x3")
        basis = tl.load(numbers + shapes + j[None, :] * BM + m[:, None], mask=(j < width)[None, :], other=0.0)
        low = tl.dot(thin, basis, input_precision="tf32x3")
    v = tl.load(x + client * x_stride + at + here, mask=inside, other=0.0) - low
    if ONTO:
        v = tl.load(plus + client * plus_stride + at + here, mask=inside, other=0.0) + v * tl.load(factor + client)
    tl.store(out + client * out_stride + at + here, v, mask=inside)


def remove_short_bands(source: Tensor, plan: Plan, target: Tensor, onto: Onto | None) -> None:
    """Filter the spans of a buffer `[clients, D]` that the tables serve; `target` gets what `onto` makes of them."""
    clients, sizes = len(source), {"BI": TALL, "BJ": WIDE, "BM": COUNT, "BQ": STEP}
    parts = torch.empty((clients, plan.parts), dtype=torch.float32, device=source.device)
    spectra = torch.empty((clients, plan.spectra), dtype=torch.float32, device=source.device)
    grid = (len(plan.tiles), clients)
    _analyse_tile[grid](source, plan.tiles, plan.numbers, parts, source.stride(0), plan.parts, **sizes, num_warps=4)
    _keep_band[(len(plan.pieces), clients)](
        parts, plan.pieces, plan.numbers, spectra, plan.parts, plan.spectra, BM=COUNT, BR=TURNS, num_warps=2
    )
    plus, scale = (source, source) if onto is None else (onto.plus, onto.scale.contiguous())
    _subtract_tile[grid](
        source, plan.tiles, plan.numbers, spectra, target, plus, scale, source.stride(0), target.stride(0),
        plus.stride(0), plan.spectra, **sizes, ONTO=onto is not None, num_warps=4,
    )  # fmt: skip
