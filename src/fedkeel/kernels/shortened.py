"""All weights of stacked clients in the precision of the arithmetic, brought there by one kernel.

On a GPU each leaf begins at a multiple of 64 numbers, and so does each client's row: products of matrices that lie at
odd places take several times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from fedkeel.core.layout import Layout
from fedkeel.core.trees import Tree
from fedkeel.kernels.layers import GPU_TYPES

UNIT = 64  # numbers: 128 bytes in bfloat16
BLOCK = 4096  # numbers that one program copies


class Leaves(Protocol):
    """Stacked leaves by name."""

    def __getitem__(self, name: str) -> Tensor: ...


@dataclass(frozen=True)
class AlignedLeaves:
    """Leaves in one buffer `[clients, numbers]`, each at a multiple of `UNIT`."""

    buffer: Tensor
    layout: Layout

    def __getitem__(self, name: str) -> Tensor:
        start, length = aligned_starts(self.layout)[name], self.layout.spans[name][1]
        return self.buffer.narrow(1, start, length).view(len(self.buffer), *self.layout.shapes[name])


def shorten(params: Tree, dtype: torch.dtype) -> Leaves:
    """Convert all leaves at once."""
    if params.buffer.is_cuda and dtype in GPU_TYPES:
        return align(params, dtype)
    return Tree(params.buffer.to(dtype), params.layout)


def align(params: Tree, dtype: torch.dtype) -> AlignedLeaves:
    """Convert all leaves by the Triton kernel."""
    from fedkeel.kernels import triton_shorten

    layout, device = params.layout, params.buffer.device
    width = sum(round_up(length) for _, length in layout.spans.values())
    into = torch.empty((len(params.buffer), width), dtype=dtype, device=device)
    triton_shorten.copy_pieces(params.buffer, into, list_pieces(layout, device), BLOCK)
    return AlignedLeaves(into, layout)


def round_up(length: int) -> int:
    return -(-length // UNIT) * UNIT


@cache
def aligned_starts(layout: Layout) -> dict[str, int]:
    """Say where each leaf begins."""
    starts, start = {}, 0
    for name, (_, length) in layout.spans.items():
        starts[name] = start
        start += round_up(length)
    return starts


@cache
def list_pieces(layout: Layout, device: torch.device) -> Tensor:
    """List what a program copies: where it is read, where it is written, and how many numbers it has."""
    starts = aligned_starts(layout)
    pieces = [
        (offset + first, starts[name] + first, min(BLOCK, length - first))
        for name, (offset, length) in layout.spans.items()
        for first in range(0, length, BLOCK)
    ]
    return torch.tensor(pieces, dtype=torch.int64, device=device)
