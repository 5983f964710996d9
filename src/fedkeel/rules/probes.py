"""Measurements that clients make, and what follows from them (FedSCAM; the loss before training)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from fedkeel.core.objective import Loss
from fedkeel.core.rule import Local, Rule, State
from fedkeel.core.trees import Tree
from fedkeel.kernels.custom_op import as_custom_op
from fedkeel.randomness import bits, key
from fedkeel.ranges import Count, NonNegative

__all__ = ["AdaptiveRadius", "MeasureAlignment", "MeasureLoss", "MeasureNorm", "PilotRadius"]


@dataclass(frozen=True)
class MeasureLoss(Rule, stackable=True):
    """Report the mean loss of this phase: in a phase that trains nothing, of the model as received.

    It is that of training: batch norms take the batch's statistics, and dropout drops.
    """

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        return report | {"loss_before": at.loss}, client


@dataclass(frozen=True)
class MeasureNorm(Rule, stackable=True):
    """The mean gradient norm over `batches` probe batches: h_i = (1/B) Σ_b ‖∇L(w_t; b)‖.  (FedSCAM)"""

    batches: Count

    def client_slots(self, params: Tree) -> State:
        return {"norm": params.scalar(0.0)}

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        before = client["norm"] * (at.step > 0)
        return tree, client | {"norm": before + tree.norm() / self.batches}


@dataclass(frozen=True)
class PilotRadius(Rule, stackable=True):
    """The last probe batch: add its norm to h_i, and climb by half of the radius that h_i allows.

    ρ_pilot = ½ ρ_max / (1 + α_ρ h_i).  (FedSCAM)
    """

    rho_max: NonNegative
    alpha_rho: NonNegative
    batches: Count
    needs_gradient = Loss()

    def client_slots(self, params: Tree) -> State:
        return {} if self.batches > 1 else {"norm": params.scalar(0.0)}

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        before = client["norm"] if self.batches > 1 else 0 * client["norm"]
        norm = before + tree.norm() / self.batches
        radius = 0.5 * self.rho_max / (1 + self.alpha_rho * norm)
        return radius * tree.unit(), client | {"norm": norm}


@dataclass(frozen=True)
class MeasureAlignment(Rule, stackable=True):
    """How far the client's pilot step agrees with the last global move, and how heterogeneous that makes it.

    c_i = cos(P(−g), P(w_t − w_(t−1))), of the phase's first batch; h̃_i = h_i · max(0, 1 − κ c_i). P keeps `dimensions`
    numbers of a vector. kappa = 0 ignores the agreement.  (FedSCAM)
    """

    kappa: NonNegative
    dimensions: Count = 256
    reads = ("norm",)

    def server_slots(self, params: Tree) -> State:
        return {"last_model": params}

    def client_slots(self, params: Tree) -> State:
        return {"alignment": params.scalar(0.0), "heterogeneity": params.scalar(0.0)}

    def broadcast(self, message: State, server: State) -> State:
        move: Tree = server["params"] - server["last_model"]
        return message | {"last_move": sketch(move.unit(), self.dimensions)}

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        pilot = sketch(-tree, self.dimensions)
        cosine = row_cosine(pilot, at.message["last_move"])
        alignment = torch.where(at.step == 0, cosine, client["alignment"])
        heterogeneity = client["norm"] * (1 - self.kappa * alignment).clamp(min=0)
        return tree, client | {"alignment": alignment, "heterogeneity": heterogeneity}

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        return report | {name: client[name] for name in ("alignment", "heterogeneity")}, client

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        return update, server | {"last_model": server["params"]}


@dataclass(frozen=True)
class AdaptiveRadius(Rule, stackable=True):
    """SAM with a radius that shrinks with the client's heterogeneity: ρ_max / (1 + α_ρ h̃_i).

    alpha_rho = 0 is SAM with rho_max. rho_max = 0 takes the gradient at w.  (FedSCAM)
    """

    rho_max: NonNegative
    alpha_rho: NonNegative
    needs_gradient = Loss()
    reads = ("heterogeneity",)

    def radius(self, client: State) -> Tensor:
        return self.rho_max / (1 + self.alpha_rho * client["heterogeneity"])

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        return self.radius(client) * tree.unit(), client

    def client_curves(self, params: Tree, client: State) -> State:
        return {"radius": self.radius(client)}


def row_cosine(a: Tensor, b: Tensor) -> Tensor:
    """Along the last axis; 0 when one of them is zero."""
    lengths: Tensor = torch.linalg.vector_norm(a, dim=-1) * torch.linalg.vector_norm(b, dim=-1)
    return (a * b).sum(-1) / lengths.clamp(min=1e-30)


def sketch(tree: Tree, dimensions: int) -> Tensor:
    """A count sketch: each coordinate, with a random sign, is added to a random one of `dimensions` numbers.

    Inner products are kept on average. A vector of at most `dimensions` numbers is kept as it is.
    """
    return tree.buffer if tree.layout.size <= dimensions else fold(tree.buffer, dimensions)


def _empty_fold(v: Tensor, dimensions: int) -> Tensor:
    return v.new_empty((*v.shape[:-1], dimensions))


@as_custom_op("fold(Tensor v, int dimensions) -> Tensor", _empty_fold)
def fold(v: Tensor, dimensions: int) -> Tensor:
    """The sketch of a vector that is longer than it."""
    bucket, sign = hash_places(v.shape[-1], dimensions, v.device)
    return torch.index_add(v.new_zeros((*v.shape[:-1], dimensions)), -1, bucket, v * sign.to(v.dtype))


@cache
def hash_places(size: int, dimensions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The same for every client, round and run: a sketch must meet its like."""
    draws = bits(key(0, "sketch", size), size)
    bucket = torch.from_numpy((draws >> 33) % dimensions).to(torch.int64)
    sign = torch.from_numpy((draws & 1).astype("int8")).to(torch.int8) * 2 - 1
    return bucket.to(device), sign.to(device)
