"""Filtering the low-frequency part of perturbations or gradients."""

from __future__ import annotations

from dataclasses import replace

from fedkeel.method import Method, method
from fedkeel.rules import BySize, ControlVariates, DynamicDual, HighPass, Sam, Uniform


def fedfft(rho: float = 0.1, ratio: float = 0.01) -> Method:
    """FedSAM with the low-frequency part of each perturbation removed."""
    perturb = [Sam(rho), HighPass(ratio)]
    return method("fedfft", perturb=perturb, weights=Uniform(), papers=["fedfft", "sam"])


def fedfft_s(rho: float = 0.1, ratio: float = 0.01) -> Method:
    """FedFFT with SCAFFOLD's control variates."""
    perturb = [Sam(rho), HighPass(ratio)]
    return method(
        "fedfft-s", perturb=perturb, gradient=[ControlVariates()], weights=Uniform(), papers=["fedfft", "scaffold"]
    )


def fedfft_d(rho: float = 0.1, ratio: float = 0.01, lam: float = 0.1) -> Method:
    """FedFFT with FedDyn's dual."""
    perturb = [Sam(rho), HighPass(ratio)]
    return method(
        "fedfft-d", perturb=perturb, gradient=[DynamicDual(lam)], weights=Uniform(), papers=["fedfft", "feddyn"]
    )


def specgradfilter(ratio: float = 0.05, base: str | Method = "fedavg", min_dims: int = 0) -> Method:
    """Any method with the low-frequency part of each data gradient removed; over FedAvg it averages uniformly."""
    return filtered(base, HighPass(ratio, min_dims))


def filtered(base: str | Method, rule: HighPass) -> Method:
    """`base` with `rule` first in the gradient chain of every training phase: it sees the data gradient alone."""
    from fedkeel.methods import build  # the registry holds this module's methods

    base = build(base) if isinstance(base, str) else base
    phases = tuple(replace(p, gradient=(rule, *p.gradient)) if p.trains else p for p in base.phases)
    weights = Uniform() if base.weights == BySize() else base.weights
    name = "specgradfilter" if base.name == "fedavg" else f"specgradfilter+{base.name}"
    papers = tuple(dict.fromkeys(("specgradfilter", *base.papers)))
    return replace(base, name=name, phases=phases, weights=weights, papers=papers)
