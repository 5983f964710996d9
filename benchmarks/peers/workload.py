"""The work that fedkeel and its peers are timed on, in plain PyTorch: the same samples, models and judge."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

CLASSES = 10


def settle() -> None:
    """One thread; and on 64-bit ARM, where asked for, fedkeel's setting: no oneDNN, whose small products are slow."""
    torch.set_num_threads(1)
    if os.environ.get("EVEN") and platform.machine() in ("aarch64", "arm64"):
        torch.backends.mkldnn.enabled = False


def logistic() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, CLASSES))


def small_cnn() -> nn.Module:
    """Two convolutions with pools and one linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * 7 * 7, CLASSES),
    )  # fmt: skip


def resnet20() -> nn.Module:
    from fedkeel.models import build

    return build("resnet20-gn", shape=(3, 32, 32), classes=CLASSES, seed=0)


def pfl_cnn() -> nn.Module:
    """The network of pfl-research's CIFAR-10 benchmark without its two dropouts: random masks are not stacked."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Linear(128, CLASSES),
    )  # fmt: skip


@dataclass(frozen=True)
class Work:
    """FedAvg: `selected` of `clients` train one epoch in each round."""

    network: Callable[[], nn.Module]
    shape: tuple[int, int, int]
    clients: int
    selected: int
    samples: int
    batch: int
    lr: float

    @property
    def steps(self) -> int:
        """Local steps of all clients in a round."""
        return self.selected * -(-self.samples // self.batch)

    def module(self) -> nn.Module:
        torch.manual_seed(0)
        return self.network()

    def data(self) -> list[tuple[Tensor, Tensor]]:
        """Of each client: a faint, coarse pattern of the class in noise, so that a model's loss says what it learnt."""
        draw = torch.Generator().manual_seed(1)
        return [self.drawn(self.samples, draw) for _ in range(self.clients)]

    def drawn(self, samples: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        channels, height, width = self.shape
        coarse = torch.randn(CLASSES, channels, height // 4, width // 4, generator=torch.Generator().manual_seed(2))
        patterns = coarse.repeat_interleave(4, -1).repeat_interleave(4, -2)
        labels = torch.randint(0, CLASSES, (samples,), generator=draw)
        return torch.randn(samples, *self.shape, generator=draw) + 0.1 * patterns[labels], labels

    @torch.no_grad()
    def judged(self, module: nn.Module) -> float:
        """The loss of a model on samples that no client has."""
        images, labels = self.drawn(1000, torch.Generator().manual_seed(3))
        device = next(module.parameters()).device
        return float(nn.functional.cross_entropy(module(images.to(device)), labels.to(device)))


WORK = {
    "logistic": Work(logistic, (1, 28, 28), 100, 10, 100, 20, 0.05),
    "small-cnn": Work(small_cnn, (1, 28, 28), 100, 10, 100, 20, 0.1),
    "resnet20-gn": Work(resnet20, (3, 32, 32), 20, 4, 20, 10, 0.05),
    "pfl-cifar10": Work(pfl_cnn, (3, 32, 32), 1000, 50, 50, 10, 0.1),
}
