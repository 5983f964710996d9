"""Random crops and mirror images, drawn for each image from its own key and applied to a whole batch at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.errors import ExperimentError
from fedkeel.randomness import uniforms
from fedkeel.ranges import Share, Whole
from fedkeel.typed_values import check_fields


@dataclass(frozen=True)
class Augment:
    """Mirror the image with probability 1/2 (`flip`), then, with `probability`, cut it at a random place out of itself
    with `crop` zero pixels around. Images are normalised before, so zero is the mean colour. crop = 0 without flip
    changes nothing. FL-Simulator: crop 4, flip, probability 0.5.
    """

    crop: Whole = 0
    flip: bool = False
    probability: Share = 1.0

    def __post_init__(self) -> None:
        check_fields(self, ExperimentError, "an augmentation")

    def draw(self, keys: NDArray[np.uint64]) -> NDArray[np.int64] | None:
        """Draw for each key (down, right, mirrored): where the crop begins, and 1 for a mirror image. None: no change.

        The middle place (crop, crop) is the image as it is.
        """
        if self.crop == 0 and not self.flip:
            return None
        lots = uniforms(keys, 4)
        places = 2 * self.crop + 1
        draws = (lots[..., :3] * (places, places, 1 + self.flip)).astype(np.int64)
        if self.probability < 1:
            draws[lots[..., 3] >= self.probability, :2] = self.crop
        return draws

    def apply(self, images: Tensor, draws: Tensor | None) -> Tensor:
        """Change images [..., C, H, W] as drawn; draws [..., 3] are on the same device."""
        if draws is None:
            return images
        if self.flip:
            images = mirror(images, draws[..., 2])
        return crop_at(images, draws[..., 0], draws[..., 1], self.crop) if self.crop else images


def mirror(images: Tensor, chosen: Tensor) -> Tensor:
    """Exchange left and right in the chosen images."""
    # lerp by 0 or 1 returns its first or second operand exactly, in half the time of where
    return torch.lerp(images, images.flip(-1), chosen.to(images.dtype)[..., None, None, None])


def crop_at(images: Tensor, down: Tensor, right: Tensor, padding: int) -> Tensor:
    """Cut the window of the image's own size that begins at (down, right) of the image padded with zeros.

    One gather of whole pixel rows: each row of the result lies contiguously in the padded images, somewhere.
    """
    height, width = images.shape[-2:]
    padded_height, padded_width = height + 2 * padding, width + 2 * padding
    pixels = F.pad(images, (padding, padding, padding, padding)).reshape(-1)
    rows = torch.arange(0, pixels.numel(), padded_width, device=images.device)
    rows = rows.view(*images.shape[:-2], padded_height)[..., :height]
    starts = rows + (down * padded_width + right)[..., None, None]
    return pixels.unfold(0, width, 1).index_select(0, starts.reshape(-1)).view(images.shape)
