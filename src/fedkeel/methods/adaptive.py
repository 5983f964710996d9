"""Radii that differ between layers (FedFSA) or between clients (FedSCAM)."""

from __future__ import annotations

from dataclasses import replace

from fedkeel.core.method import Method, Phase, method
from fedkeel.core.objective import Value
from fedkeel.core.rule import Rule, Weighting
from fedkeel.errors import MethodError, require_known
from fedkeel.ranges import Count, NonNegative, PositiveShare, Whole
from fedkeel.rules import (
    AdaptiveRadius,
    ByAgreement,
    ByChance,
    ByChange,
    ByNorm,
    ByRange,
    ByRemoval,
    BySize,
    ByTaylor,
    ClientMomentum,
    CriticalLayers,
    FirstRateMomentum,
    LayerRadius,
    MeasureAlignment,
    MeasureNorm,
    NoteRemoval,
    PilotRadius,
    Sam,
    Uniform,
)

__all__ = ["fedscam", "fedscam_sam", "fedscam_wa", "fedfsa", "fedfsa_released"]

SENSITIVITIES = ("change", "norm", "minmax", "taylor", "exact")
CHOICES = ("highest", "lowest", "random")


def fedfsa(
    rho: NonNegative = 0.05,
    rho_larger: NonNegative = 0.9,
    top: Whole = 2,
    alpha: PositiveShare = 0.1,
    sensitivity: str = "change",
    choose: str = "highest",
) -> Method:
    """MoFedSAM with a larger radius on the layers that a client's last round changed most.

    sensitivity: change (equation 11 as a mean), norm (11 as a sum), taylor (8, last epoch), exact (7), minmax
    (released); choose: highest, lowest (the paper's Reverse) or random.

    Paper: ranks layers by (w_i − w_t)², and does not say what is taken of a layer's weights; its momentum
    lacks a minus, +Δ_g / (η K) in line 23, which line 13 adds to a gradient: it would step back. Released code: by the
    change of each layer scaled to [0, 1]; momentum −Δ_g γ / (η_0 K) with the first learning rate and its decay γ. Here:
    the mean of the squared change; −Δ_g / (η K) with the round's. On CIFAR-100 norm did far better
    (`fedkeel reproduce fedfsa:ranking`).
    """
    base = method("fedfsa", perturb=[Sam(rho)], gradient=[ClientMomentum(alpha)], weights=Uniform())
    papers = ("fedfsa", "fedsam")
    return replace(with_fsa(base, rho, rho_larger, top, sensitivity, choose), name="fedfsa", papers=papers)


def fedfsa_released(
    rho: NonNegative = 0.05, rho_larger: NonNegative = 0.9, top: Whole = 2, alpha: PositiveShare = 0.1
) -> Method:
    """FedFSA as released: layers ranked by the change of their values scaled to [0, 1], momentum by the first rate.

    Paper: see fedfsa. Released code: momentum −Δ_g γ / (η_0 K), K of one client's size; its learning rate decays per
    local epoch, and only for those who take part. Here: as released, with the mean number of steps for K and the
    learning rate decaying per round (the main runs do not decay it).
    """
    base = method("fedfsa", perturb=[Sam(rho)], gradient=[FirstRateMomentum(alpha)], weights=Uniform())
    with_radii = with_fsa(base, rho, rho_larger, top, "minmax")
    return replace(with_radii, name="fedfsa@released", papers=("fedfsa", "fedsam"))


