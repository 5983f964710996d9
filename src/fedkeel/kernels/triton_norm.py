"""Group norm, shortcut and ReLU in one pass, for any number of channels and groups. Twins in `plain`."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedkeel.kernels.side_stream import SideStream
from fedkeel.kernels.triton_slopes import as_rows, slopes_behind_relu, sum_images

WHOLE_IMAGE = 16384  # numbers that a program keeps in registers, as they were loaded
PIECE = 4096  # numbers that it takes at a time of larger images


@triton.jit
def _groups(v, LANES: tl.constexpr, GROUPS: tl.constexpr):
    """Sums over the channels of each group."""
    return tl.sum(tl.reshape(v, (GROUPS, LANES // GROUPS)), 1)


@triton.jit
def _channels(v, LANES: tl.constexpr, GROUPS: tl.constexpr):
    """Each group's number for all its channels."""
    return tl.reshape(tl.broadcast_to(v[:, None], (GROUPS, LANES // GROUPS)), (LANES,))


@triton.jit
def _spread(span, SIZE: tl.constexpr, LANES: tl.constexpr, GROUPS: tl.constexpr):
    """The channel of each lane, and which lanes have one: each group is filled up to a power of two."""
    PADDED: tl.constexpr = LANES // GROUPS
    lane = tl.arange(0, LANES)
    if PADDED == SIZE:
        channel, used = span * LANES + lane, lane < LANES
    else:
        channel, used = (span * GROUPS + lane // PADDED) * SIZE + lane % PADDED, lane % PADDED < SIZE
    return channel, used


@triton.jit
def _near(row, used, pixels, EVEN: tl.constexpr):
    """Which numbers of a piece are there."""
    if EVEN:
        near = (row >= 0)[:, None] & used[None, :]
    else:
        near = (row < pixels)[:, None] & used[None, :]
    return near


@triton.jit
def _again(kept, behind, zero):
    """Turn what was loaded to float32 once more, `behind` something: so 16 bits are kept of it meanwhile, not 32."""
    if kept.dtype.primitive_bitwidth == 16:
        nothing = (behind.to(tl.int32, bitcast=True) & zero).to(tl.int16)  # `zero` is 0, which the compiler cannot know
        kept = (kept.to(tl.int16, bitcast=True) ^ nothing[None, :]).to(kept.dtype, bitcast=True)
    return kept.to(tl.float32)


@triton.jit
def _normalise(
    x, gain, bias, shortcut, y, means, inverses, images, pixels, gain_stride, bias_stride, epsilon, zero,
    CHANNELS: tl.constexpr, SIZE: tl.constexpr, GROUPS: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr,
    SHORTCUT: tl.constexpr, RELU: tl.constexpr, PIECES: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """GROUPS groups of SIZE channels of one image, which is read once if its PIECES stay in registers.

    EVEN: the last piece is full. Without PIECES, sums are of distances from the first pixel, so that those of squares
    lose nothing far from zero; the second reading begins with what was read last, which is near.
    """
    SPANS: tl.constexpr = CHANNELS // (SIZE * GROUPS)
    image, span = (tl.program_id(0) // SPANS).to(tl.int64), tl.program_id(0) % SPANS
    client = image // images
    channel, used = _spread(span, SIZE, LANES, GROUPS)
    row = tl.arange(0, BLOCK)
    start = image * pixels * CHANNELS
    at = row[:, None] * CHANNELS + channel[None, :]
    if PIECES:
        kept, total = tl.tuple(()), tl.zeros((BLOCK, LANES), dtype=tl.float32)
        square = total
        for piece in tl.static_range(PIECES):
            near = _near(piece * BLOCK + row, used, pixels, EVEN)
            kept += (tl.load(x + start + piece * BLOCK * CHANNELS + at, mask=near, other=0.0),)
        for piece in tl.static_range(PIECES):
            total += kept[piece].to(tl.float32)
        means_of = _groups(tl.sum(total, 0), LANES, GROUPS) / (pixels * SIZE)
        mean = _channels(means_of, LANES, GROUPS)
        for piece in tl.static_range(PIECES):
            near, v = _near(piece * BLOCK + row, used, pixels, EVEN), _again(kept[piece], mean, zero)
            far = tl.where(near, v - mean[None, :], 0.0)
            square += far * far
        variance = _groups(tl.sum(square, 0), LANES, GROUPS) / (pixels * SIZE)
    else:
        pivot = tl.load(x + start + channel, mask=used, other=0.0).to(tl.float32)
        total, square = tl.zeros((BLOCK, LANES), dtype=tl.float32), tl.zeros((BLOCK, LANES), dtype=tl.float32)
        for first in range(0, pixels, BLOCK):
            near = (first + row < pixels)[:, None] & used[None, :]
            u = tl.load(x + start + first * CHANNELS + at, mask=near, other=0.0).to(tl.float32)
            off = tl.where(near, u - pivot[None, :], 0.0)
            total += off
            square += off * off
        off_mean = tl.sum(total, 0) / pixels
        inner = tl.maximum(tl.sum(square, 0) / pixels - off_mean * off_mean, 0.0)
        means_of = _groups(pivot + off_mean, LANES, GROUPS) / SIZE
        mean = _channels(means_of, LANES, GROUPS)
        outer = tl.where(used, pivot + off_mean - mean, 0.0)
        variance = _groups(inner + outer * outer, LANES, GROUPS) / SIZE
    inverses_of = tl.rsqrt(variance + epsilon)
    scale = tl.load(gain + client * gain_stride + channel, mask=used, other=0.0)
    scale *= _channels(inverses_of, LANES, GROUPS)
    shift = tl.load(bias + client * bias_stride + channel, mask=used, other=0.0) - mean * scale
    if PIECES:
        for piece in tl.static_range(PIECES):
            near, here = _near(piece * BLOCK + row, used, pixels, EVEN), start + piece * BLOCK * CHANNELS + at
            z = _again(kept[piece], scale, zero) * scale[None, :] + shift[None, :]
            if SHORTCUT:
                z += tl.load(shortcut + here, mask=near, other=0.0).to(tl.float32)
            if RELU:
                z = tl.where(z < 0, 0.0, z)  # unlike a maximum, keeps what is not a number
            tl.store(y + here, z.to(y.dtype.element_ty), mask=near)
    else:
        for turn in range(tl.cdiv(pixels, BLOCK)):
            first = (tl.cdiv(pixels, BLOCK) - 1 - turn) * BLOCK
            near, here = (first + row < pixels)[:, None] & used[None, :], start + first * CHANNELS + at
            u = tl.load(x + here, mask=near, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
            if SHORTCUT:
                u += tl.load(shortcut + here, mask=near, other=0.0).to(tl.float32)
            if RELU:
                u = tl.where(u < 0, 0.0, u)
            tl.store(y + here, u.to(y.dtype.element_ty), mask=near)
    group = image * (CHANNELS // SIZE) + span * GROUPS + tl.arange(0, GROUPS)
    tl.store(means + group, means_of)
    tl.store(inverses + group, inverses_of)


@triton.jit
def _normalise_gradient(
    dy, y, x, means, inverses, gain, bias, beside, dx, dz_out, dgain, dbias, images, pixels, gain_stride, bias_stride,
    beside_stride, zero, CHANNELS: tl.constexpr, SIZE: tl.constexpr, GROUPS: tl.constexpr, LANES: tl.constexpr,
    BLOCK: tl.constexpr, SHORTCUT: tl.constexpr, RELU: tl.constexpr, BESIDE: tl.constexpr,
    PIECES: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The same groups, as above. BESIDE: slopes that x has from elsewhere, `beside_stride` from pixel to pixel."""
    SPANS: tl.constexpr = CHANNELS // (SIZE * GROUPS)
    image, span = (tl.program_id(0) // SPANS).to(tl.int64), tl.program_id(0) % SPANS
    client = image // images
    channel, used = _spread(span, SIZE, LANES, GROUPS)
    row = tl.arange(0, BLOCK)
    start = image * pixels * CHANNELS
    at = row[:, None] * CHANNELS + channel[None, :]
    group = image * (CHANNELS // SIZE) + channel // SIZE
    mean = tl.load(means + group, mask=used, other=0.0)
    inverse = tl.load(inverses + group, mask=used, other=0.0)
    weight = tl.load(gain + client * gain_stride + channel, mask=used, other=0.0)
    scale = weight * inverse
    shift = tl.load(bias + client * bias_stride + channel, mask=used, other=0.0) - mean * scale
    if PIECES:
        values, given, slopes = tl.tuple(()), tl.tuple(()), tl.tuple(())
        levels, tilts = tl.zeros((BLOCK, LANES), dtype=tl.float32), tl.zeros((BLOCK, LANES), dtype=tl.float32)
        for piece in tl.static_range(PIECES):
            near, here = _near(piece * BLOCK + row, used, pixels, EVEN), start + piece * BLOCK * CHANNELS + at
            values += (tl.load(x + here, mask=near, other=0.0),)
            given += (tl.load(dy + here, mask=near, other=0.0),)
        for piece in tl.static_range(PIECES):
            near, here = _near(piece * BLOCK + row, used, pixels, EVEN), start + piece * BLOCK * CHANNELS + at
            u = values[piece].to(tl.float32)
            slope = slopes_behind_relu(given[piece], y, u, here, near, scale, shift, SHORTCUT, RELU)
            slopes += (slope,)
            if SHORTCUT:
                tl.store(dz_out + here, slope.to(dz_out.dtype.element_ty), mask=near)
            levels += slope.to(tl.float32)
            tilts += slope.to(tl.float32) * (u - mean[None, :])
        level, tilt = tl.sum(levels, 0), tl.sum(tilts, 0) * inverse
    else:
        levels, tilts = tl.zeros((BLOCK, LANES), dtype=tl.float32), tl.zeros((BLOCK, LANES), dtype=tl.float32)
        for first in range(0, pixels, BLOCK):
            near, here = (first + row < pixels)[:, None] & used[None, :], start + first * CHANNELS + at
            u = tl.load(x + here, mask=near, other=0.0).to(tl.float32)
            slope = tl.load(dy + here, mask=near, other=0.0).to(tl.float32)
            slope = slopes_behind_relu(slope, y, u, here, near, scale, shift, SHORTCUT, RELU)
            if SHORTCUT:
                tl.store(dz_out + here, slope.to(dz_out.dtype.element_ty), mask=near)
            levels += slope
            tilts += slope * (u - mean[None, :])
        level, tilt = tl.sum(levels, 0), tl.sum(tilts, 0) * inverse
    tl.store(dgain + image * CHANNELS + channel, tilt, mask=used)
    tl.store(dbias + image * CHANNELS + channel, level, mask=used)
    # dx = scale · dz − by_value · (x − mean) − alone
    by_value = _channels(_groups(weight * tilt, LANES, GROUPS), LANES, GROUPS) / (pixels * SIZE) * inverse * inverse
    alone = _channels(_groups(weight * level, LANES, GROUPS), LANES, GROUPS) / (pixels * SIZE) * inverse
    if PIECES:
        rest = mean * by_value - alone
        for piece in tl.static_range(PIECES):
            near, here = _near(piece * BLOCK + row, used, pixels, EVEN), start + piece * BLOCK * CHANNELS + at
            u, dz = _again(values[piece], by_value, zero), _again(slopes[piece], by_value, zero)
            slope = dz * scale[None, :] + (rest[None, :] - u * by_value[None, :])
            if BESIDE:
                place = (image * pixels + piece * BLOCK + row)[:, None] * beside_stride + channel[None, :]
                slope += tl.load(beside + place, mask=near, other=0.0).to(tl.float32)
            tl.store(dx + here, slope.to(dx.dtype.element_ty), mask=near)
    else:
        for turn in range(tl.cdiv(pixels, BLOCK)):
            first = (tl.cdiv(pixels, BLOCK) - 1 - turn) * BLOCK
            near, here = (first + row < pixels)[:, None] & used[None, :], start + first * CHANNELS + at
            u = tl.load(x + here, mask=near, other=0.0).to(tl.float32)
            slope = tl.load(dy + here, mask=near, other=0.0).to(tl.float32)
            slope = slopes_behind_relu(slope, y, u, here, near, scale, shift, SHORTCUT, RELU)
            slope = slope * scale[None, :] - (u - mean[None, :]) * by_value[None, :] - alone[None, :]
            if BESIDE:
                place = (image * pixels + first + row)[:, None] * beside_stride + channel[None, :]
                slope += tl.load(beside + place, mask=near, other=0.0).to(tl.float32)
            tl.store(dx + here, slope.to(dx.dtype.element_ty), mask=near)


# ---- the twins of `plain` ------------------------------------------------------------------------------------------
def supports(channels: int, groups: int) -> bool:
    """Whether these kernels take it: a pixel of a group fits into one program."""
    return channels // groups <= PIECE


class Launch(NamedTuple):
    """How norms are cut: the groups and lanes (channels, filled up) of a program, and the pixels it takes at once."""

    groups: int
    lanes: int
    rows: int
    warps: int
    pieces: int = 0  # that stay in registers; 0 where an image is read twice
    registers: int | None = None

    @classmethod
    def of(cls, pixels: int, channels: int, groups: int, dtype: torch.dtype, kept: int) -> Launch:
        """Cut images of which a program keeps `kept`: x, or x and its slopes."""
        padded, most = triton.next_power_of_2(channels // groups), groups & -groups
        some = min(most, max(1, 64 // padded))  # 64 channels or more: what lies side by side is read together
        rows, lanes = triton.next_power_of_2(pixels), some * padded
        if rows * lanes > WHOLE_IMAGE:
            return cls(some, lanes, max(1, PIECE // lanes), 8)
        warps = max(1, min(rows * lanes // 1024, max(4, rows * lanes // 2048)))
        block = max(1, min(rows, warps * 256 // lanes))  # a load of 16 bytes a thread
        each = rows * lanes // (32 * warps)  # numbers of a thread, two in a register
        registers = (
            32 + kept * (16 + each // 2) if dtype.itemsize == 2 else None
        )  # so that two programs share a processor
        return cls(some, lanes, block, warps, rows // block, registers)


def normalise(
    x: Tensor, gain: Tensor, bias: Tensor, groups: int, epsilon: float, shortcut: Tensor | None, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    clients, images, height, width, channels = x.shape
    y, mean = torch.empty_like(x), gain.new_empty((clients, images, groups))
    inverse = torch.empty_like(mean)
    cut = Launch.of(height * width, channels, groups, x.dtype, 1)
    _normalise[(clients * images * (groups // cut.groups),)](
        x, gain, bias, shortcut if shortcut is not None else x, y, mean, inverse, images, height * width,
        gain.stride(0), bias.stride(0), epsilon, 0, CHANNELS=channels, SIZE=channels // groups, GROUPS=cut.groups,
        LANES=cut.lanes, BLOCK=cut.rows, SHORTCUT=shortcut is not None, RELU=relu, PIECES=cut.pieces,
        EVEN=height * width == cut.rows * cut.pieces, num_warps=cut.warps, maxnreg=cut.registers,
    )  # fmt: skip
    return y, mean, inverse


def normalise_gradient(
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    gain: Tensor,
    bias: Tensor,
    relu: bool,
    into: tuple[Tensor, Tensor],
    joins: bool,
    beside: Tensor | None = None,
    side: SideStream | None = None,
) -> tuple[Tensor, Tensor | None]:
    clients, images, height, width, channels = x.shape
    dx, dz = torch.empty_like(x), torch.empty_like(x) if joins else None
    parts = gain.new_empty((2, clients, images, channels))
    groups = mean.shape[-1]
    cut = Launch.of(height * width, channels, groups, x.dtype, 2)
    others = x.flatten(0, 3) if beside is None else as_rows(beside)
    _normalise_gradient[(clients * images * (groups // cut.groups),)](
        dy, y, x, mean, inverse, gain, bias, others, dx, dz if joins else dx, parts[0], parts[1], images,
        height * width, gain.stride(0), bias.stride(0), others.stride(0), 0, CHANNELS=channels, SIZE=channels // groups,
        GROUPS=cut.groups, LANES=cut.lanes, BLOCK=cut.rows, SHORTCUT=joins, RELU=relu, BESIDE=beside is not None,
        PIECES=cut.pieces, EVEN=height * width == cut.rows * cut.pieces, num_warps=cut.warps,
        maxnreg=cut.registers,
    )  # fmt: skip
    add_up = partial(sum_images, parts, into)
    add_up() if side is None else side.run(add_up, parts)
    return dx, dz
