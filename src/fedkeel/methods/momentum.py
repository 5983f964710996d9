"""Momentum of several rounds in the steps of clients, and weights averaged along them."""

from __future__ import annotations

from fedkeel.core.method import Method, method
from fedkeel.ranges import Count, NonNegative, Positive, PositiveShare, ShareBelowOne
from fedkeel.rules import (
    AlongMomentum,
    BySize,
    HeavyBall,
    MomentumVariates,
    OwnHeavyBall,
    RateWithin,
    Sam,
    ServerMomentum,
    StartAhead,
    Uniform,
)

__all__ = ["ghbm", "localghbm", "fedhbm", "fednsam", "fednsam_released", "fedswa", "fedswa_released", "fedmoswa"]


def ghbm(beta: NonNegative = 0.9, tau: Count = 10) -> Method:
    """Client steps that continue the global model's move of the last τ rounds.

    Paper: τ of about 1 / C, where a share C of the clients takes part; larger ones hardly hurt. Released code: the
    same, added before the clip; its FedCM sends the last tensor of the momentum only, so the comparison with FedCM is
    none. Here: as in the paper, all of it under the clip. Known by abstract and code.
    """
    return method("ghbm", gradient=[HeavyBall(beta, tau)], weights=BySize(), papers=["ghbm"])


def localghbm(beta: NonNegative = 0.9, share: PositiveShare = 0.1) -> Method:
    """GHBM from what each client remembers: the model it last received.

    Paper: nothing more travels. Released code: variants give a client that is new a common or a random model. Here: a
    client that is new has no momentum; `share` must be set to the experiment's participation.
    """
    return method("localghbm", gradient=[OwnHeavyBall(beta, share)], weights=BySize(), papers=["ghbm"])


def fedhbm(beta: NonNegative = 1.0, share: PositiveShare = 0.1) -> Method:
    """GHBM from what each client remembers: the model it last ended with, compared anew in each step.

    Paper: nothing more travels. Released code: the same. Here: a client that is new has no momentum; `share` must be
    set to the experiment's participation.
    """
    return method("fedhbm", gradient=[OwnHeavyBall(beta, share, ended=True)], weights=BySize(), papers=["ghbm"])


def fednsam(gamma: ShareBelowOne = 0.85, rho: NonNegative = 0.05) -> Method:
    """The gradient is taken ahead along the server's momentum and a little back: one pass per step. Experimental.

    gamma = 0 with rho = 0 is uniform averaging.

    Paper: known by its abstract only. Released code: three forms, none of them this; the first looks ahead nowhere,
    since it skips parameters whose gradient has just been reset, and is FedAvgM; the last starts clients at w_t + γ m
    as FedACG, takes SAM's two passes and moves by (1 + γ) Δ without momentum. Here: reconstructed from the optimiser
    class that the authors ship, y = w + γ m − ρ m / ‖m‖; fednsam@released is the last form.
    """
    perturb, server = [AlongMomentum(gamma, rho)], [ServerMomentum(gamma)]
    return method("fednsam", perturb=perturb, weights=Uniform(), server=server, papers=["fednsam"])


def fednsam_released(gamma: ShareBelowOne = 0.85, rho: NonNegative = 0.05) -> Method:
    """FedNSAM as last released: FedSAM from a model ahead of the server's, which moves by (1 + γ) Δ.

    gamma = 0 is FedSAM. rho = 0 takes the gradient at w.

    Paper: see fednsam. Released code: γ = 0.85 and ρ = 0.05 are fixed, whatever the command says; a loop over the
    wrong dictionary sets m to (1 + γ) Δ, so that nothing builds up; clients start at w_t + γ m, and their updates are
    taken from there. Here: as released; clip and decay are the experiment's.
    """
    perturb, server = [Sam(rho)], [StartAhead(gamma)]
    return method("fednsam@released", perturb=perturb, weights=Uniform(), server=server, papers=["fednsam", "sam"])


def fedswa(rho: NonNegative = 0.1, server_lr: NonNegative = 1.5) -> Method:
    """The rate falls within each round, and the server goes beyond the average.

    rho = 1 with server_lr = 1 is uniform averaging.

    Paper: known by two transcriptions: ρ = 0.1, server rate 1.5. Released code: ρ = 0 and twice the rate within a
    round, and its command doubles the rate once more against the baselines'; the server averages. Here: the paper's,
    fedswa@released is the other; give all methods one rate to compare them.
    """
    return method("fedswa", gradient=[RateWithin(rho)], weights=Uniform(), server_lr=server_lr, papers=["fedswa"])


def fedswa_released(rho: NonNegative = 0.0, peak: Positive = 2.0) -> Method:
    """FedSWA as released: averaging whose rate falls within each round, from twice the rate to almost none.

    rho = 1 with peak = 1 is uniform averaging.

    Paper: see fedswa. Released code: η_k = 2 η (1 − k / K), so that the mean rate is η (1 + 1 / K); its commands give
    FedSWA η = 0.2 and the baselines 0.1, so that its mean is twice theirs and its first step four times; it takes all
    batches where the baselines stop at 50 steps; the server does not go beyond the average. Here: as released, at the
    experiment's rate and steps; lr = 0.2 beside 0.1 gives what its commands compare.
    """
    gradient = [RateWithin(rho, peak)]
    return method("fedswa@released", gradient=gradient, weights=Uniform(), papers=["fedswa"])


def fedmoswa(rho: NonNegative = 0.1, gamma: PositiveShare = 0.2, server_lr: NonNegative = 1.5) -> Method:
    """FedSWA with control variates whose common one follows the participants of recent rounds.

    rho = 1 keeps the rate within a round.

    Paper: known by two transcriptions: c_i divides by the sum of the rates. Released code: never calls its FedMoSWA;
    what runs under the name keeps a constant rate, γ = 0.4 and averages, and its c_i belong to workers, not clients;
    the first release fixed γ = 0.1. Here: the paper's, the correction under the clip.
    """
    gradient = [MomentumVariates(gamma=gamma), RateWithin(rho)]
    return method("fedmoswa", gradient=gradient, weights=Uniform(), server_lr=server_lr, papers=["fedswa", "scaffold"])
