"""Group norms of any eighth number of channels, from the kernels of batch norms: an image stands for a client there.

`triton_norm` reads an image once, where channels and groups are powers of two; this reads it twice. Twins in `plain`.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,no-any-return"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedkeel.kernels.triton_batch import _moments, _rescale, _slopes

__all__ = ["normalise", "normalise_gradient", "supports"]


@triton.jit
def _combine(
    dz, x, by_slope, by_value, alone, dx, rows, CHANNELS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """dx = by_slope · dz + by_value · x + alone, with numbers of each image and channel."""
    image = tl.program_id(1).to(tl.int64)
    row, channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    there = (row < rows)[:, None]
    at = image * rows * CHANNELS + row[:, None] * CHANNELS + channel[None, :]
    of = image * CHANNELS + channel
    slope = tl.load(dz + at, mask=there, other=0.0).to(tl.float32) * tl.load(by_slope + of)[None, :]
    slope += tl.load(x + at, mask=there, other=0.0).to(tl.float32) * tl.load(by_value + of)[None, :]
    slope += tl.load(alone + of)[None, :]
    tl.store(dx + at, slope.to(dx.dtype.element_ty), mask=there)


def supports(channels: int, groups: int) -> bool:
    """Whether these kernels take it: a program has eight channels at least."""
    return channels % 8 == 0 and channels % groups == 0


def launch_shape(x: Tensor) -> tuple[int, int, int, int]:
    """Return the images, the pixels of one, and the pixels and channels that a program takes at a time."""
    pixels, channels = x.shape[2] * x.shape[3], x.shape[4]
    wide = min(channels & -channels, 64)
    return x.shape[0] * x.shape[1], pixels, min(triton.next_power_of_2(pixels), 4096 // wide), wide


def over_channels(of_groups: Tensor, channels: int) -> Tensor:
    """Repeat numbers of groups `[clients, images, groups]` for their channels."""
    clients, images, groups = of_groups.shape
    return of_groups.unsqueeze(-1).expand(clients, images, groups, channels // groups).reshape(clients, images, -1)


def normalise(
    x: Tensor, gain: Tensor, bias: Tensor, groups: int, epsilon: float, shortcut: Tensor | None, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    (images, pixels, block, wide), channels = launch_shape(x), x.shape[4]
    means, squares = torch.empty((2, *x.shape[:2], channels), dtype=torch.float32, device=x.device)
    counts = torch.empty((images,), dtype=torch.float32, device=x.device)
    _moments[(1, images, channels // wide)](
        x, x, counts, means, squares, pixels, pixels, 1, triton.cdiv(pixels, block), CHANNELS=channels, WIDE=wide,
        BLOCK=block, MASKED=False, num_warps=4,
    )  # fmt: skip
    by_group = means.unflatten(-1, (groups, -1))
    mean = by_group.mean(-1)
    spread = (by_group - mean.unsqueeze(-1)).square().mean(-1)
    inverse = (squares.unflatten(-1, (groups, -1)).mean(-1) / pixels + spread + epsilon).rsqrt()
    scale = gain.unsqueeze(1) * over_channels(inverse, channels)
    shift = bias.unsqueeze(1) - over_channels(mean, channels) * scale
    y = torch.empty_like(x)
    _rescale[(triton.cdiv(pixels, block), images, channels // wide)](
        x, scale, shift, x if shortcut is None else shortcut, y, pixels, CHANNELS=channels, WIDE=wide, BLOCK=block,
        SHORTCUT=shortcut is not None, RELU=relu, num_warps=4,
    )  # fmt: skip
    return y, mean, inverse


def normalise_gradient(
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    gain: Tensor,
    relu: bool,
    into: tuple[Tensor, Tensor],
    joins: bool,
) -> tuple[Tensor, Tensor | None]:
    (images, pixels, block, wide), channels, groups = launch_shape(x), x.shape[4], mean.shape[-1]
    apart = relu or joins  # whether slopes differ from dy
    dx, dz = torch.empty_like(x), torch.empty_like(x) if apart else dy
    means, inverses = over_channels(mean, channels), over_channels(inverse, channels)
    dgain, dbias = torch.empty((2, *x.shape[:2], channels), dtype=torch.float32, device=x.device)
    _slopes[(1, images, channels // wide)](
        dy, y, x, means, inverses, inverses, inverses, dgain, dbias, dz if apart else dx, pixels, 1,
        triton.cdiv(pixels, block), CHANNELS=channels, WIDE=wide, BLOCK=block, SHORTCUT=apart, RELU=relu, num_warps=4
    )  # fmt: skip
    into[0].copy_(dgain.sum(1))
    into[1].copy_(dbias.sum(1))
    sums = (gain.unsqueeze(1) * torch.stack([dbias, dgain])).unflatten(-1, (groups, -1)).mean(-1) / pixels
    tilt = over_channels(inverse.square() * sums[1], channels)
    alone = means * tilt - over_channels(inverse * sums[0], channels)
    _combine[(triton.cdiv(pixels, block), images, channels // wide)](
        dz, x, gain.unsqueeze(1) * inverses, -tilt, alone, dx, pixels, CHANNELS=channels, WIDE=wide, BLOCK=block,
        num_warps=4,
    )  # fmt: skip
    return dx, dz if joins else None
