"""Noise of each pixel, and fog."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.randomness import uniforms

Keys = NDArray[np.uint64]


def draw_uniforms(keys: Keys, like: Tensor, *shape: int) -> Tensor:
    """Draw uniform numbers in [0, 1): for each key an array of `shape`."""
    return torch.from_numpy(uniforms(keys, math.prod(shape))).to(like).view(len(keys), *shape)


def gaussian_noise(images: Tensor, keys: Keys, scale: float) -> Tensor:
    """x + scale · N(0, 1), for each channel of each pixel (Box & Muller)."""
    radius, angle = draw_uniforms(keys, images, 2, *images.shape[1:]).unbind(1)
    return images + scale * torch.sqrt(-2 * torch.log1p(-radius)) * torch.cos(2 * math.pi * angle)


def shot_noise(images: Tensor, keys: Keys, photons: float) -> Tensor:
    """Poisson(photons · x) / photons: white is `photons` expected counts."""
    levels = torch.round(images * 255).to(torch.int64)
    table = poisson_table(photons).to(images.device)
    # row v of the table holds v + P(count ≤ k): one search in the whole table finds the count for level v
    wanted = (levels + draw_uniforms(keys, images, *images.shape[1:])).contiguous()
    position = torch.searchsorted(table.view(-1), wanted, right=True)
    return (position - levels * table.shape[1]).to(images.dtype) / photons


@lru_cache(maxsize=8)
def poisson_table(photons: float) -> Tensor:
    """[256, counts]: v + the probability of at most k counts at level v of 255; the last count takes the rest."""
    most = math.ceil(photons + 12 * math.sqrt(photons) + 20)
    counts = torch.arange(most, dtype=torch.float64)
    rates = torch.arange(256, dtype=torch.float64)[:, None] * photons / 255
    below = torch.exp(torch.xlogy(counts, rates) - rates - torch.lgamma(counts + 1)).cumsum(1).clamp(max=1)
    below[:, -1] = 1
    return torch.arange(256, dtype=torch.float64)[:, None] + below


def impulse_noise(images: Tensor, keys: Keys, amount: float) -> Tensor:
    """A share `amount` of all values becomes 0 or 1, either with probability one half."""
    lots = draw_uniforms(keys, images, *images.shape[1:])
    salted = torch.where(lots < amount / 2, torch.ones_like(images), images)
    return torch.where((lots >= amount / 2) & (lots < amount), torch.zeros_like(images), salted)


def fog(images: Tensor, keys: Keys, thickness: float, decay: float) -> Tensor:
    """(x + thickness · cloud) · m / (m + thickness), m the brightest value of the image."""
    height, width = images.shape[-2:]
    size = 1 << (max(height, width) - 1).bit_length()
    cloud = clouds(draw_uniforms(keys, images, size * size), size, decay)[:, None, :height, :width]
    brightest = images.amax((1, 2, 3), keepdim=True)
    return (images + thickness * cloud) * brightest / (brightest + thickness)


def clouds(lots: Tensor, size: int, decay: float) -> Tensor:
    """Height maps [n, size, size] in 0 … 1 by the diamond-square algorithm on a torus.

    A middle point is the mean of its four neighbours and a number of ± wobble², where wobble starts at 100 and is
    divided by `decay` whenever the mesh is halved.
    """
    heights = torch.zeros(len(lots), size, size, dtype=lots.dtype, device=lots.device)
    used, step, wobble = 0, size, 100.0

    def middle(total: Tensor) -> Tensor:
        nonlocal used
        count = total[0].numel()
        lot = lots[:, used : used + count].view(total.shape)
        used += count
        return total / 4 + wobble**2 * (2 * lot - 1)

    while step >= 2:
        half = step // 2
        corners = heights[:, ::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        centres = middle(pairs + pairs.roll(-1, 2))
        heights[:, half::step, half::step] = centres
        heights[:, ::step, half::step] = middle(centres + centres.roll(1, 1) + corners + corners.roll(-1, 2))
        heights[:, half::step, ::step] = middle(centres + centres.roll(1, 2) + corners + corners.roll(-1, 1))
        step, wobble = half, wobble / decay
    heights = heights - heights.amin((1, 2), keepdim=True)
    return heights / heights.amax((1, 2), keepdim=True)
