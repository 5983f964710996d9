"""Dropout of stacked clients in one pass: numbers are hashed where they are used, as by `randomness.keyed_bits`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _mix(z):
    z = (z ^ ((z >> 16) & 0xFFFF)) * 0x7FEB352D
    z = (z ^ ((z >> 15) & 0x1FFFF)) * -0x7B935975
    return z ^ ((z >> 16) & 0xFFFF)


@triton.jit
def _drop(x, y, low, high, count, least, scale, BLOCK: tl.constexpr):
    """y = scale · x where the hash of a number's place is at least `least`, else 0; of one client."""
    client, at = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    z = _mix(_mix(at + tl.load(low + client)) ^ tl.load(high + client))
    place = client.to(tl.int64) * count + at
    v = tl.load(x + place, mask=at < count, other=0.0).to(tl.float32)
    tl.store(y + place, tl.where(z >= least, v * scale, 0.0).to(y.dtype.element_ty), mask=at < count)


def drop(x: Tensor, low: Tensor, high: Tensor, least: int, scale: float) -> Tensor:
    """Keep what of x `[clients, …]` has bits of at least `least`, by the words of each client's key, and scale it."""
    x, count = x.contiguous(), x[0].numel()
    y = torch.empty_like(x)
    _drop[(triton.cdiv(count, BLOCK), len(x))](x, y, low, high, count, least, scale, BLOCK=BLOCK)
    return y
