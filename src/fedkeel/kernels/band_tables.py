"""Tables with which three launches remove the low bands of all short leaves, whatever their lengths.

With n = a b as in `band`, a leaf is a × b numbers x[i, j]. A few functions φ_m(j) span all that the band does along j,
so x becomes a × m numbers; a real Fourier matrix of a rows, small enough for a product, does the rest. As there,
coefficients q that are equal modulo a share a row of the matrix, and φ tells them apart.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

SHORT_BELOW = 100_000  # for shorter leaves, few launches matter more than few bytes
TALL, WIDE, COUNT, TURNS = 64, 128, 16, 32  # of a tile: rows and columns of x, functions, rows of a spectrum
LONGEST = 1024  # a: beyond it the Fourier matrix costs too much
EXACT = 1e-8  # relative size of the singular values left out; float32 rounds at 6e-8


class Form(NamedTuple):
    """A length as a × b: φ `[b, COUNT]`, cosines above sines `[2 (⌊a / 2⌋ + 1), a]`, factors `[2, bins, COUNT]`."""

    length: int
    width: int
    shapes: Tensor
    fourier: Tensor
    factors: Tensor


class Plan(NamedTuple):
    """Which spans the tables serve, the tiles of x, the pieces of spectra, the numbers that they read, and sizes."""

    served: frozenset[int]
    tiles: Tensor  # [tiles, 8]: see `triton_band_tables`
    pieces: Tensor  # [pieces, 8]
    numbers: Tensor
    parts: int
    spectra: int


def sine_functions(n: int, b: int, bins: int, exact: float) -> tuple[Tensor, Tensor]:
    """Find orthonormal functions `[b, m]` that span the lowest coefficients along b neighbours, and where these lie."""
    # the middle of a row has phase 0: even and odd functions then need not mix
    middle = torch.arange(b, dtype=torch.float64) - (b - 1) / 2
    some = torch.linspace(0, bins - 1, 128, dtype=torch.float64)
    angle = torch.outer(some, middle) * (2 * torch.pi / n)
    _, sizes, functions = torch.linalg.svd(torch.cat([angle.cos(), angle.sin()]), full_matrices=False)
    return functions[sizes > exact * sizes[0]].T.contiguous(), middle


def form_of(n: int, bins: int) -> Form | None:
    """Find the form of a length with the widest rows; None where there is none that is small enough."""
    if n >= SHORT_BELOW or 2 * (bins - 1) >= n:  # the last coefficient has no sine
        return None
    for b in range(min(n, WIDE), 0, -1):
        if n % b == 0 and n // b <= LONGEST:
            shapes, middle = sine_functions(n, b, bins, EXACT)
            if shapes.shape[1] <= COUNT:
                return make_form(n, b, bins, shapes, middle)
    return None


def make_form(n: int, b: int, bins: int, shapes: Tensor, middle: Tensor) -> Form:
    a = n // b
    shapes = torch.nn.functional.pad(shapes, (0, COUNT - shapes.shape[1]))
    turn = torch.outer(torch.arange(a // 2 + 1, dtype=torch.float64), torch.arange(a, dtype=torch.float64))
    turn = turn.remainder(a) * (2 * torch.pi / a)
    angle = torch.outer(torch.arange(bins, dtype=torch.float64), middle) * (2 * torch.pi / n)
    norm = torch.full((bins, 1), 2 / n, dtype=torch.float64).sqrt()
    norm[0] = n**-0.5
    factors = torch.stack([norm * (angle.cos() @ shapes), norm * (angle.sin() @ shapes)])
    return Form(a, b, shapes, torch.cat([turn.cos(), turn.sin()]), factors)


@cache
def plan(spans: tuple[int, ...], device: torch.device) -> Plan | None:
    """Make the tables for the short spans of a buffer, and for those left alone; None where none is filtered so."""
    served, tiles, pieces = set[int](), list[tuple[int, ...]](), list[tuple[int, ...]]()
    numbers, filled, parts, spectra = list[Tensor](), 0, 0, 0
    for span in range(0, len(spans), 4):
        offset, leaves, length, bins = spans[span : span + 4]
        form = form_of(length, bins) if bins else None
        if bins and form is None:
            continue
        served.add(span)
        if form is None:
            end = offset + leaves * length
            tiles += [(at, min(TALL * WIDE, end - at), WIDE, *(0,) * 5) for at in range(offset, end, TALL * WIDE)]
            continue
        a, b, rows = form.length, form.width, len(form.fourier)
        shapes, fourier = filled, filled + form.shapes.numel()
        factors = fourier + form.fourier.numel()
        filled = factors + form.factors.numel()
        numbers += [form.shapes.flatten(), form.fourier.flatten(), form.factors.flatten()]
        high = -(-a // TALL)  # tiles of a leaf
        for leaf in range(leaves):
            start = offset + leaf * length
            for tile in range(high):
                count = min(TALL * b, length - tile * TALL * b)
                own = parts + tile * rows * COUNT
                tiles.append((start + tile * TALL * b, count, b, a, shapes, fourier + tile * TALL, own, spectra))
            pieces += [(parts, high, a, bins, factors, spectra, first, 0) for first in range(0, rows // 2, TURNS)]
            parts, spectra = parts + high * rows * COUNT, spectra + rows * COUNT
    if not pieces:
        return None
    all_tiles, all_pieces = (torch.tensor(items, dtype=torch.int32, device=device) for items in (tiles, pieces))
    return Plan(frozenset(served), all_tiles, all_pieces, torch.cat(numbers).float().to(device), parts, spectra)
