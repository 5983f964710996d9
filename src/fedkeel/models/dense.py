"""Models without structure: one linear layer, or three."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn

from fedkeel.models.card import Shape


def logistic(shape: Shape, classes: int) -> nn.Sequential:
    """Multinomial logistic regression: W x + b."""
    return nn.Sequential(OrderedDict[str, nn.Module](flatten=nn.Flatten(), fc=nn.Linear(math.prod(shape), classes)))


def mlp(shape: Shape, classes: int, *, width: int) -> nn.Sequential:
    """Two hidden layers of `width` units."""
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            flatten=nn.Flatten(),
            fc1=nn.Linear(math.prod(shape), width),
            relu1=nn.ReLU(),
            fc2=nn.Linear(width, width),
            relu2=nn.ReLU(),
            fc3=nn.Linear(width, classes),
        )
    )
