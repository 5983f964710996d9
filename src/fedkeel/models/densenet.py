"""DenseNet-121 for small images (Huang et al. 2017, in the form of FedLAW): 3×3 stem, no pooling before the blocks."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedkeel.models.card import Shape
from fedkeel.models.normalisation import norm

GROWTH = 32
BLOCKS = (6, 12, 24, 16)


class DenseLayer(nn.Module):
    """Adds `GROWTH` channels, computed from all earlier ones: norm, ReLU, 1×1 conv, norm, ReLU, 3×3 conv."""

    def __init__(self, channels: int, groups: int | None):
        super().__init__()
        self.norm1 = norm(channels, groups)
        self.conv1 = nn.Conv2d(channels, 4 * GROWTH, 1, bias=False)
        self.norm2 = norm(4 * GROWTH, groups)
        self.conv2 = nn.Conv2d(4 * GROWTH, GROWTH, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))
        return torch.cat([new, x], 1)


def densenet121(shape: Shape, classes: int, *, last_groups: int, groups: int | None = None) -> nn.Sequential:
    """Four dense blocks; between them norm, ReLU, 1×1 conv to half the channels, 2×2 average pool.

    groups: GroupNorm inside the blocks and between them; `None` is BatchNorm.
    last_groups: GroupNorm after the last block.
    """
    channels = 2 * GROWTH
    layers = OrderedDict[str, nn.Module](conv1=nn.Conv2d(shape[0], channels, 3, padding=1, bias=False))
    for number, count in enumerate(BLOCKS, start=1):
        layers[f"dense{number}"] = nn.Sequential(*(DenseLayer(channels + i * GROWTH, groups) for i in range(count)))
        channels += count * GROWTH
        if number < len(BLOCKS):
            layers[f"transition{number}"] = nn.Sequential(
                OrderedDict[str, nn.Module](
                    norm=norm(channels, groups),
                    relu=nn.ReLU(),
                    conv=nn.Conv2d(channels, channels // 2, 1, bias=False),
                    pool=nn.AvgPool2d(2),
                )
            )
            channels //= 2
    layers |= {"norm": norm(channels, last_groups), "relu": nn.ReLU(), "avgpool": nn.AdaptiveAvgPool2d(1)}
    layers |= {"flatten": nn.Flatten(), "fc": nn.Linear(channels, classes)}
    return nn.Sequential(layers)
