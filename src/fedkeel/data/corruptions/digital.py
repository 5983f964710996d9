"""Brightness, contrast, elastic deformation, large pixels and JPEG."""

from __future__ import annotations

import io

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.data.corruptions.blur import smooth, transform_planes
from fedkeel.data.corruptions.noise import Keys, draw_uniforms
from fedkeel.errors import DataError


def brightness(images: Tensor, keys: Keys, amount: float) -> Tensor:
    """V + amount in hue, saturation and value: the brightest channel grows by `amount`, the others in proportion."""
    value = images.amax(1, keepdim=True)
    lifted = (value + amount).clamp(0, 1)
    return torch.where(value > 0, images * lifted / value.where(value > 0, 1), lifted)


def contrast(images: Tensor, keys: Keys, factor: float) -> Tensor:
    """Differences to the image's mean colour, times `factor`."""
    mean = images.mean((2, 3), keepdim=True)
    return (images - mean) * factor + mean


def elastic_transform(images: Tensor, keys: Keys, strength: float, sigma: float, corner: float) -> Tensor:
    """A random affine map that moves three points by up to `corner`, then a smooth displacement field: `strength` times
    noise smoothed by `sigma`. All three in sides of the image."""
    height, width = images.shape[-2:]
    side = min(height, width)
    lots = 2 * draw_uniforms(keys, images, 6 + 2 * height * width) - 1
    moved = move_corners(images, lots[:, :6].reshape(-1, 3, 2) * corner * side)
    field = smooth(lots[:, 6:].reshape(-1, 2, height, width), sigma * side, truncate=3.0, edge="reflect")
    right, down = (strength * side * field).unbind(1)
    rows = torch.arange(height, dtype=images.dtype, device=images.device)[:, None]
    columns = torch.arange(width, dtype=images.dtype, device=images.device)
    # a coordinate of pixel centres, reflected at the outer rim of the border pixels
    grid = torch.stack([(2 * (columns + right) + 1) / width - 1, (2 * (rows + down) + 1) / height - 1], -1)
    return F.grid_sample(moved, grid, padding_mode="reflection", align_corners=False)


def move_corners(images: Tensor, shifts: Tensor) -> Tensor:
    """The affine map that moves three corners (x, y) of a square in the middle by `shifts` [n, 3, 2]."""
    height, width = images.shape[-2:]
    middle = torch.tensor([height // 2, width // 2], dtype=images.dtype, device=images.device)
    reach = min(height, width) // 3
    corners = middle + reach * torch.tensor([[1, 1], [1, -1], [-1, -1]], dtype=images.dtype, device=images.device)
    ones = torch.ones(len(images), 3, 1, dtype=images.dtype, device=images.device)
    # rows [x, y, 1] of the moved corners times the inverse map are the corners
    inverse = torch.linalg.solve(torch.cat([corners + shifts, ones], 2), corners.expand(len(images), -1, -1))
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    points = torch.stack([x, y, torch.ones_like(x)], -1).to(images).view(1, -1, 3) @ inverse
    scale = torch.tensor([width - 1, height - 1], dtype=images.dtype, device=images.device).clamp(min=1)
    grid = (2 * points / scale - 1).view(-1, height, width, 2)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=True)


def pixelate(images: Tensor, keys: Keys, factor: float) -> Tensor:
    """Shrink to `factor` of the side with a box filter, and enlarge again; bytes after each of the four passes."""
    height, width = images.shape[-2:]
    small = int(height * factor), int(width * factor)
    levels = torch.round(images * 255)
    for rows, columns in (
        (np.eye(height), box_matrix(width, small[1])),
        (box_matrix(height, small[0]), np.eye(small[1])),
        (np.eye(small[0]), box_matrix(small[1], width)),
        (box_matrix(small[0], height), np.eye(width)),
    ):
        # the nudge: a third of three levels must not come out a hair below the half that is rounded up
        levels = (transform_planes(levels, rows, columns) + 0.5 + 1e-9).floor()
    return levels / 255


def box_matrix(size: int, target: int) -> NDArray[np.float64]:
    """Pillow's box filter from `size` to `target` pixels: the mean of the pixels whose centres lie in the box."""
    scale = size / target
    reach = max(scale, 1.0) / 2
    centres = (np.arange(target)[:, None] + 0.5) * scale
    distance = np.arange(size) + 0.5 - centres
    inside = (distance > -reach) & (distance <= reach)
    return np.asarray(inside / inside.sum(1, keepdims=True))


def jpeg_compression(images: Tensor, keys: Keys, quality: int) -> Tensor:
    """Through a JPEG file of the given quality, by Pillow."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("jpeg_compression needs the package pillow", hint='pip install "fedkeel[download]"') from error
    levels = torch.round(images * 255).to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    grey = levels.shape[-1] == 1
    result = np.empty_like(levels)
    for index, level in enumerate(levels):
        file = io.BytesIO()
        Image.fromarray(level[..., 0] if grey else level).save(file, "JPEG", quality=quality)
        pixels = np.asarray(Image.open(file))
        result[index] = pixels[..., None] if grey else pixels
    return torch.from_numpy(result).permute(0, 3, 1, 2).to(images) / 255
