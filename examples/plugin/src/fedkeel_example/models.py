"""A small network."""

from math import prod

from torch import nn


def narrow(shape: tuple[int, ...], classes: int, width: int = 16) -> nn.Module:
    """One hidden layer of a few units."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), width), nn.ReLU(), nn.Linear(width, classes))
