"""Copy pieces of stacked rows to places that products like, in another precision."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _copy_pieces(source, target, pieces, source_stride, target_stride, BLOCK: tl.constexpr):
    """One piece of one client, number by number: it may be read from anywhere, so that nothing lies in fours."""
    client = tl.program_id(1).to(tl.int64)
    piece = pieces + 3 * tl.program_id(0)
    start, place, count = tl.load(piece), tl.load(piece + 1), tl.load(piece + 2)
    at = tl.arange(0, BLOCK)
    value = tl.load(source + client * source_stride + start + at, mask=at < count)
    tl.store(target + client * target_stride + place + at, value.to(target.dtype.element_ty), mask=at < count)


def copy_pieces(source: Tensor, target: Tensor, pieces: Tensor, block: int) -> None:
    _copy_pieces[(len(pieces), len(target))](
        source, target, pieces, source.stride(0), target.stride(0), BLOCK=block, num_warps=8
    )
