"""How much each client counts, and what the server makes of the average."""

from __future__ import annotations

from fedkeel.core.method import Method, Phase, method
from fedkeel.core.objective import Value
from fedkeel.core.rule import Rule
from fedkeel.errors import MethodError
from fedkeel.ranges import AnyFinite, NonNegative, Passes, Positive, ShareBelowOne, Whole
from fedkeel.rules import (
    AtMixture,
    ByAttraction,
    ByDiscrepancy,
    ByEffort,
    ByLoss,
    ByOthersLoss,
    ByPlaces,
    BySize,
    Fair,
    FairShares,
    LearnMixture,
    LocalMomentum,
    MeasureLoss,
    OnProxy,
    Proximal,
    Shrink,
)
from fedkeel.rules.weights import Metric

__all__ = ["q_fedavg", "fedlw", "fednolowe", "feddisco", "fedawa", "fedawa_released", "fedlws", "fedlaw", "fednova"]


def q_fedavg(q: NonNegative = 0.1, mode: str = "exact") -> Method:
    """Clients whose loss is high count more.  q = 0 is uniform (exact) or by size (reweight).

    mode = "exact" is the paper's step, "reweight" averages with p_i ∝ n_i F_i^q.

    Paper: a step divided by a bound on the curvature, which stalls for large q. Released code: the same. Here: the same
    with each client's current learning rate.
    """
    if mode not in ("exact", "reweight"):
        raise MethodError(f"q-fedavg has no mode: {mode}", "exact or reweight")
    measure = Phase(gradient=(MeasureLoss(),), epochs=1, trains=False, uploads=False, objective=Value())
    weights = Fair(q) if mode == "exact" else FairShares(q)
    return Method("q-fedavg", (measure, Phase()), weights, papers=("qfedavg",))


def fedlw() -> Method:
    """Weights in proportion to 1 / loss. Experimental.

    Paper: known by its abstract only, which says that lower losses weigh more. Released code: none. Here: p_i ∝ 1 /
    L_i; a client whose loss is 0, as where its targets are all ignored, is left out.
    """
    return method("fedlw", weights=ByLoss(), papers=["fedlw"])


def fednolowe() -> Method:
    """Weights from the others' share of the loss."""
    return method("fednolowe", weights=ByOthersLoss(), papers=["fednolowe"])


def feddisco(a: AnyFinite = 0.5, b: AnyFinite = 0.1, metric: Metric = "kl") -> Method:
    """Weights by size, less for clients whose labels are far from uniform.

    Paper: as here. Released code: fails when no weight is positive. Here: by size then.
    """
    return method("feddisco", weights=ByDiscrepancy(a, b, metric), papers=["feddisco"])


def fedawa(steps: Whole = 1, server_lr: NonNegative = 1e-3, gamma: Positive = 1.0) -> Method:
    """Weights learned on the server from the updates alone.

    Paper: weights start at the sizes and are learned. Released code: softmax of the sizes themselves, almost uniform,
    kept by place in the list of participants, used before it is learned. Here: log sizes, kept per client, used
    after.
    """
    return method("fedawa", weights=ByAttraction(steps, server_lr, gamma), papers=["fedawa"])


def fedawa_released(steps: Whole = 1, server_lr: NonNegative = 1e-3, gamma: Positive = 1.0) -> Method:
    """FedAWA as released: nearly uniform weights.

    Paper: see fedawa. Released code: logits start at the shares that the first participants have of all clients' data,
    belong to places from then on, and are used before their last step. Here: as released; a place that nobody has had
    yet starts at its first client's share.
    """
    weights = ByPlaces(steps, server_lr, gamma)
    return method("fedawa@released", weights=weights, papers=["fedawa"])


def fedlws(beta: NonNegative = 0.03, tau_min: NonNegative = 0.01, tau_max: NonNegative = 0.2) -> Method:
    """FedAvg, each layer of the average shrunk by how far the clients are apart.

    Paper: layer by layer. Released code: groups entries up to each bias, running statistics included. Here: a layer
    is a module, and statistics are not shrunk.
    """
    return method("fedlws", weights=BySize(), server=[Shrink(beta, tau_min, tau_max)], papers=["fedlws"])


def fedlaw(rate: NonNegative = 0.01, epochs: Passes = 20) -> Method:
    """Weights and a shrinking factor learned on the server's own proxy data.

    epochs = 20 passes over the proxy data in every round.

    Paper: the proxy is a small set the server holds. Released code: 2 % of the test set. Here: Problem(proxy=…), or a
    share of the training data set aside before it is divided; never test data.
    """
    learn = Phase((AtMixture(),), (LearnMixture(rate),), epochs=epochs, trains=False)
    return Method("fedlaw", (Phase(),), OnProxy(), server_phase=learn, papers=("fedlaw",))


def fednova(momentum: ShareBelowOne = 0.0, mu: NonNegative = 0.0) -> Method:
    """FedAvg with each update divided by the client's number of steps, so that those who take many do not pull more.

    Paper: τ Σ p_i Δ_i / ‖a_i‖₁; τ is free, the mean of the steps by default. Released code: τ = Σ p_i ‖a_i‖₁, with a
    proximal term Σ p_i K_i; with momentum and proximal term together its normaliser is neither formula's; all clients
    take part. Here: as released, of those that take part; the momentum begins anew in each round, and is refused
    together with mu. An optimiser that the experiment adds is not counted in the effort.
    """
    gradient: list[Rule] = ([Proximal(mu)] if mu else []) + ([LocalMomentum(momentum)] if momentum else [])
    return method("fednova", gradient=gradient, weights=ByEffort(momentum, mu), papers=["fednova"])
