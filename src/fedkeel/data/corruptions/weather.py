"""Motion blur, snow and frost."""

from __future__ import annotations

import importlib.util
import math
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedkeel.data.corruptions.blur import transform_planes, zoom_matrix
from fedkeel.data.corruptions.noise import Keys, draw_uniforms
from fedkeel.errors import DataError

PHOTOGRAPHS = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
"""The published script has a sixth, which it never draws."""
SMALLER = 0.2  # the photographs' scale, as published for CIFAR
GREY = (0.299, 0.587, 0.114)


def motion_blur(images: Tensor, keys: Keys, radius: float, sigma: float) -> Tensor:
    """Pixels along a line of a random direction within 45° of the horizontal, weighed by half a Gaussian."""
    angles = math.radians(90) * draw_uniforms(keys, images, 1)[:, 0] - math.radians(45)
    return blur_along(images, angles, radius, sigma)


def blur_along(images: Tensor, angles: Tensor, radius: float, sigma: float) -> Tensor:
    """Σ_i k_i x(row + ⌈i sin θ − ½⌉, column + ⌈i cos θ − ½⌉), i = 0 … 2⌈radius⌉, k_i ∝ exp(−i²/2σ²); the border pixels
    repeat beyond the edge, as ImageMagick has it."""
    height, width = images.shape[-2:]
    steps = torch.arange(2 * math.ceil(radius) + 1, dtype=images.dtype, device=images.device)
    weights = torch.exp(-(steps**2) / (2 * sigma**2))
    weights = weights / weights.sum()
    rows, columns = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    each = torch.arange(len(images), device=images.device)[:, None, None]
    # the nudge: i · cos 60° = 0.5 must not become 1 by the last bit of a cosine
    down = torch.ceil(steps * torch.sin(angles)[:, None] - 0.5 - 1e-9).long()
    right = torch.ceil(steps * torch.cos(angles)[:, None] - 0.5 - 1e-9).long()
    total = torch.zeros_like(images)
    planes = images.permute(0, 2, 3, 1)
    for step, weight in enumerate(weights):
        at_rows = (rows + down[:, step, None]).clamp(0, height - 1)[:, :, None]
        at_columns = (columns + right[:, step, None]).clamp(0, width - 1)[:, None, :]
        total += weight * planes[each, at_rows, at_columns].permute(0, 3, 1, 2)
    return total


def snow(
    images: Tensor, keys: Keys, mean: float, scale: float, zoom: float, least: float, radius: float, sigma: float,
    kept: float,
) -> Tensor:  # fmt: skip
    """Flakes: Gaussian noise, magnified, what is below `least` left out, blurred downwards; laid over a paler image
    twice, once upside down."""
    height, width = images.shape[-2:]
    lots = draw_uniforms(keys, images, 2 * height * width + 1)
    radii, turns = lots[:, :-1].view(-1, 2, 1, height, width).unbind(1)
    noise = mean + scale * torch.sqrt(-2 * torch.log1p(-radii)) * torch.cos(2 * math.pi * turns)
    flakes = transform_planes(noise, zoom_matrix(height, zoom), zoom_matrix(width, zoom))
    flakes = (torch.where(flakes < least, 0.0, flakes).clamp(0, 1) * 255).floor() / 255
    angles = math.radians(90) * lots[:, -1] - math.radians(135)
    flakes = torch.round(255 * blur_along(flakes, angles, radius, sigma)) / 255
    paler = torch.maximum(images, 1.5 * brightness_of(images) + 0.5)
    return kept * images + (1 - kept) * paler + flakes + flakes.flip(-2, -1)


def brightness_of(images: Tensor) -> Tensor:
    """One plane: the usual weights of red, green and blue; a grey image as it is."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    weights = torch.tensor(GREY, dtype=images.dtype, device=images.device).view(1, 3, 1, 1)
    return (weights * images).sum(1, keepdim=True)


def frost(images: Tensor, keys: Keys, kept: float, added: float) -> Tensor:
    """kept · x + added · a random cut of one of five photographs of frost."""
    height, width = images.shape[-2:]
    pictures = read_photographs()
    lots = draw_uniforms(keys, images, 3).tolist()
    result = []
    for image, (which, down, right) in zip(images, lots, strict=True):
        picture = pictures[int(which * len(pictures))].to(images)
        if picture.shape[-2] <= height or picture.shape[-1] <= width:
            picture = F.interpolate(picture[None], (height + 1, width + 1), mode="bilinear", align_corners=False)[0]
        top, left = int(down * (picture.shape[-2] - height)), int(right * (picture.shape[-1] - width))
        cut = picture[:, top : top + height, left : left + width]
        result.append(kept * image + added * (cut if len(image) == 3 else brightness_of(cut[None])[0]))
    return torch.stack(result)


@lru_cache(maxsize=1)
def read_photographs() -> tuple[Tensor, ...]:
    """The photographs that the package imagecorruptions ships, a fifth as large, in 0 … 1; none of its code runs."""
    found = importlib.util.find_spec("imagecorruptions")
    hint = 'pip install "fedkeel[frost]"'
    if found is None or not found.submodule_search_locations:
        raise DataError("frost needs photographs, which the package imagecorruptions brings.", hint)
    folder = Path(next(iter(found.submodule_search_locations))) / "frost"
    try:
        from PIL import Image

        pictures = [np.asarray(Image.open(folder / name).convert("RGB")) for name in PHOTOGRAPHS]
    except (ImportError, OSError) as error:
        raise DataError(f"the photographs of frost in {folder} cannot be read: {error}", hint) from error
    planes = [torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None].to(torch.float64) for picture in pictures]
    small = [
        F.interpolate(plane, scale_factor=SMALLER, mode="bilinear", align_corners=False, recompute_scale_factor=False)
        for plane in planes
    ]
    return tuple(torch.round(plane[0]) / 255 for plane in small)