def with_fsa(
    base: Method,
    rho: NonNegative = 0.05,
    rho_larger: NonNegative = 0.9,
    top: Whole = 2,
    sensitivity: str = "change",
    choose: str = "highest",
) -> Method:
    """The plug-in `fsa+BASE`: SAM with FSA's radii in place of the base's SAM, or of none."""
    for word, known in ((sensitivity, SENSITIVITIES), (choose, CHOICES)):
        require_known(word, known, "FSA does not know", "choices", MethodError)
    critical = CriticalLayers(top, "lowest" if choose == "lowest" else "highest")
    measure: dict[str, Rule] = {
        "change": ByChange(),
        "norm": ByNorm(),
        "minmax": ByRange(),
        "taylor": ByTaylor(rho, rho_larger),
    }
    before = ByChance() if choose == "random" else measure.get(sensitivity)
    after: tuple[Phase, ...] = ()
    if before is None:
        removal = ByRemoval(rho, rho_larger)
        after = (Phase((removal,), (NoteRemoval(), critical), 1, False, False, Value(), same_batch=True),)

    def add_radii(phase: Phase) -> Phase:
        if not (phase.trains and phase.uploads):
            return phase
        if phase.perturb and not isinstance(phase.perturb[0], Sam):
            raise MethodError(
                f"FSA sets SAM's radius, but {base.name} perturbs by {type(phase.perturb[0]).__name__}.",
                "put it on a method with SAM or without any perturbation",
            )
        chain = phase.gradient if before is None else (before, *phase.gradient, critical)
        return replace(phase, perturb=(LayerRadius(rho, rho_larger), *phase.perturb[1:]), gradient=chain)

    phases = (*map(add_radii, base.phases), *after)
    papers = tuple(dict.fromkeys(("fedfsa", *base.papers)))
    return replace(base, name=f"fsa+{base.name}", phases=phases, papers=papers)


def fedscam(
    rho_max: NonNegative = 0.05,
    alpha_rho: NonNegative = 1.0,
    kappa: NonNegative = 0.5,
    gamma: NonNegative = 1.0,
    beta: NonNegative = 0.8,
    probe: Count = 3,
    clustering: bool = False,
    lam: PositiveShare = 0.5,
    dimensions: Count = 256,
    clusters: Whole = 0,
) -> Method:
    """SAM with a radius that shrinks, and weights that fall, with how heterogeneous a client's gradients are.

    Paper: leaves α_ρ, κ, λ, the number of clusters, the projection and the pilot open. Released code: none. Here: the
    pilot is −∇L at half of the allowed radius, the projection a count sketch; clustering is off.
    """
    weights = ByAgreement(gamma, beta, clustering, lam, dimensions, clusters)
    return _fedscam("fedscam", rho_max, alpha_rho, kappa, probe, dimensions, weights)


def fedscam_sam(
    rho_max: NonNegative = 0.05,
    alpha_rho: NonNegative = 1.0,
    kappa: NonNegative = 0.5,
    probe: Count = 3,
    dimensions: Count = 256,
) -> Method:
    """FedSCAM's radius with weights by size."""
    return _fedscam("fedscam-sam", rho_max, alpha_rho, kappa, probe, dimensions, BySize())


def fedscam_wa(
    kappa: NonNegative = 0.5, gamma: NonNegative = 1.0, beta: NonNegative = 0.8, probe: Count = 3,
    clustering: bool = False, lam: PositiveShare = 0.5, dimensions: Count = 256, clusters: Whole = 0,
) -> Method:  # fmt: skip
    """FedSCAM's weights with plain local SGD."""
    measure = Phase(gradient=(MeasureNorm(probe), MeasureAlignment(kappa, dimensions)), batches=probe, trains=False,
                    uploads=False)  # fmt: skip
    weights = ByAgreement(gamma, beta, clustering, lam, dimensions, clusters)
    return Method("fedscam-wa", (measure, Phase()), weights, papers=("fedscam",))


def _fedscam(
    name: str, rho_max: float, alpha_rho: float, kappa: float, probe: int, dimensions: int, weights: Weighting
) -> Method:
    """The last probe batch is the pilot's: its gradient at w_t counts for the norm and says where to climb."""
    pilot = PilotRadius(rho_max, alpha_rho, probe)
    measure = Phase((pilot,), (MeasureAlignment(kappa, dimensions),), batches=1, trains=False, uploads=False)
    phases: tuple[Phase, ...] = (measure, Phase((AdaptiveRadius(rho_max, alpha_rho),)))
    if probe > 1:
        phases = (Phase(gradient=(MeasureNorm(probe),), batches=probe - 1, trains=False, uploads=False), *phases)
    return Method(name, phases, weights, papers=("fedscam", "sam"))
