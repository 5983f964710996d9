"""Sharpness-aware local steps."""

from __future__ import annotations

from fedkeel.method import Method, method
from fedkeel.rules import ClientMomentum, ControlVariates, DynamicDual, Sam, Uniform


def fedsam(rho: float = 0.1) -> Method:
    """Sharpness-aware local steps."""
    return method("fedsam", perturb=[Sam(rho)], weights=Uniform(), papers=["sam", "fedsam"])


def mofedsam(rho: float = 0.1, alpha: float = 0.1) -> Method:
    """FedSAM with the client momentum of FedCM."""
    gradient = [ClientMomentum(alpha)]
    return method(
        "mofedsam", perturb=[Sam(rho)], gradient=gradient, weights=Uniform(), papers=["sam", "mofedsam", "fedcm"]
    )


def fedsam_s(rho: float = 0.1) -> Method:
    """FedSAM with SCAFFOLD's control variates; the same as FedGAMMA."""
    gradient = [ControlVariates()]
    return method(
        "fedsam-s", perturb=[Sam(rho)], gradient=gradient, weights=Uniform(), papers=["sam", "fedgamma", "scaffold"]
    )


def fedsam_d(rho: float = 0.1, lam: float = 0.1) -> Method:
    """FedSAM with FedDyn's dual; the same as FedSpeed's released code."""
    gradient = [DynamicDual(lam)]
    return method("fedsam-d", perturb=[Sam(rho)], gradient=gradient, weights=Uniform(), papers=["sam", "feddyn"])
