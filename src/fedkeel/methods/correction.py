"""Corrections of the local direction against client drift."""

from __future__ import annotations

from fedkeel.method import Method, method
from fedkeel.rules import BySize, ClientMomentum, ControlVariates, DynamicDual, Proximal, Uniform


def fedprox(mu: float = 0.01) -> Method:
    """FedAvg with a pull back to the global model."""
    return method("fedprox", gradient=[Proximal(mu)], weights=BySize(), papers=["fedprox"])


def scaffold() -> Method:
    """Control variates, option II."""
    return method("scaffold", gradient=[ControlVariates()], weights=Uniform(), papers=["scaffold"])


def feddyn(lam: float = 0.1) -> Method:
    """Dynamic regularisation; the clip covers the whole correction."""
    return method("feddyn", gradient=[DynamicDual(lam)], weights=Uniform(), papers=["feddyn"])


def fedcm(alpha: float = 0.1) -> Method:
    """Client steps mixed with the last global direction."""
    return method("fedcm", gradient=[ClientMomentum(alpha)], weights=Uniform(), papers=["fedcm"])
