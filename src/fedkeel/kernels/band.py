"""Remove the low band of long rows by two thin matrix products and short transforms.

With n = a b, the lowest coefficients are X[q] = Σ_i e^(−2πi q i / a) Σ_j e^(−2πi q j / n) x[i, j]. Over the band the
inner factor turns little along j, so a few orthonormal functions φ_m(j) span it to the last digit of float32: x is read
once to form a × m numbers, everything else is small, and the band is put back the same way. Coefficients q = k a ± r
share the number r of a short transform; the φ tell them apart.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.kernels.band_tables import plan, sine_functions
from fedkeel.kernels.custom_op import as_custom_op, empty_like

THIN_FROM, WIDEST = 1 << 15, 128  # the shortest row that is worth it; the most neighbours that share functions
EXACT = 1e-9  # relative size of the singular values left out; float32 rounds at 6e-8


class Basis(NamedTuple):
    """n = length · width; `shapes` is `[width, m]`, and `factors` `[bins, m]` are the coefficients in it."""

    length: int
    width: int
    shapes: Tensor
    factors: Tensor


@cache
def basis(n: int, bins: int, dtype: torch.dtype, device: torch.device) -> Basis | None:
    """Return the thin basis, or None where it does not pay: short rows, a wide band, no suitable divisor."""
    b = next(d for d in range(WIDEST, 0, -1) if n % d == 0)
    if n < THIN_FROM or b < 4:
        return None
    shapes, middle = sine_functions(n, b, bins, EXACT)
    if 4 * shapes.shape[1] > b:
        return None
    whole = torch.promote_types(dtype, torch.complex64)
    parts = torch.arange(bins, dtype=torch.float64).split(1 << 15)  # all at once would take more memory than the rows
    factors = torch.cat([turn(part, middle / n, shapes).to(whole) for part in parts])
    return Basis(n // b, b, shapes.to(dtype).to(device), factors.to(device))


def turn(q: Tensor, place: Tensor, shapes: Tensor) -> Tensor:
    """Find the coefficients q of functions `[b, m]` that lie at some places of a circle."""
    angle = torch.outer(q, place) * (-2 * torch.pi)
    return torch.complex(angle.cos() @ shapes, angle.sin() @ shapes)


def remove_low_band(rows: Tensor, bins: int) -> Tensor | None:
    """Remove the lowest `bins` rFFT coefficients of rows `[..., leaves, n]`; None where the plain way is better."""
    leaves, n = rows.shape[-2:]
    base = basis(n, bins, rows.dtype, rows.device)
    if base is None:
        return None
    a, b, shapes, factors = base
    x = rows.reshape(-1, leaves * a, b)  # a view: leaves of one length are neighbours
    thin = shapes.T.expand(len(x), -1, -1).bmm(x.mT).unflatten(-1, (leaves, a))
    low = torch.fft.irfft(keep_band(torch.fft.rfft(thin), factors.T[:, None], a), n=a).flatten(-2)
    kept = torch.baddbmm(x, low.mT, shapes.T.expand(len(x), -1, -1), alpha=-1 / b)
    return kept.view(rows.shape)


def keep_band(z: Tensor, factors: Tensor, a: int) -> Tensor:
    """Find what the band makes of short spectra `[clients, m, leaves, ⌊a / 2⌋ + 1]`; `factors` are `[m, 1, bins]`."""
    q = torch.arange(factors.shape[-1], device=z.device)
    r = torch.minimum(q % a, -q % a)
    mirrored = q % a > a // 2
    found, conj = z[..., r], torch.conj_physical  # compiled code would not see the flag that conj() sets
    # the phase of the middle cancels between here and the way back
    band = (torch.where(mirrored, conj(found), found) * factors).sum(1, keepdim=True)
    back = band * conj(factors)
    back = torch.where(mirrored, conj(back), back)
    alone = (q > 0) & (2 * r % a == 0)  # irfft counts these numbers once, and the others with their mirror image
    return torch.zeros_like(z).index_add_(-1, r, torch.where(alone, 2 * back, back))


# ---- a whole buffer ------------------------------------------------------------------------------------------------
class Onto(NamedTuple):
    """What is done with the filtered buffer: plus + scale · filtered, with one scale for each client."""

    plus: Tensor  # [clients, D]
    scale: Tensor  # [clients, 1]

    def narrow(self, offset: int, length: int) -> Onto:
        return Onto(self.plus.narrow(1, offset, length), self.scale)

    def put(self, left: Tensor, target: Tensor) -> None:
        torch.addcmul(self.plus, self.scale, left, out=target)


@as_custom_op("high_pass(Tensor buffer, int[] spans) -> Tensor", empty_like)
def high_pass(buffer: Tensor, spans: list[int]) -> Tensor:
    """Remove the low bands of the leaves of a stacked buffer `[clients, D]`.

    `spans` lists (offset, leaves, length, bins) of neighbouring stretches that cover the buffer; 0 bins leave it alone.
    """
    return filter_buffer(buffer, spans, None)


@as_custom_op("high_pass_onto(Tensor buffer, Tensor scale, Tensor plus, int[] spans) -> Tensor", empty_like)
def high_pass_onto(buffer: Tensor, scale: Tensor, plus: Tensor, spans: list[int]) -> Tensor:
    """plus + scale · high_pass(buffer): the filter is linear, so its last pass can do the rest as well."""
    return filter_buffer(buffer, spans, Onto(plus.expand(buffer.shape), scale))


def filter_buffer(buffer: Tensor, spans: list[int], onto: Onto | None) -> Tensor:
    stacked = buffer.reshape(-1, buffer.shape[-1])
    out = torch.empty_like(stacked, memory_format=torch.contiguous_format)
    served = remove_short_bands(stacked, spans, out, onto) if buffer.is_cuda else frozenset[int]()
    for i in range(0, len(spans), 4):
        if i in served:
            continue
        offset, leaves, length, bins = spans[i : i + 4]
        source, target = stacked.narrow(1, offset, leaves * length), out.narrow(1, offset, leaves * length)
        part = None if onto is None else onto.narrow(offset, leaves * length)
        base = basis(length, bins, buffer.dtype, buffer.device) if bins else None
        if base is not None and buffer.is_cuda:
            from fedkeel.kernels import triton_band

            triton_band.remove_low_bands(source, leaves, base, target, part)
            continue
        left = remove_band(source.unflatten(1, (leaves, length)), bins, base is not None).flatten(1) if bins else source
        if part is None:
            target.copy_(left)
        else:
            part.put(left, target)
    return out.view(buffer.shape)


def remove_short_bands(stacked: Tensor, spans: list[int], out: Tensor, onto: Onto | None) -> frozenset[int]:
    """Filter all short spans in three launches; return which these were."""
    made = plan(tuple(spans), stacked.device) if stacked.dtype == torch.float32 else None
    if made is None:
        return frozenset()
    from fedkeel.kernels import triton_band_tables

    triton_band_tables.remove_short_bands(stacked, made, out, onto)
    return made.served


def remove_band(rows: Tensor, bins: int, thin: bool) -> Tensor:
    """Remove the low band of rows, by the thin basis where it serves."""
    kept = remove_low_band(rows, bins) if thin else None
    if kept is not None:
        return kept
    spectrum = torch.fft.rfft(rows)
    spectrum[..., :bins] = 0
    return torch.fft.irfft(spectrum, n=rows.shape[-1])
