"""Blurs. A blur along rows and columns is a pair of matrices: A X Bᵀ."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.data.corruptions.noise import Keys, draw_uniforms


def transform_planes(images: Tensor, rows: NDArray[np.float64], columns: NDArray[np.float64]) -> Tensor:
    """rows · X · columnsᵀ for each plane X."""
    return torch.from_numpy(rows).to(images) @ images @ torch.from_numpy(columns).to(images).T


def gaussian_matrix(size: int, sigma: float, truncate: float, edge: str) -> NDArray[np.float64]:
    """A Gaussian of `sigma` pixels, cut off at `truncate` sigmas. Beyond the edge: "nearest" repeats the last pixel,
    "reflect" runs back through the pixels, the last one included. sigma = 0 is the identity."""
    radius = int(truncate * sigma + 0.5)
    if radius == 0:
        return np.eye(size)
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (offsets / sigma) ** 2)
    sources = np.arange(size)[:, None] + offsets
    if edge == "nearest":
        sources = sources.clip(0, size - 1)
    else:
        sources = sources % (2 * size)
        sources = np.minimum(sources, 2 * size - 1 - sources)
    matrix = np.zeros((size, size))
    np.add.at(matrix, (np.arange(size)[:, None], sources), weights / weights.sum())
    return matrix


def smooth(images: Tensor, sigma: float, truncate: float = 4.0, edge: str = "nearest") -> Tensor:
    height, width = images.shape[-2:]
    return transform_planes(
        images, gaussian_matrix(height, sigma, truncate, edge), gaussian_matrix(width, sigma, truncate, edge)
    )


def defocus_blur(images: Tensor, keys: Keys, radius: float, softness: float) -> Tensor:
    """Each point becomes a disk of `radius` pixels, its rim softened by a 3×3 Gaussian of `softness`."""
    kernel = disk(radius, softness)
    reach = len(kernel) // 2
    planes = F.pad(images, (reach, reach, reach, reach), mode="reflect").flatten(0, 1)[:, None]
    return F.conv2d(planes, torch.from_numpy(kernel).to(images)[None, None]).view(images.shape)


def disk(radius: float, softness: float) -> NDArray[np.float64]:
    reach = int(radius) + 1
    line = np.arange(-reach, reach + 1)
    filled = (line[:, None] ** 2 + line**2 <= radius**2).astype(np.float64)
    side = np.exp(-0.5 / softness**2)
    soft = np.array([side, 1, side]) / (1 + 2 * side)
    rows = np.apply_along_axis(np.convolve, 0, filled / filled.sum(), soft, "same")
    return np.asarray(np.apply_along_axis(np.convolve, 1, rows, soft, "same"))


def glass_blur(images: Tensor, keys: Keys, sigma: float, times: int) -> Tensor:
    """Blur, let each inner pixel take the colour of one of the four pixels up and left of it (itself included), blur.

    The published script means to swap two pixels, but its two sides are views of one array, so the second assignment
    copies back what the first wrote: the pixel is overwritten and its neighbour stays. Published images are made so.
    """
    height, width = images.shape[-2:]
    pixels = (smooth(images, sigma) * 255).floor() / 255
    rows = torch.arange(height, device=images.device)[:, None]
    columns = torch.arange(width, device=images.device)
    inner = (rows >= 2) & (columns >= 2)
    lots = draw_uniforms(keys, images, times, 2, height, width)
    for lot in lots.unbind(1):
        right, down = (torch.where(inner & (part < 0.5), -1, 0) for part in lot.unbind(1))
        source = (rows + down) * width + columns + right
        pixels = pixels.flatten(2).gather(2, source.flatten(1)[:, None].expand(-1, pixels.shape[1], -1)).view_as(pixels)
    return smooth(pixels, sigma)


def zoom_blur(images: Tensor, keys: Keys, largest: float) -> Tensor:
    """The mean of the image and of its magnifications by 1, 1.01, … below `largest`."""
    height, width = images.shape[-2:]
    # the published bounds, in numpy's arithmetic: whether the last step is reached depends on it
    factors = np.arange(1, largest, 0.01)
    total = images.clone()
    for factor in factors:
        total += transform_planes(images, zoom_matrix(height, factor), zoom_matrix(width, factor))
    return total / (len(factors) + 1)


def zoom_matrix(size: int, factor: float) -> NDArray[np.float64]:
    """Magnify the middle of a line by `factor`, linearly between pixel centres, and cut it to its old length."""
    cut = int(np.ceil(size / factor))
    first = (size - cut) // 2
    longer = round(cut * factor)
    places = np.arange(longer) * ((cut - 1) / (longer - 1) if longer > 1 else 0.0)
    places = places[(longer - size) // 2 :][:size]
    left = np.minimum(places.astype(np.int64), cut - 1)
    matrix = np.zeros((size, size))
    np.add.at(matrix, (np.arange(size), first + left), 1 - (places - left))
    np.add.at(matrix, (np.arange(size), first + np.minimum(left + 1, cut - 1)), places - left)
    return matrix
