"""Sharpness-aware local steps."""

from __future__ import annotations

from dataclasses import replace

from fedkeel.core.method import Method, method
from fedkeel.core.objectives import Guided
from fedkeel.core.rule import Rule, Weighting
from fedkeel.methods.correction import half_clipped
from fedkeel.ranges import NonNegative, Positive, PositiveShare, Share, ShareBelowOne, Whole
from fedkeel.rules import (
    ActiveDual,
    AdaptiveSam,
    AdmmPerturbation,
    Ascent,
    ByLoss,
    BySize,
    ClientMomentum,
    ControlVariates,
    DistilAscent,
    DynamicDual,
    GlobalSharpness,
    LocalMomentum,
    MixGradients,
    PrivateLayers,
    Sam,
    SharedLayers,
    Trajectory,
    Uniform,
    WarmUp,
)
from fedkeel.rules.layers import HEAD

__all__ = [
    "fedsam",
    "fedasam",
    "mofedsam",
    "fedsam_s",
    "fedgamma",
    "fedsam_d",
    "fedspeed",
    "fedspeed_released",
    "fedsmoo",
    "fedsmoo_released",
    "fedgloss",
    "fedgloss_released",
    "fedsol",
    "fedgmt",
    "fedgmt_released",
    "fedlwsam",
    "plgu",
]


def fedsam(rho: NonNegative = 0.1) -> Method:
    """Sharpness-aware local steps."""
    return method("fedsam", perturb=[Sam(rho)], weights=Uniform(), papers=["sam", "fedsam"])


def fedasam(rho: NonNegative = 0.7, eta: NonNegative = 0.2) -> Method:
    """FedSAM with the adaptive radius of ASAM."""
    return method("fedasam", perturb=[AdaptiveSam(rho, eta)], weights=Uniform(), papers=["fedasam", "asam"])


def mofedsam(rho: NonNegative = 0.1, alpha: PositiveShare = 0.1) -> Method:
    """FedSAM with the client momentum of FedCM.

    Paper: α weighs the perturbed gradient. Released code: FL-Simulator does so, FedLESAM's copy forgets it. Here: as in
    the paper. Runs: on ResNet-18 and very unequal clients `rho` 0.01 does far better than 0.1
    (`fedkeel reproduce questions:sam-radius`).
    """
    gradient = [ClientMomentum(alpha)]
    return method(
        "mofedsam", perturb=[Sam(rho)], gradient=gradient, weights=Uniform(), papers=["fedsam", "sam", "fedcm"]
    )


def fedsam_s(rho: NonNegative = 0.1) -> Method:
    """FedSAM with SCAFFOLD's control variates; the same as FedGAMMA."""
    gradient = [ControlVariates()]
    return method(
        "fedsam-s", perturb=[Sam(rho)], gradient=gradient, weights=Uniform(), papers=["sam", "fedgamma", "scaffold"]
    )


def fedgamma(rho: NonNegative = 0.1) -> Method:
    """FedSAM with SCAFFOLD's control variates; the same as fedsam-s."""
    return replace(fedsam_s(rho), name="fedgamma")


def fedsam_d(rho: NonNegative = 0.1, lam: Positive = 0.1) -> Method:
    """FedSAM with FedDyn's dual; the same as fedspeed@released where nothing is clipped."""
    gradient = [DynamicDual(lam)]
    return method("fedsam-d", perturb=[Sam(rho)], gradient=gradient, weights=Uniform(), papers=["sam", "feddyn"])


def fedspeed(rho: NonNegative = 0.1, lam: Positive = 0.1, mix: Share = 1.0) -> Method:
    """Two gradients mixed, the second after an ascent by ρ g, with a dual that each client adds to what it sends.

    Paper: climbs by ρ g, mixes (1 − a) g(w) + a g(w + ρ g), averages the duals of the selected. Released code: climbs
    by ρ g / ‖g‖, does not mix, averages over all clients. Here: the paper's; fedspeed@released is the other.
    """
    gradient = [MixGradients(mix), ActiveDual(lam)]
    return method("fedspeed", perturb=[Ascent(rho)], gradient=gradient, weights=Uniform(), papers=["fedspeed"])


