"""Residual networks of basic blocks (He et al. 2016), described by a plan. Parameter names are torchvision's."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from fedkeel.models.card import Shape
from fedkeel.models.normalisation import norm


@dataclass(frozen=True)
class ResNetPlan:
    """A stage of `blocks` blocks for each width; every stage but the first halves the image.

    stem: "imagenet" is a 7×7 convolution with stride 2 and a 3×3 max pool with stride 2, "cifar" one 3×3 convolution.
    weights: "fan-out" draws convolutions from N(0, 2 / fan_out) as torchvision does, "pytorch" leaves its defaults.
    """

    widths: tuple[int, ...]
    blocks: int
    stem: Literal["imagenet", "cifar"]
    weights: Literal["fan-out", "pytorch"]


RESNET18 = ResNetPlan((64, 128, 256, 512), blocks=2, stem="imagenet", weights="fan-out")
RESNET18_CIFAR = ResNetPlan((64, 128, 256, 512), blocks=2, stem="cifar", weights="fan-out")
RESNET18_CIFAR_PLAIN = ResNetPlan((64, 128, 256, 512), blocks=2, stem="cifar", weights="pytorch")
RESNET20 = ResNetPlan((16, 32, 64), blocks=3, stem="cifar", weights="pytorch")
WRN56_2 = ResNetPlan((32, 64, 128), blocks=9, stem="cifar", weights="pytorch")


class Block(nn.Module):
    """relu(norm(conv(relu(norm(conv(x))))) + shortcut(x)); the shortcut is x, or norm(1×1 conv) where shapes differ."""

    def __init__(self, channels: int, wide: int, stride: int, groups: int | None):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, wide, 3, stride, padding=1, bias=False)
        self.bn1 = norm(wide, groups)
        self.conv2 = nn.Conv2d(wide, wide, 3, padding=1, bias=False)
        self.bn2 = norm(wide, groups)
        changes = stride != 1 or channels != wide
        projection = [nn.Conv2d(channels, wide, 1, stride, bias=False), norm(wide, groups)] if changes else []
        self.downsample = nn.Sequential(*projection)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.downsample(x))


def resnet(plan: ResNetPlan, shape: Shape, classes: int, *, groups: int | None = None) -> nn.Sequential:
    """The network of a plan with GroupNorm; without `groups`, BatchNorm."""
    channels = plan.widths[0]
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if plan.stem == "imagenet":
        layers["conv1"] = nn.Conv2d(shape[0], channels, 7, stride=2, padding=3, bias=False)
    else:
        layers["conv1"] = nn.Conv2d(shape[0], channels, 3, padding=1, bias=False)
    layers |= {"bn1": norm(channels, groups), "relu": nn.ReLU()}
    if plan.stem == "imagenet":
        layers["maxpool"] = nn.MaxPool2d(3, stride=2, padding=1)
    for stage, wide in enumerate(plan.widths, start=1):
        blocks = [Block(channels, wide, 1 if stage == 1 else 2, groups)]
        blocks += [Block(wide, wide, 1, groups) for _ in range(plan.blocks - 1)]
        layers[f"layer{stage}"] = nn.Sequential(*blocks)
        channels = wide
    layers |= {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "fc": nn.Linear(channels, classes)}
    network = nn.Sequential(layers)
    if plan.weights == "fan-out":
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network
