"""Small convolutional networks that end in fully connected layers, so their size depends on that of the images."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from fedkeel.models.card import Shape
from fedkeel.models.normalisation import norm


def small_cnn(shape: Shape, classes: int, *, groups: int) -> nn.Sequential:
    """Three times (3×3 convolution, norm, ReLU, 2×2 pool) with 32, 64, 128 channels, then 128 units."""
    channels, height, width = shape
    blocks: OrderedDict[str, nn.Module] = OrderedDict()
    for number, wider in enumerate((32, 64, 128), start=1):
        blocks[f"block{number}"] = nn.Sequential(
            OrderedDict[str, nn.Module](
                conv=nn.Conv2d(channels, wider, 3, padding=1),
                norm=norm(wider, groups),
                relu=nn.ReLU(),
                pool=nn.MaxPool2d(2),
            )
        )
        channels, height, width = wider, height // 2, width // 2
    return nn.Sequential(blocks | _classifier(channels * height * width, (128,), classes))


def lenet_fsa(shape: Shape, classes: int) -> nn.Sequential:
    """Two 5×5 convolutions without padding and three fully connected layers, in the three sizes of FedFSA."""
    channels, height, width = shape
    if channels == 1:
        filters, units = (4, 12), (1024, 1024)
    elif max(height, width) <= 32:
        filters, units = (64, 64), (1024, 1024)
    else:
        filters, units = (32, 32), (512, 1024)
    height, width = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    features = filters[1] * height * width
    return nn.Sequential(_convolutions(channels, filters, padding=0) | _classifier(features, units, classes))


def leaf_cnn(shape: Shape, classes: int) -> nn.Sequential:
    """Two 5×5 convolutions that keep the size (32 and 64 channels), each with a 2×2 pool, then 2048 units."""
    channels, height, width = shape
    features = 64 * (height // 4) * (width // 4)
    return nn.Sequential(_convolutions(channels, (32, 64), padding=2) | _classifier(features, (2048,), classes))


def _convolutions(channels: int, filters: tuple[int, int], *, padding: int) -> OrderedDict[str, nn.Module]:
    first, second = filters
    return OrderedDict[str, nn.Module](
        conv1=nn.Conv2d(channels, first, 5, padding=padding),
        conv_relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(first, second, 5, padding=padding),
        conv_relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
    )


def _classifier(features: int, units: tuple[int, ...], classes: int) -> OrderedDict[str, nn.Module]:
    """Flatten, fully connected layers with ReLU between them: fc1, fc2, …"""
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for number, wide in enumerate(units, start=1):
        layers[f"fc{number}"] = nn.Linear(features, wide)
        layers[f"relu{number}"] = nn.ReLU()
        features = wide
    layers[f"fc{len(units) + 1}"] = nn.Linear(features, classes)
    return layers