def fedspeed_released(rho: NonNegative = 0.1, lam: Positive = 0.1) -> Method:
    """FedSpeed as released: FedSAM with FedDyn's dual, half of the proximal term behind the clip.

    Paper: see fedspeed. Released code (FL-Simulator): SAM's perturbation, FedDyn's correction and server; λ (h_i − w_t)
    is clipped with the gradient, λ w is weight decay. Here: as released.
    """
    gradient = half_clipped(lam)
    return method("fedspeed@released", perturb=[Sam(rho)], gradient=gradient, weights=Uniform(), papers=["fedspeed"])


def fedsmoo(rho: NonNegative = 0.1, lam: Positive = 0.1) -> Method:
    """FedDyn's dual for the model and another for the perturbation, which clients agree on through the server.

    Paper: clients send μ_i less the last s; λ (w − w_t + h_i) is part of the loss. Released code (FL-Simulator): they
    send μ_i; the half λ w is added behind the clip. Here: they send μ_i, and all of the correction is under the clip;
    fedsmoo@released is the other.
    """
    perturb, gradient = [AdmmPerturbation(rho)], [DynamicDual(lam)]
    return method("fedsmoo", perturb=perturb, gradient=gradient, weights=Uniform(), papers=["fedsmoo"])


def fedsmoo_released(rho: NonNegative = 0.1, lam: Positive = 0.1) -> Method:
    """FedSMOO with half of the proximal term behind the clip.

    Paper: see fedsmoo. Released code (FL-Simulator): λ (h_i − w_t) is clipped with the gradient, λ w is weight decay;
    clients send μ_i. Here: as released.
    """
    perturb, gradient = [AdmmPerturbation(rho)], half_clipped(lam)
    return method("fedsmoo@released", perturb=perturb, gradient=gradient, weights=Uniform(), papers=["fedsmoo"])


def fedgloss(
    rho: NonNegative = 0.1,
    rho_local: NonNegative = 0.1,
    lam: Positive = 0.1,
    warmup: Whole = 0,
    rho0: NonNegative = 0.001,
) -> Method:
    """Clients start from a model the server moved against its last update; FedSAM-D from there.  rho_local = 0: SGD.

    Paper: the mean dual over all clients; both ρ grow from ρ_0 over the first rounds (CIFAR-10: 2000 of 10000).
    Released code: the dual is also divided by the number of selected clients; the server's ramp is none; updates are
    averaged by size. Here: the paper's; warmup says over how many rounds, 0 keeps both ρ constant.
    """
    server = GlobalSharpness(rho, warmup, rho0)
    return _gloss("fedgloss", server, DynamicDual(lam), Uniform(), rho_local, warmup, rho0)


def fedgloss_released(
    rho: NonNegative = 0.1,
    rho_local: NonNegative = 0.1,
    lam: Positive = 0.1,
    warmup: Whole = 0,
    rho0: NonNegative = 0.001,
) -> Method:
    """FedGloSS as released: its server dual is smaller by the number of selected clients.  rho_local = 0: SGD.

    Paper: see fedgloss. Released code: divides the server's dual by N and by |S|; averages the updates by size, though
    not the duals; during the warm-up the server's ρ is ρ_local + (ρ − ρ_0) / T, taken from the clients' list. Here: as
    released; warmup = 0 keeps both ρ constant, and so does a warm-up of one round.
    """
    warmup = warmup if warmup > 1 else 0
    before = rho_local + (rho - rho0) / warmup if warmup else rho0
    server = GlobalSharpness(rho, warmup, before, ramp=False)
    return _gloss("fedgloss@released", server, DynamicDual(lam, divided=True), BySize(), rho_local, warmup, rho0)


