"""Filtering the low-frequency part of perturbations or gradients."""

from __future__ import annotations

from dataclasses import replace

from fedkeel.core.method import Method, Phase, method
from fedkeel.core.rule import Rule
from fedkeel.errors import MethodError, require_known
from fedkeel.methods.averaging import fedavg
from fedkeel.ranges import Count, NonNegative, Positive, PositiveShare, Share, ShareBelowOne
from fedkeel.rules import (
    BySize,
    ClipMedian,
    ControlVariates,
    DynamicDual,
    GaussianDetrend,
    HighPass,
    HighPass2d,
    LowPass,
    ModelEma,
    On,
    PoolDetrend,
    RandomBand,
    RandomEnergy,
    Rescale,
    Sam,
    Uniform,
)
from fedkeel.rules.filters import MinDims, Order

__all__ = ["fedfft", "fedfft_s", "fedfft_d", "specgradfilter", "keel"]

FORMS = ("fft", "lap-d", "gaussian", "fft-2d", "high", "random", "energy", "l2", "norm", "median")
"""fft removes the low band; lap-d and gaussian subtract a moving average; the others are controls: high and random
remove other coefficients, energy random ones with as much energy; l2 and norm only shorten, tensor by tensor or all by
one factor."""


def fedfft(rho: NonNegative = 0.1, ratio: Share = 0.01, form: str = "fft", order: Order = "0123") -> Method:
    """FedSAM with the low-frequency part of each perturbation removed.

    Paper: its algorithm lacks a ∇, its ablations name high, random, L2 and coordinate clipping. Released code: none.
    Here: every tensor is filtered; form= gives the ablations, order= the flattening.
    """
    perturb = [Sam(rho), make_filter(form, ratio, order=order)]
    return method("fedfft", perturb=perturb, weights=Uniform(), papers=["fedfft", "sam"])


def fedfft_s(rho: NonNegative = 0.1, ratio: Share = 0.01, form: str = "fft", order: Order = "0123") -> Method:
    """FedFFT with SCAFFOLD's control variates.

    Paper: its algorithm 3 has the sign of C_k − C reversed and sums where it should average. Released code: none. Here:
    SCAFFOLD's signs and means.
    """
    perturb = [Sam(rho), make_filter(form, ratio, order=order)]
    return method(
        "fedfft-s",
        perturb=perturb,
        gradient=[ControlVariates()],
        weights=Uniform(),
        papers=["fedfft", "sam", "scaffold"],
    )


def fedfft_d(
    rho: NonNegative = 0.1, ratio: Share = 0.01, lam: Positive = 0.1, form: str = "fft", order: Order = "0123"
) -> Method:
    """FedFFT with FedDyn's dual.

    Paper: its algorithm 2 adds λ_k where it must subtract, and never uses λ on the server. Released code: none. Here:
    FedDyn's signs; λ = 1/β = 0.1, which the paper does not state.
    """
    perturb = [Sam(rho), make_filter(form, ratio, order=order)]
    return method(
        "fedfft-d", perturb=perturb, gradient=[DynamicDual(lam)], weights=Uniform(), papers=["fedfft", "sam", "feddyn"]
    )


def specgradfilter(
    ratio: Share = 0.05,
    base: str | Method = "fedavg",
    form: str = "fft",
    order: Order = "0123",
    window: Count = 25,
    sigma: Positive = 7.5,
    layers: tuple[str, ...] = (),
    min_dims: MinDims = 0,
) -> Method:
    """Any method with the low-frequency part of each data gradient removed; over FedAvg it averages uniformly.

    So it does over every base that averages by size: at ratio = 0, too, it is that base with uniform weights.

    `specgradfilter+scaffold` names the base; layers=("patch_embed.*",) restricts it, as the paper does for
    transformers.

    Paper: filters "each layer"; gives no window for LAP-D nor σ for the Gaussian. Released code: none. Here: 25 and
    7.5, which halve the frequency where the FFT form cuts; corrections, clip and weight decay come after the filter.
    Every tensor is filtered, as the algorithm reads; the paper's tables here set min_dims = 2, which leaves 1-D tensors
    alone: else the mean of a long norm's gains is never learned and only decays. The question `vectors` compares both.
    """
    if base == "fedavg":
        base = fedavg()
    if not isinstance(base, Method):
        raise MethodError(f"the base of specgradfilter is a Method, not {base!r}.", f'base=fk.METHODS["{base}"]()')
    rule = make_filter(form, ratio, order=order, window=window, sigma=sigma, min_dims=min_dims)
    return with_filter(base, On(tuple(layers), rule) if layers else rule)


