"""Stored rows become what a model sees."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.data.augment import Augment
from fedkeel.data.clients import Sample
from fedkeel.errors import ExperimentError, require_known

AUGMENTATIONS: dict[str, Augment | None] = {
    "none": None,
    "crop-flip": Augment(crop=4, flip=True),
    "crop-flip-half": Augment(crop=4, flip=True, probability=0.5),  # FL-Simulator's
}


def find_augmentation(name: str, shape: tuple[int, ...]) -> Augment | None:
    """Find an augmentation by name; 64-pixel images are cropped from 8 pixels of padding instead of 4."""
    augment = AUGMENTATIONS[
        require_known(name, AUGMENTATIONS, "unknown augmentation", "augmentations", ExperimentError)
    ]
    if augment is None or len(shape) < 3:
        return None
    return Augment(augment.crop * max(1, shape[-1] // 32), augment.flip, augment.probability)


@dataclass(frozen=True)
class Preparation:
    """Images: (x / 255 − mean) / std by channel, then augmented where keys are given. Tokens: as they are."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment | None = None

    @property
    def augments(self) -> bool:
        return self.augment is not None

    def __call__(self, raw: Sample, keys: NDArray[np.uint64] | None) -> Sample:
        draws = self.draw(keys)
        return self.apply(raw, None if draws is None else torch.from_numpy(draws).to(raw[0].device))

    def draw(self, keys: NDArray[np.uint64] | None) -> NDArray[np.int64] | None:
        """Draw what is random about each sample, as whole numbers; None where nothing is."""
        return None if self.augment is None or keys is None else self.augment.draw(keys)

    def apply(self, raw: Sample, draws: Tensor | None) -> Sample:
        """Do the rest once the numbers are drawn: the same on every device, and nothing waits for the host."""
        inputs, *rest = raw
        if not self.mean:
            return (inputs.to(torch.int64), *rest)
        scale, shift = scale_and_shift(self.mean, self.std, inputs.device)
        # [N, H, W] or [N, H, W, C] -> [N, C, H, W]
        images = inputs.unsqueeze(1) if inputs.dim() == 3 else inputs.permute(0, 3, 1, 2)
        images = torch.addcmul(shift, images.float(), scale).contiguous()
        return (images if self.augment is None else self.augment.apply(images, draws), *rest)


def widen_labels(parts: Sample) -> Sample:
    """Convert small whole-number targets to int64, the type that losses take as labels."""
    *inputs, target = parts
    counts = not (target.is_floating_point() or target.is_complex() or target.dtype == torch.bool)
    return (*inputs, target.to(torch.int64) if counts else target)


@cache
def scale_and_shift(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """The two numbers of each channel in x · scale + shift = (x / 255 − mean) / std."""
    deviation = torch.tensor(std, dtype=torch.float64) * 255
    shift = -torch.tensor(mean, dtype=torch.float64) * 255 / deviation
    return (1 / deviation).float().view(-1, 1, 1).to(device), shift.float().view(-1, 1, 1).to(device)
