"""What group norms and batch norms share on the way back: slopes behind a ReLU, and sums over images."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def slopes_behind_relu(dz, y, v, here, near, scale, shift, SHORTCUT: tl.constexpr, RELU: tl.constexpr):
    """The slopes of what the ReLU was given. Without a shortcut, what it let through is worked out again from x."""
    if RELU:
        if SHORTCUT:
            dz = tl.where(tl.load(y + here, mask=near, other=0.0) > 0, dz, 0.0)
        else:
            dz = tl.where(v * scale[None, :] + shift[None, :] > 0, dz, 0.0)
    return dz


@triton.jit
def _sum_images(
    parts, gain, bias, images, clients, gain_stride, bias_stride, CHANNELS: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(0).to(tl.int64)
    which = tl.program_id(1)  # 0: gain, 1: bias
    channel = tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    total = tl.zeros((WIDE,), dtype=tl.float32)
    for first in range(0, images, BLOCK):
        image = first + tl.arange(0, BLOCK)
        at = ((which * clients + client) * images + image)[:, None] * CHANNELS + channel[None, :]
        total += tl.sum(tl.load(parts + at, mask=(image < images)[:, None], other=0.0), 0)
    if which == 0:
        tl.store(gain + client * gain_stride + channel, total)
    else:
        tl.store(bias + client * bias_stride + channel, total)


def sum_images(parts: Tensor, into: tuple[Tensor, Tensor]) -> None:
    """Add up the slopes of gain and bias, `[2, clients, images, channels]`, over images or other parts."""
    _, clients, images, channels = parts.shape
    wide = min(channels & -channels, 64)
    _sum_images[(clients, 2, channels // wide)](
        parts, *into, images, clients, into[0].stride(0), into[1].stride(0), CHANNELS=channels, WIDE=wide, BLOCK=64
    )


def as_rows(x: Tensor) -> Tensor:
    """View images as pixels `[pixels, channels]` that lie evenly apart, as those of a piece of wider images do."""
    rows = x.flatten(0, 3)
    return rows if rows.stride(1) == 1 else rows.contiguous()
