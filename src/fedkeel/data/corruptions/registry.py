"""The corruptions of CIFAR-C as functions of tensors: a batch of images, a key for each image, a severity from 1 to 5.

Constants and order of operations are those of the published script for CIFAR (Hendrycks & Dietterich, ICLR 2019). They
are used as they are for images of any size; where the script multiplies by the side of an image, so do we. Random
numbers come from each image's key, so an image is corrupted alike in any batch and on any machine. Frost takes the
photographs of the package `imagecorruptions`; motion blur and snow follow ImageMagick's formula instead of calling it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.data.corruptions.blur import defocus_blur, glass_blur, zoom_blur
from fedkeel.data.corruptions.digital import brightness, contrast, elastic_transform, jpeg_compression, pixelate
from fedkeel.data.corruptions.noise import Keys, fog, gaussian_noise, impulse_noise, shot_noise
from fedkeel.data.corruptions.weather import frost, motion_blur, snow
from fedkeel.errors import DataError, require_known


@dataclass(frozen=True)
class Corruption:
    """A function of (images [n, C, H, W] in 0 … 1, keys [n], constants of the severity), and those constants."""

    function: Callable[..., Tensor]
    constants: tuple[tuple[Any, ...], ...]


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": Corruption(gaussian_noise, ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,))),
    "shot_noise": Corruption(shot_noise, ((500,), (250,), (100,), (75,), (50,))),
    "impulse_noise": Corruption(impulse_noise, ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,))),
    "defocus_blur": Corruption(defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "glass_blur": Corruption(glass_blur, ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))),
    "zoom_blur": Corruption(zoom_blur, ((1.06,), (1.11,), (1.16,), (1.21,), (1.26,))),
    "fog": Corruption(fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "brightness": Corruption(brightness, ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,))),
    "contrast": Corruption(contrast, ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,))),
    "elastic_transform": Corruption(
        elastic_transform, ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03))
    ),
    "pixelate": Corruption(pixelate, ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,))),
    "jpeg_compression": Corruption(jpeg_compression, ((80,), (65,), (58,), (50,), (40,))),
    "motion_blur": Corruption(motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "snow": Corruption(
        snow,
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    "frost": Corruption(frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
}
TWELVE = tuple(CORRUPTIONS)[:12]
"""What feature shift deals unless all fifteen are asked for: the others came later."""
SEVERITIES = 5


def corrupt(images: Tensor, name: str, severity: int, keys: Keys) -> Tensor:
    """Corrupt images [n, H, W, C] or [n, H, W] of bytes; levels are cut off to whole bytes as published."""
    corruption = CORRUPTIONS[
        require_known(name, CORRUPTIONS, "this corruption is not computed", "corruptions", DataError)
    ]
    check_severity(severity)
    planes = images[..., None] if images.dim() == 3 else images
    pixels = planes.permute(0, 3, 1, 2).to(torch.float64) / 255
    result = corruption.function(pixels, keys, *corruption.constants[severity - 1])
    return (result.clamp(0, 1) * 255).to(torch.uint8).permute(0, 2, 3, 1).reshape(images.shape)


def corrupt_array(images: NDArray[np.uint8], name: str, severity: int, keys: Keys) -> NDArray[np.uint8]:
    """Corrupt the arrays of a data set."""
    return corrupt(torch.from_numpy(np.array(images)), name, severity, keys).numpy()


def check_severity(severity: int) -> None:
    if severity not in range(1, SEVERITIES + 1):
        raise DataError(f"severity must be a whole number from 1 to {SEVERITIES}: {severity}", hint="papers use 3")
