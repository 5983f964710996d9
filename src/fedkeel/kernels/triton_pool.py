"""Pooling with channels last, and its gradient without atomics. The twins are torch's own max_pool2d and avg_pool2d."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _pool(x, y, taps, count, height, width, out_height, out_width, channels, SIZE: tl.constexpr, STRIDE: tl.constexpr,
          PADDING: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The largest value of each window, and which of its pixels (the first of several) has it; of one client."""
    client, at = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x += client * (count // (out_height * out_width)) * (height * width)
    y += client * count
    taps += client * count
    channel, pixel = at % channels, at // channels
    column, row = pixel % out_width * STRIDE - PADDING, pixel // out_width % out_height * STRIDE - PADDING
    image = pixel // (out_width * out_height)
    best = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    which = tl.zeros((BLOCK,), dtype=tl.int32)
    for tap in tl.static_range(SIZE * SIZE):
        i, j = row + tap // SIZE, column + tap % SIZE
        inside = (at < count) & (i >= 0) & (i < height) & (j >= 0) & (j < width)
        source = x + ((image * height + i) * width + j) * channels + channel
        v = tl.load(source, mask=inside, other=float("-inf")).to(tl.float32)
        larger = (v > best) | (v != v)  # what is not a number is not lost
        which, best = tl.where(larger, tap, which), tl.where(larger, v, best)
    tl.store(y + at, best.to(y.dtype.element_ty), mask=at < count)
    tl.store(taps + at, which.to(taps.dtype.element_ty), mask=at < count)


@triton.jit
def _pool_gradient(dy, taps, dx, count, height, width, out_height, out_width, channels, SIZE: tl.constexpr,
                   STRIDE: tl.constexpr, PADDING: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Each pixel gathers from the windows that chose it; of one client."""
    client, at = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    windows = client * (count // (height * width)) * (out_height * out_width)
    dy += windows
    taps += windows
    dx += client * count
    channel, pixel = at % channels, at // channels
    column, row = pixel % width + PADDING, pixel // width % height + PADDING
    image = pixel // (width * height)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for tap in tl.static_range(SIZE * SIZE):
        i, j = row - tap // SIZE, column - tap % SIZE
        inside = (at < count) & (i >= 0) & (i % STRIDE == 0) & (i // STRIDE < out_height)
        inside = inside & (j >= 0) & (j % STRIDE == 0) & (j // STRIDE < out_width)
        window = ((image * out_height + i // STRIDE) * out_width + j // STRIDE) * channels + channel
        chosen = inside & (tl.load(taps + window, mask=inside, other=-1) == tap)
        total += tl.load(dy + window, mask=chosen, other=0.0).to(tl.float32)
    tl.store(dx + at, total.to(dx.dtype.element_ty), mask=at < count)


@triton.jit
def _average(x, y, count, height, width, out_height, out_width, channels, SIZE: tl.constexpr, BACK: tl.constexpr,
             BLOCK: tl.constexpr):  # fmt: skip
    """The mean of each window, where windows lie side by side; BACK: each pixel's share of its window's slope."""
    client, at = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x += client * (count // (out_height * out_width)) * (height * width)
    y += client * count
    channel, pixel = at % channels, at // channels
    column, row = pixel % out_width * SIZE, pixel // out_width % out_height * SIZE
    corner = ((pixel // (out_width * out_height) * height + row) * width + column) * channels + channel
    if BACK:
        total = tl.load(y + at, mask=at < count, other=0.0).to(tl.float32) / (SIZE * SIZE)
    else:
        total = tl.zeros((BLOCK,), dtype=tl.float32)
    for tap in tl.static_range(SIZE * SIZE):
        place = x + corner + (tap // SIZE * width + tap % SIZE) * channels
        if BACK:
            tl.store(place, total.to(x.dtype.element_ty), mask=at < count)
        else:
            total += tl.load(place, mask=at < count, other=0.0).to(tl.float32)
    if not BACK:
        tl.store(y + at, (total / (SIZE * SIZE)).to(y.dtype.element_ty), mask=at < count)


def pool(x: Tensor, size: int, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    """Of x `[clients, batch, height, width, channels]`: the pooled images, and which pixels were chosen."""
    height, width, channels = x.shape[2:]
    out_height, out_width = ((n + 2 * padding - size) // stride + 1 for n in (height, width))
    y = torch.empty((*x.shape[:2], out_height, out_width, channels), dtype=x.dtype, device=x.device)
    taps = torch.empty(y.shape, dtype=torch.int8 if size * size < 128 else torch.int16, device=x.device)
    _pool[(triton.cdiv(y[0].numel(), BLOCK), len(y))](
        x, y, taps, y[0].numel(), height, width, out_height, out_width, channels, SIZE=size, STRIDE=stride,
        PADDING=padding, BLOCK=BLOCK,
    )  # fmt: skip
    return y, taps


def pool_gradient(dy: Tensor, taps: Tensor, height: int, width: int, size: int, stride: int, padding: int) -> Tensor:
    dx = torch.empty((*dy.shape[:2], height, width, dy.shape[-1]), dtype=dy.dtype, device=dy.device)
    _pool_gradient[(triton.cdiv(dx[0].numel(), BLOCK), len(dx))](
        dy, taps, dx, dx[0].numel(), height, width, dy.shape[2], dy.shape[3], dy.shape[4], SIZE=size, STRIDE=stride,
        PADDING=padding, BLOCK=BLOCK,
    )  # fmt: skip
    return dx


def average(x: Tensor, size: int) -> Tensor:
    """The means of windows that lie side by side."""
    height, width, channels = x.shape[2:]
    y = torch.empty((*x.shape[:2], height // size, width // size, channels), dtype=x.dtype, device=x.device)
    _launch_average(x, y, size, back=False)
    return y


def average_gradient(dy: Tensor, height: int, width: int, size: int) -> Tensor:
    make = torch.zeros if height % size or width % size else torch.empty  # pixels in no window have no slope
    dx = make((*dy.shape[:2], height, width, dy.shape[-1]), dtype=dy.dtype, device=dy.device)
    _launch_average(dx, dy, size, back=True)
    return dx


def _launch_average(x: Tensor, y: Tensor, size: int, back: bool) -> None:
    _average[(triton.cdiv(y[0].numel(), BLOCK), len(y))](
        x, y, y[0].numel(), *x.shape[2:4], *y.shape[2:], SIZE=size, BACK=back, BLOCK=BLOCK
    )
