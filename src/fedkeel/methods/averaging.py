"""Averaging: the plain methods and the server's optimisers."""

from __future__ import annotations

from dataclasses import replace

from fedkeel.core.method import Method, Phase, method
from fedkeel.ranges import NonNegative, Passes, Positive, ShareBelowOne
from fedkeel.rules import BySize, ClipHere, DecayHere, OnlyLayers, ServerAdam, ServerMomentum, Uniform
from fedkeel.rules.layers import HEAD
from fedkeel.rules.server_rules import Form

__all__ = ["fedavg", "uniform", "fedavg_ft", "fedavgm", "fedadam"]


def fedavg() -> Method:
    """Local SGD, averaged by size."""
    return method("fedavg", weights=BySize(), papers=["fedavg"])


def uniform() -> Method:
    """Local SGD, every client counting alike."""
    return method("uniform", weights=Uniform(), papers=["fedavg"])


def fedavg_ft(head: tuple[str, ...] = (HEAD,), epochs: Passes | None = None) -> Method:
    """FedAvg; after the last round every client fine-tunes the head of the global model.

    epochs = None tunes for as long as a client trains in a round.

    Paper: no fixed recipe. Released code (FedCR, FedFSA): 10 epochs of the head alone. Here: as many epochs as
    training has, unless `epochs` says otherwise; the result is judged by an evaluation policy.
    """
    return replace(fedavg(), name="fedavg-ft", final=head_tuning(head, epochs), papers=("fedavg", "fedcr"))


def head_tuning(head: tuple[str, ...] = (HEAD,), epochs: Passes | None = None) -> Phase:
    """A phase that trains the head alone: clipped by its own length, and the rest not even decayed."""
    only = OnlyLayers(tuple(head))
    return Phase(gradient=(only, ClipHere(), DecayHere(), only), epochs=epochs)


def fedavgm(momentum: ShareBelowOne = 0.9, server_lr: NonNegative = 1.0, form: Form = "heavy-ball") -> Method:
    """FedAvg with momentum on the server.

    Paper: heavy ball, v ← β v + Δ. Released code: heavy ball, EMA (FedDisco) or Nesterov (FL-bench), which differ
    tenfold. Here: heavy ball; form="ema" and "nesterov" are the others.
    """
    server = [ServerMomentum(momentum, form)]
    return method("fedavgm", weights=BySize(), server=server, server_lr=server_lr, papers=["fedavgm"])


def fedadam(
    server_lr: NonNegative = 0.01, beta1: ShareBelowOne = 0.9, beta2: ShareBelowOne = 0.99, tau: Positive = 1e-3
) -> Method:
    """FedAvg with Adam on the server."""
    server = [ServerAdam(beta1, beta2, tau)]
    return method("fedadam", weights=BySize(), server=server, server_lr=server_lr, papers=["fedadam"])
