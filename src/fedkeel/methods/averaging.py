"""Averaging: the plain methods and the server's momentum."""

from __future__ import annotations

from fedkeel.method import Method, method
from fedkeel.rules import BySize, ServerMomentum, Uniform


def fedavg() -> Method:
    """Local SGD, averaged by size."""
    return method("fedavg", weights=BySize(), papers=["fedavg"])


def uniform() -> Method:
    """Local SGD, every client counting alike."""
    return method("uniform", weights=Uniform(), papers=["fedavg"])


def fedavgm(momentum: float = 0.9, server_lr: float = 1.0) -> Method:
    """FedAvg with heavy-ball momentum on the server."""
    server = [ServerMomentum(momentum)]
    return method("fedavgm", weights=BySize(), server=server, server_lr=server_lr, papers=["fedavgm"])