def _gloss(
    name: str, server: GlobalSharpness, dual: DynamicDual, weights: Weighting, rho_local: float, warmup: int,
    rho0: float,
) -> Method:  # fmt: skip
    perturb: list[Rule] = [Sam(rho_local)] if rho_local else []
    if perturb and warmup:
        perturb.append(WarmUp(rho_local, warmup, rho0))
    return method(name, perturb=perturb, gradient=[dual], weights=weights, server=[server], papers=["fedgloss"])


def fedsol(rho: NonNegative = 1.0, adaptive: bool = True, temperature: Positive = 3.0) -> Method:
    """Climb on the distance to the global model's outputs, descend on the loss.

    Paper: a radius per parameter (adaptive). Released code: fixed and adaptive variants, whose first step climbs along
    rounding noise. Here: adaptive; a vanishing distance gives no perturbation.
    """
    perturb = [DistilAscent(rho, adaptive, temperature)]
    return method("fedsol", perturb=perturb, weights=BySize(), papers=["fedsol"])


def fedgmt(gamma: NonNegative = 1.0, temperature: Positive = 3.0, alpha: Share = 0.95, lam: Positive = 0.1) -> Method:
    """Outputs are held near those of the mean of the global models so far, which is flat; a dual without its pull.

    gamma = 0 trains on the loss alone. temperature = 1 compares outputs as they are.

    Paper: known by its abstract and a transcription of its algorithm: each client sends w_i + h_i, so that the duals of
    the selected are averaged; λ = 1 / β. Released code: averages by size and adds the mean dual of all clients, and has
    local momentum 0.9. Here: the paper's, with plain steps; the teacher judges with statistics that the server sent;
    fedgmt@released is the other.
    """
    gradient, server = [ActiveDual(lam, pull=False)], [Trajectory(alpha)]
    return method("fedgmt", gradient=gradient, weights=Uniform(), server=server,
                  objective=Guided(gamma, temperature), papers=["fedgmt"])  # fmt: skip


def fedgmt_released(
    gamma: NonNegative = 1.0,
    temperature: Positive = 3.0,
    alpha: Share = 0.95,
    lam: Positive = 0.1,
    momentum: ShareBelowOne = 0.9,
) -> Method:
    """FedGMT as released: averaged by size, and the mean dual of all clients is added.

    gamma = 0 trains on the loss alone. temperature = 1 compares outputs as they are.

    Paper: see fedgmt. Released code: FedDyn's server; local momentum 0.9, anew in each round; the teacher's batch norms
    stay as they began. Here: as released, but the teacher judges with the statistics that the server sent.
    """
    gradient, server = [DynamicDual(lam, pull=False), LocalMomentum(momentum)], [Trajectory(alpha)]
    return method("fedgmt@released", gradient=gradient, weights=BySize(), server=server,
                  objective=Guided(gamma, temperature), papers=["fedgmt"])  # fmt: skip


def fedlwsam(rho: NonNegative = 0.05) -> Method:
    """FedSAM, averaged in proportion to 1 / loss; the loss is that of the unperturbed model."""
    return method("fedlwsam", perturb=[Sam(rho)], weights=ByLoss(), papers=["fedscam", "fedlw", "sam"])


def plgu(rho: NonNegative = 0.05, head: tuple[str, ...] = (HEAD,)) -> Method:
    """Layer-wise SAM, weaker on layers that a client has made its own; the head is private. Experimental.

    Paper: known by its abstract only. Released code: none. Here: a reconstruction, one formula in one rule. The head is
    compared with that of the server, which stays as it began, so it differs most, and the other layers by little.
    """
    personal = [PrivateLayers(tuple(head))]
    return method("plgu", perturb=[SharedLayers(rho)], weights=BySize(), personal=personal, papers=["plgu"])
