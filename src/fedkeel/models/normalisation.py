"""Normalisation of feature maps."""

from __future__ import annotations

from torch import nn


def norm(channels: int, groups: int | None) -> nn.Module:
    """GroupNorm over `groups` groups; `None` is BatchNorm, whose running statistics are buffers that clients own."""
    return nn.BatchNorm2d(channels) if groups is None else nn.GroupNorm(groups, channels)