def keel(ratio: Share = 0.1, lam: Positive = 0.1, decay: ShareBelowOne = 0.97, share: PositiveShare = 0.04) -> Method:
    """Gradients without their low frequencies, FedDyn's dual, and an averaged model: one backward pass, FedAvg's bytes.

    Paper: none; a composition of fedkeel's own, whose filter and average were chosen on validation shares (the question
    `together`). Released code: none. Here: the filter leaves 1-D tensors alone; the guide `keel` has schedules.
    """
    return method(
        "keel",
        gradient=[HighPass(ratio, min_dims=2), DynamicDual(lam)],
        weights=Uniform(),
        server=[ModelEma(decay, share)],
        papers=["specgradfilter", "feddyn", "ema"],
    )


def make_filter(
    form: str, ratio: Share, *, order: Order = "0123", window: Count = 25, sigma: Positive = 7.5, min_dims: MinDims = 0
) -> Rule:
    """The filter of that form."""
    rules: dict[str, Rule] = {
        "fft": HighPass(ratio, min_dims, order),
        "lap-d": PoolDetrend(window, min_dims),
        "gaussian": GaussianDetrend(sigma, min_dims),
        "fft-2d": HighPass2d(ratio),
        "high": LowPass(ratio, min_dims, order),
        "random": RandomBand(ratio, min_dims, order),
        "energy": RandomEnergy(ratio, min_dims, order),
        "l2": Rescale(ratio, min_dims),
        "norm": Rescale(ratio, min_dims, whole=True),
        "median": ClipMedian(min_dims=min_dims),
    }
    return rules[require_known(form, FORMS, "unknown form of filter", "forms", MethodError)]


def with_filter(base: Method, rule: Rule) -> Method:
    """`base` with `rule` first in the gradient chain of every training phase: it sees the data gradient alone."""

    def filter_first(phase: Phase) -> Phase:
        return replace(phase, gradient=(rule, *phase.gradient)) if phase.trains else phase

    weights = Uniform() if base.weights == BySize() else base.weights
    name = "specgradfilter" if base.name == "fedavg" else f"specgradfilter+{base.name}"
    papers = tuple(dict.fromkeys(("specgradfilter", *base.papers)))
    return replace(base.map_phases(filter_first), name=name, weights=weights, papers=papers)


def filter_gradients(base: Method, ratio: Share = 0.05, form: str = "fft", order: Order = "0123", window: Count = 25,
                     sigma: Positive = 7.5, layers: tuple[str, ...] = (), min_dims: MinDims = 0) -> Method:  # fmt: skip
    """The plug-in `specgradfilter+BASE`."""
    return specgradfilter(ratio, base, form, order, window, sigma, layers, min_dims)


def filter_perturbations(base: Method, ratio: Share = 0.01, form: str = "fft", order: Order = "0123") -> Method:
    """The plug-in `fedfft+BASE`: the low-frequency part of each of the base's perturbations removed."""
    rule = make_filter(form, ratio, order=order)
    if not any(phase.perturb for phase in base.phases if phase.trains):
        raise MethodError(
            f"{base.name} perturbs nothing that fedfft could filter.", "use specgradfilter+… for its gradients"
        )

    def filter_last(phase: Phase) -> Phase:
        return replace(phase, perturb=(*phase.perturb, rule)) if phase.trains and phase.perturb else phase

    papers = tuple(dict.fromkeys(("fedfft", *base.papers)))
    return replace(base.map_phases(filter_last), name=f"fedfft+{base.name}", papers=papers)
