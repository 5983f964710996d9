"""Local optimisers by name, and what the server makes of their state."""

from __future__ import annotations

from typing import Literal

from fedkeel.core.method import Method, method
from fedkeel.core.rule import Rule
from fedkeel.ranges import Positive, PositiveShare, ShareBelowOne
from fedkeel.rules import (
    AdamW,
    AddMomentum,
    AlignedAdamW,
    AmongAll,
    BySize,
    ClientMomentum,
    DecayHere,
    Muon,
    Orthogonal,
    Uniform,
    VariateMomentum,
)
from fedkeel.rules.optimisers import Moments

__all__ = ["local_adamw", "local_muon", "fedadamw", "fedmuon", "fedmuon_released", "fedmuon_lmo", "fedpac"]

Scale = Literal["match_rms_adamw", "original"]


def local_adamw(
    beta1: ShareBelowOne = 0.9, beta2: ShareBelowOne = 0.999, eps: Positive = 1e-8, moments: Moments = "reset"
) -> Method:
    """FedAvg whose clients step by AdamW.

    Paper: AdamW's; in federated papers "local AdamW" begins every round without moments. Released code (FedAdamW):
    clips raw gradients at 10, decays by 0.01, averages uniformly. Here: averaged by size; clip and decay are the
    experiment's, the clip before the optimiser and the decay decoupled.
    """
    return method("local-adamw", gradient=[AdamW(beta1, beta2, eps, moments)], weights=BySize(), papers=["adamw"])


def local_muon(
    momentum: ShareBelowOne = 0.95,
    nesterov: bool = True,
    scale: Scale = "match_rms_adamw",
    moments: Moments = "reset",
    without: tuple[str, ...] = (),
) -> Method:
    """FedAvg whose clients step by Muon: matrices orthogonalised, the rest by AdamW.

    Paper (a post): hidden matrices by Muon; embeddings, head and first convolution by AdamW. Released code (FedMuon):
    all tensors with two axes or more, at a rate of their own; averages uniformly. Here: all matrices but those that
    `without` names, convolutions flattened, in the model's precision and not in bfloat16; averaged by size.
    """
    rule = Muon(momentum, nesterov, scale=scale, moments=moments, without=tuple(without))
    return method("local-muon", gradient=[rule], weights=BySize(), papers=["muon"])


def fedadamw(
    alpha: ShareBelowOne = 0.5,
    beta1: ShareBelowOne = 0.9,
    beta2: ShareBelowOne = 0.999,
    eps: Positive = 1e-8,
    blocks: Literal["tensor", "number"] = "tensor",
) -> Method:
    """Local AdamW whose second moments begin with the clients' mean, plus the last global direction.

    Paper: known by its abstract and a transcription of its algorithm: d + α m, separate counts of steps for both
    moments; blocks follow the Hessian's; the decay is printed with the sign that makes weights grow. Released code:
    three forms, all with one count for both moments, so that rounds open with damped steps; (1 − γ) d + γ m, or γ fixed
    at 0.5; the one for images sends all of v. Here: the paper's, with decay; a block is a tensor, blocks = number sends
    all of v; the count grows by the mean number of steps.
    """
    gradient = [AlignedAdamW(beta1, beta2, eps, blocks), AddMomentum(alpha)]
    return method("fedadamw", gradient=gradient, weights=Uniform(), papers=["fedadamw", "adamw"])


def fedmuon(
    mix: ShareBelowOne = 0.5,
    momentum: ShareBelowOne = 0.95,
    nesterov: bool = False,
    scale: Scale = "match_rms_adamw",
    without: tuple[str, ...] = (),
) -> Method:
    """Local Muon whose momenta begin with the clients' mean, mixed with the last global direction.

    mix = 0 mixes nothing in; it is the paper's α.

    Paper: known by its abstract and a transcription of its algorithm: (1 − α) U Vᵀ + α m by an SVD, no Nesterov;
    silent on vectors. Released code: momentum fixed at 0.98, where its local Muon has 0.95; Nesterov; the momentum's
    warm start is skipped where a gradient is None, which is without effect but for frozen parameters; vectors by an
    Adam that is reset; matrices at a rate of their own. Here: the paper's, by Newton–Schulz; moments of vectors are
    averaged too; the decay is that of the experiment, not scaled. The first round runs at 1 − mix of the rate.
    fedmuon@released is the other.
    """
    rule = Muon(momentum, nesterov, scale=scale, moments="average", without=tuple(without))
    return method("fedmuon", gradient=[rule, ClientMomentum(1 - mix)], weights=Uniform(), papers=["fedmuon", "muon"])


def fedmuon_released(
    mix: ShareBelowOne = 0.5,
    momentum: ShareBelowOne = 0.98,
    other_rate: Positive = 2.0,
    without: tuple[str, ...] = (),
) -> Method:
    """FedMuon as released: Nesterov momentum 0.98, an Adam for vectors that begins anew, and a decay that is mixed too.

    mix = 0 mixes nothing in. momentum = 0 orthogonalises the gradient. other_rate = 1 gives vectors the rate of the
    matrices. `without` names parameters that are no matrices.

    Paper: see fedmuon. Released code: steps at 1 − γ of the rate, decay included, and adds γ times the last direction;
    momentum is fixed at 0.98, where its local Muon has 0.95; the momentum's warm start is skipped where a gradient is
    None: in a worker's first round, when there is none to take over, and of frozen parameters. Matrices step by √max(1,
    rows / columns), convolutions by 1, at half (ResNet-18) or ten times (DeiT) the vectors' rate. Here: as released;
    lr is the matrices' rate and also that of the decay of vectors; a flat convolution of more rows than columns is
    scaled as a matrix; frozen parameters do not train at all.
    """
    rule = Muon(
        momentum, nesterov=True, scale="original", moments="average", without=tuple(without), other_rate=other_rate,
        others="reset",
    )  # fmt: skip
    gradient = [rule, DecayHere(), ClientMomentum(1 - mix)]
    return method("fedmuon@released", gradient=gradient, weights=Uniform(), papers=["fedmuon", "muon"])


def fedmuon_lmo(alpha: PositiveShare = 0.9) -> Method:
    """Momenta corrected by control variates, then orthogonalised: another method called FedMuon.

    Paper: known by a reproduction of its algorithm: those not selected count as if they had not moved, so that the
    server's rate is s / N. Released code: none found. Here: as in the reproduction, α = 0.9 is its own;
    Newton–Schulz of 5 steps for the oracle; vectors move by their direction.
    """
    gradient = [VariateMomentum(alpha), Orthogonal()]
    return method("fedmuon-lmo", gradient=gradient, weights=AmongAll(), papers=["fedmuonlmo", "muon"])


def fedpac(beta: ShareBelowOne = 0.5, preconditioner: Literal["adamw", "muon"] = "adamw") -> Method:
    """Local steps whose preconditioner begins with the clients' mean, mixed with the last direction. Experimental.

    beta = 0 mixes nothing in. preconditioner = adamw aligns the second moments, muon the momenta, which is FedMuon.

    Paper: known by its abstract and a transcription of its algorithm; its optimisers are SOAP, Sophia and Muon.
    Released code: its commands run β = 0.85, not the 0.5 of its notes; never updates Sophia's Hessian; two files
    that it imports are missing. Here: reconstructed for AdamW and Muon.
    """
    rule: Rule = AlignedAdamW(blocks="number") if preconditioner == "adamw" else Muon(nesterov=False, moments="average")
    return method("fedpac", gradient=[rule, ClientMomentum(1 - beta)], weights=Uniform(), papers=["fedpac"])
