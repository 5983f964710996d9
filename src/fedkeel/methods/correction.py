"""Corrections of the local direction against client drift."""

from __future__ import annotations

from dataclasses import replace

from fedkeel.core.method import Method, Phase, method
from fedkeel.core.objective import Loss, Objective
from fedkeel.core.objectives import Calibrated, Decorrelated, Smoothed
from fedkeel.core.rule import Rule
from fedkeel.errors import MethodError
from fedkeel.ranges import NonNegative, Positive, PositiveShare, Share
from fedkeel.rules import (
    BySize,
    ClientMomentum,
    ClipHere,
    ControlVariates,
    DriftCorrection,
    DynamicDual,
    Proximal,
    Uniform,
    WeightDecay,
)

__all__ = ["fedprox", "scaffold", "feddyn", "feddyn_released", "fedcm", "feddc", "fedlc", "feddecorr"]


def fedprox(mu: NonNegative = 0.01) -> Method:
    """FedAvg with a pull back to the global model.

    Paper: μ (w − w_t) is part of the loss. Released code (FL-Simulator): its half μ w is added behind the clip. Here:
    as in the paper, all of it under the clip.
    """
    return method("fedprox", gradient=[Proximal(mu)], weights=BySize(), papers=["fedprox"])


def scaffold() -> Method:
    """Control variates, option II.

    Paper: c_i uses each client's own number of steps. Released code (FL-Simulator): client 0's for all. Here: each
    client's own, and the learning rate of the round.
    """
    return method("scaffold", gradient=[ControlVariates()], weights=Uniform(), papers=["scaffold"])


def feddyn(lam: Positive = 0.1) -> Method:
    """Dynamic regularisation; the clip covers the whole correction.

    Paper: λ (w − w_t + h_i) is part of the loss. Released code: the half λ w is added behind the clip, which shrinks
    large models. Here: all of it under the clip; feddyn@released is the other.
    """
    return method("feddyn", gradient=[DynamicDual(lam)], weights=Uniform(), papers=["feddyn"])


def feddyn_released(lam: Positive = 0.1) -> Method:
    """FedDyn with half of the proximal term behind the clip.

    Paper: see feddyn. Released code (FL-Simulator): λ (h_i − w_t) is clipped with the gradient, λ w is weight decay.
    Here: as released.
    """
    return method("feddyn@released", gradient=half_clipped(lam), weights=Uniform(), papers=["feddyn"])


def half_clipped(lam: float) -> list[Rule]:
    """FedDyn's correction as FL-Simulator has it: λ (h_i − w_t) under the clip, λ w behind it."""
    return [DynamicDual(lam, half=True), ClipHere(), WeightDecay(lam)]


def fedcm(alpha: PositiveShare = 0.1, own_steps: bool = False) -> Method:
    """Client steps mixed with the last global direction.

    Paper: the server steps by η_g m in units of a gradient. Released code (FL-Simulator): it averages, which is
    η_g = K η, and takes the steps of one client for K. Here: averaging, and the mean number of steps for K.
    """
    return method("fedcm", gradient=[ClientMomentum(alpha, own_steps)], weights=Uniform(), papers=["fedcm"])


def feddc(lam: Positive = 0.01) -> Method:
    """Local drift kept apart from the model: a dual as in FedDyn, and control variates as in SCAFFOLD.

    Paper: averages w_i + h_i over the participants. Released code: adds the mean drift of all clients, and divides by
    the undecayed learning rate; clients weigh alike in the model, and by their share of the data in the correction.
    Here: as released, with the learning rate of the round.
    """
    return method("feddc", gradient=[DriftCorrection(lam)], weights=Uniform(), papers=["feddc"])


def fedlc(tau: NonNegative = 1.0) -> Method:
    """Logits lowered by τ n_c^(−1/4), so more for classes that the client rarely has; evaluation is unshifted.

    tau = 0 is FedAvg, with the classes a client lacks masked.

    Paper: the true class is left out of the denominator, which is unbounded below. Released code (FL-bench): it is
    kept. Here: kept, and classes the client lacks are masked.
    """
    return method("fedlc", weights=BySize(), objective=Calibrated(tau), papers=["fedlc"])


def feddecorr(beta: NonNegative = 0.1) -> Method:
    """FedAvg whose clients also pay for correlated features, which collapse where labels are few.

    beta = 0 is FedAvg.

    Paper: β ‖K‖² / d², K the correlations of the d features in a batch. Released code: the mean square of what is off
    the diagonal of the sums, not means, of products, divided by the n samples: about n times as much, so that the
    reported β = 0.1 at batches of 64 is about 6 in the paper's units. Here: as released; `feddecorr+BASE` puts it on
    another method, whose perturbations still climb on the loss alone.
    """
    return method("feddecorr", weights=BySize(), objective=Decorrelated(beta), papers=["feddecorr"])


def decorrelate(base: Method, beta: NonNegative = 0.1) -> Method:
    """The plug-in `feddecorr+BASE`: clients also pay for correlated features.  beta = 0 is the base."""
    return train_on(base, Decorrelated(beta), "feddecorr")


def smooth_labels(base: Method, smoothing: Share = 0.1) -> Method:
    """The plug-in `smoothed+BASE`: a share of each label is divided among all classes.  smoothing = 0 is the base.

    Perturbations still climb on the loss alone.
    """
    return train_on(base, Smoothed(smoothing), "smoothed")


def train_on(base: Method, objective: Objective, name: str) -> Method:
    """The base trained on an objective that adds to the loss; its perturbations still climb on the loss alone."""

    def change(phase: Phase) -> Phase:
        if not phase.trains:
            return phase
        if phase.objective != Loss():
            raise MethodError(
                f"{base.name} trains on an objective of its own ({phase.objective}), {name} brings another, and a "
                "phase has only one.",
                f"put it on a method that trains on the loss: {name}+scaffold; or write an fk.Objective whose losses "
                "return the sum of both",
            )
        return replace(phase, objective=objective)

    papers = tuple(dict.fromkeys((name, *base.papers)))
    return replace(base.map_phases(change), name=f"{name}+{base.name}", papers=papers)
