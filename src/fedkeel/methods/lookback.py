"""One backward pass per step: perturbations from where the global model has been, or is going."""

from __future__ import annotations

from fedkeel.core.method import Method, method
from fedkeel.methods.correction import half_clipped
from fedkeel.ranges import NonNegative, OpenShare, Positive
from fedkeel.rules import (
    ControlVariates,
    DynamicDual,
    GlobalDirection,
    LastServerStep,
    PersonalMomentum,
    PredictedPosition,
    Uniform,
)

__all__ = [
    "fedlesam",
    "fedlesam_s",
    "fedlesam_d",
    "fedlesam_released",
    "fedlesam_s_released",
    "fedlesam_d_released",
    "fedwmsam",
    "fedwmsam_released",
]


def fedlesam(rho: NonNegative = 0.1) -> Method:
    """Climb against the last global move that the client saw: one backward pass per step.

    Paper: ρ (w_old − w_t) / ‖·‖, w_old from the client's last round. Released code: from the last server step, and one
    number per tensor through an indexing error. Here: the paper's; fedlesam@released is the other.
    """
    return method("fedlesam", perturb=[GlobalDirection(rho)], weights=Uniform(), papers=["fedlesam"])


def fedlesam_s(rho: NonNegative = 0.1) -> Method:
    """FedLESAM with SCAFFOLD's control variates.

    Paper: g + c − c_i. Released code: 0.1 (c − c_i), and FedLESAM's indexing error. Here: the paper's.
    """
    perturb, gradient = [GlobalDirection(rho)], [ControlVariates()]
    return method("fedlesam-s", perturb=perturb, gradient=gradient, weights=Uniform(), papers=["fedlesam", "scaffold"])


def fedlesam_d(rho: NonNegative = 0.1, lam: Positive = 0.1) -> Method:
    """FedLESAM with FedDyn's dual.

    Paper: the whole correction. Released code: half of it behind the clip, and FedLESAM's indexing error. Here: the
    paper's.
    """
    perturb, gradient = [GlobalDirection(rho)], [DynamicDual(lam)]
    return method("fedlesam-d", perturb=perturb, gradient=gradient, weights=Uniform(), papers=["fedlesam", "feddyn"])


def fedlesam_released(rho: NonNegative = 0.1) -> Method:
    """FedLESAM as released: every tensor is shifted by one number.

    Paper: see fedlesam. Released code: −ρ u[l] / Σ |u[j]| for tensor number l, u the flat last server step. Here: as
    released.
    """
    return method("fedlesam@released", perturb=[LastServerStep(rho)], weights=Uniform(), papers=["fedlesam"])


def fedlesam_s_released(rho: NonNegative = 0.1, lam: NonNegative = 0.1) -> Method:
    """FedLESAM-S as released: a tenth of the correction, and every tensor shifted by one number.

    lam = 1 would be the whole correction.

    Paper: see fedlesam-s. Released code: multiplies c − c_i by `lamb`. Here: as released.
    """
    perturb, gradient = [LastServerStep(rho)], [ControlVariates(scale=lam)]
    return method(
        "fedlesam-s@released", perturb=perturb, gradient=gradient, weights=Uniform(), papers=["fedlesam", "scaffold"]
    )


def fedlesam_d_released(rho: NonNegative = 0.1, lam: Positive = 0.1) -> Method:
    """FedLESAM-D as released: half of the proximal term behind the clip, every tensor shifted by one number.

    Paper: see fedlesam-d. Released code: FL-Simulator's FedDyn with FedLESAM's indexing error. Here: as released.
    """
    return method(
        "fedlesam-d@released",
        perturb=[LastServerStep(rho)],
        gradient=half_clipped(lam),
        weights=Uniform(),
        papers=["fedlesam", "feddyn"],
    )


def fedwmsam(
    rho: NonNegative = 0.1, alpha: OpenShare = 0.1, momentum: bool = True, sam: bool = True, weighting: bool = True
) -> Method:
    """A momentum fitted to each client, which also says where to climb; its weight follows the clients' agreement.

    momentum = False steps without the momentum. sam = False takes the gradient at w. weighting = False keeps the weight
    of the momentum as it begins.

    Paper (a poster): climbs towards w_t + k m_i − w; m is the mean of Δ_i divided by η only, neither by the steps nor
    with their minus; m_i = m + α / (1 − α) c_i; c moves by the mean of Δ_i / (K η) over the participants; its α̂ formula
    contradicts its prose. Released code: climbs with the opposite sign, one number per tensor; m = −mean Δ_i / (K η);
    c − c_i in m_i; c moves as SCAFFOLD's, over all clients; α̂ = 1 + cos(Δ_i, m). Here: the poster's climb, and in these
    departures from the poster (m divided by K η, c − c_i for its c_i, c over all clients) and in α̂ the code.
    """
    gradient = [PersonalMomentum(alpha, 0.01 if weighting else 0.0, momentum)]
    perturb = [PredictedPosition(rho)] if sam else []
    return method("fedwmsam", perturb=perturb, gradient=gradient, weights=Uniform(), papers=["fedwmsam"])


def fedwmsam_released(rho: NonNegative = 0.1, alpha: OpenShare = 0.1, decay: NonNegative = 0.998) -> Method:
    """FedWMSAM as released: away from the predicted position, every tensor shifted by one number.

    Paper: see fedwmsam. Released code: the sign of FedLESAM's optimiser and its indexing error; the momentum is
    multiplied by the decay of the learning rate. Here: as released; set `decay` to the experiment's lr_decay.
    """
    perturb, gradient = [PredictedPosition(rho, released=True)], [PersonalMomentum(alpha, decay=decay)]
    return method("fedwmsam@released", perturb=perturb, gradient=gradient, weights=Uniform(), papers=["fedwmsam"])
