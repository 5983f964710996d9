"""Averaging: the plain methods and the server's optimisers."""

from __future__ import annotations

from dataclasses import replace

from fedkeel.core.method import Method, Phase, method
from fedkeel.ranges import NonNegative, Passes, Positive, ShareBelowOne
from fedkeel.rules import (
    BySize,
    ClipHere,
    DecayHere,
    Extrapolate,
    LastTwo,
    OnlyLayers,
    ServerAdam,
    ServerMomentum,
    Uniform,
)
from fedkeel.rules.layers import HEAD
from fedkeel.rules.server_rules import Form

__all__ = ["fedavg", "uniform", "fedavg_ft", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "fedexp"]


def fedavg() -> Method:
    """Local SGD, averaged by size."""
    return method("fedavg", weights=BySize(), papers=["fedavg"])


def uniform() -> Method:
    """Local SGD; every client counts the same."""
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
    server_lr: NonNegative = 0.01,
    beta1: ShareBelowOne = 0.9,
    beta2: ShareBelowOne = 0.99,
    tau: Positive = 1e-3,
    v0: NonNegative = 0.0,
    correct: bool = False,
) -> Method:
    """FedAvg with Adam on the server.

    Paper: v starts at τ² or above, without correction of the bias. Released code: v starts at 0, with correction. Here:
    v starts at 0, without correction; v0 = 1 is the paper's, correct = True the released code's, which halves the
    moves of about the fifth to the thirtieth round.
    """
    server = [ServerAdam(beta1, beta2, tau, v0=v0, correct=correct)]
    return method("fedadam", weights=BySize(), server=server, server_lr=server_lr, papers=["fedadam"])


def fedyogi(
    server_lr: NonNegative = 0.01,
    beta1: ShareBelowOne = 0.9,
    beta2: ShareBelowOne = 0.99,
    tau: Positive = 1e-3,
    v0: NonNegative = 1.0,
    correct: bool = False,
) -> Method:
    """FedAvg with Yogi on the server: its second moment falls no faster than it may rise.

    Paper: v starts at τ² or above, without correction of the bias; rates are tuned on a grid. Released code: v starts
    at 0, with correction. Here: the paper's, averaged by size; v0 = 0 with correct = True is the other.
    """
    server = [ServerAdam(beta1, beta2, tau, "yogi", v0, correct)]
    return method("fedyogi", weights=BySize(), server=server, server_lr=server_lr, papers=["fedadam", "yogi"])


def fedadagrad(
    server_lr: NonNegative = 0.01, beta1: ShareBelowOne = 0.0, tau: Positive = 1e-3, v0: NonNegative = 1.0
) -> Method:
    """FedAvg with Adagrad on the server: coordinates that have moved far move less.

    Paper: no momentum, v starts at τ² or above; rates are tuned on a grid. Released code: v starts at 0. Here: the
    paper's, averaged by size; v0 = 0 is the other.
    """
    server = [ServerAdam(beta1, tau=tau, second="adagrad", v0=v0)]
    return method("fedadagrad", weights=BySize(), server=server, server_lr=server_lr, papers=["fedadam"])


def fedexp(epsilon: NonNegative = 1e-3, by_count: bool = False, average: bool = False) -> Method:
    """FedAvg whose server takes longer steps when the clients' updates differ more.

    average = True evaluates and exports the mean of the last two models; training goes on from the last.

    Paper: all participants count alike; evaluates the mean of the last two models. Released code: by size; ε is
    multiplied by the number of participants and falls with the square of the learning rate; its fedavgm(exp) has no
    momentum, for a misspelt name. Here: all count alike, ε is constant, by_count = True multiplies it; the last model
    is evaluated, as that of other methods, though it oscillates more: average = True evaluates as the paper does.
    """
    server = [Extrapolate(epsilon, by_count), *([LastTwo()] if average else [])]
    return method("fedexp", weights=Uniform(), server=server, papers=["fedexp"])
