"""A vision transformer for small images. Attention is plain matrix products, so that stacked clients stay fast."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedkeel.models.card import Shape

PATCH = 4
WIDTH = 512
DEPTH = 6
HEADS = 8
HIDDEN = 512


class Patches(nn.Module):
    """Patches of the image as vectors, a learned class token in front, learned positions added."""

    def __init__(self, shape: Shape):
        super().__init__()
        channels, height, width = shape
        count = (height // PATCH) * (width // PATCH)
        self.project = nn.Linear(channels * PATCH * PATCH, WIDTH)
        self.class_token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, count + 1, WIDTH))

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.project(F.pixel_unshuffle(images, PATCH).flatten(2).transpose(1, 2))
        return torch.cat([self.class_token.expand(len(images), -1, -1), tokens], 1) + self.positions


class Attention(nn.Module):
    """softmax(q kᵀ / √d) v for each head; the heads side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).reshape(len(x), -1, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(q @ k.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5, -1)
        return (weights @ v).transpose(1, 2).flatten(2)


class Skip(nn.Module):
    """x + f(x), where f is a sequence of parts."""

    def __init__(self, *parts: nn.Module):
        super().__init__()
        self.parts = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.parts(x)


class First(nn.Module):
    """The class token alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


def vit_small_32(shape: Shape, classes: int) -> nn.Sequential:
    """Patch 4, width 512, six layers of eight heads and 512 hidden units, norm before each part, class token."""
    layers = OrderedDict[str, nn.Module](patches=Patches(shape))
    for number in range(1, DEPTH + 1):
        layers[f"attention{number}"] = Skip(nn.LayerNorm(WIDTH), Attention(), nn.Linear(WIDTH, WIDTH))
        layers[f"feedforward{number}"] = Skip(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH)
        )
    layers |= {"first": First(), "norm": nn.LayerNorm(WIDTH), "fc": nn.Linear(WIDTH, classes)}
    return nn.Sequential(layers)
