"""A polynomial of square matrices whose squares are known."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # numbers that one program writes


@triton.jit
def _combine(
    p, squared, factor, out, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr,
    SQUARED: tl.constexpr, FACTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = (a I + b P + c P²) f, or P f where there is no square: a stretch of one matrix."""
    start = tl.program_id(0).to(tl.int64) * (ROWS * ROWS)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = at < ROWS * ROWS
    value = tl.load(p + start + at, mask=there).to(tl.float32)
    if SQUARED:
        value = B * value + C * tl.load(squared + start + at, mask=there).to(tl.float32)
        value += tl.where(at % (ROWS + 1) == 0, A, 0.0)
    if FACTOR:
        value *= tl.load(factor + tl.program_id(0))
    tl.store(out + start + at, value.to(out.dtype.element_ty), mask=there)


def combine(p: Tensor, squared: Tensor | None, factor: Tensor | None, of: tuple[float, float, float]) -> Tensor:
    out = torch.empty_like(p)
    a, b, c = of
    rows = p.shape[-1]
    _combine[(len(p), triton.cdiv(rows * rows, BLOCK))](
        p, p if squared is None else squared, p if factor is None else factor, out, A=a, B=b, C=c, ROWS=rows,
        SQUARED=squared is not None, FACTOR=factor is not None, BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip
    return out
