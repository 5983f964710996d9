"""Perturbations: where the gradient is taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedkeel.core.layout import Layout
from fedkeel.core.objective import Loss
from fedkeel.core.objectives import Distilled
from fedkeel.core.rule import Local, Rule, State
from fedkeel.core.trees import Tree
from fedkeel.ranges import NonNegative, Positive

__all__ = [
    "AdaptiveSam",
    "AdmmPerturbation",
    "AlongMomentum",
    "Ascent",
    "DistilAscent",
    "GlobalDirection",
    "LastServerStep",
    "Sam",
    "SharedLayers",
]


@dataclass(frozen=True)
class Sam(Rule, stackable=True):
    """Climb along the local gradient: ρ g / ‖g‖.  rho = 0 takes the gradient at w.  (SAM, Foret et al. 2021)"""

    rho: NonNegative
    needs_gradient = Loss()

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        return self.rho * tree.unit(), client


@dataclass(frozen=True)
class Ascent(Rule, stackable=True):
    """Climb by the gradient itself, not its direction: ρ g.  rho = 0 takes the gradient at w.  (FedSpeed)"""

    rho: NonNegative
    needs_gradient = Loss()

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        return self.rho * tree, client


@dataclass(frozen=True)
class AdaptiveSam(Rule, stackable=True):
    """Climb further where weights are large: ρ T² g / ‖T g‖ with T = |w| + η, and 1 for biases.

    rho = 0 takes the gradient at w. eta = 0 leaves weights that are zero in their place.  (ASAM, Kwon et al. 2021;
    FedASAM, Caldarola et al. 2022)
    """

    rho: NonNegative
    eta: NonNegative = 0.2
    needs_gradient = Loss()

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        weights = at.params.only(lambda name: "bias" not in name)
        scale = at.params.ones() | weights.elementwise(lambda w: w.abs() + self.eta)
        return self.rho * (scale * (scale * tree).unit()), client


@dataclass(frozen=True)
class GlobalDirection(Rule, stackable=True):
    """Climb against the last global move this client saw: ρ (w_old − w_t) / ‖w_old − w_t‖, the same in every step.

    w_old is the model received when it last took part; the first time there is none. rho = 0 takes the gradient at w.
    (FedLESAM, Fan et al. 2024)
    """

    rho: NonNegative

    def client_slots(self, params: Tree) -> State:
        return {"last_seen": params, "seen": params.scalar(0.0)}

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        return client["seen"] * (self.rho * (client["last_seen"] - at.start).unit()), client

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        return report, client | {"last_seen": at.start, "seen": torch.ones_like(client["seen"])}


@dataclass(frozen=True)
class AlongMomentum(Rule, stackable=True):
    """Look ahead along the server's momentum m and climb against it: γ m − ρ m / ‖m‖, the same in every step.

    gamma = 0 does not look ahead. rho = 0 does not climb. Without a gradient of its own; the first round has no
    momentum. m is the last move where the server's rate is 1. A reconstruction: the paper's text could not be had.
    (FedNSAM, Liu et al. 2025)
    """

    gamma: NonNegative = 0.85
    rho: NonNegative = 0.05
    reads = ("velocity",)

    def broadcast(self, message: State, server: State) -> State:
        return message | {"velocity": server["velocity"]}

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        ahead: Tree = at.message["velocity"]
        return self.gamma * ahead - self.rho * ahead.unit(), client


@dataclass(frozen=True)
class LastServerStep(Rule, stackable=True):
    """FedLESAM's released code: shift tensor number l by −ρ u[l] / Σ_j |u[j]|, where u = w_t − w_(t−1) is flat.

    A number per tensor, taken from the first entries of the flat vector: an indexing error kept for comparison.
    rho = 0 takes the gradient at w.
    """

    rho: NonNegative

    def server_slots(self, params: Tree) -> State:
        return {"previous": params}

    def broadcast(self, message: State, server: State) -> State:
        return message | {"last_step": server["params"] - server["previous"]}

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        return -self.rho * by_tensor_number(at.message["last_step"]), client

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        return update, server | {"previous": server["params"]}


def by_tensor_number(direction: Tree) -> Tree:
    """Tensor number l filled with v[l] / Σ_j |v[j]|: v is flat, in the model's order; j counts as many as tensors."""
    first = torch.cat([leaf.reshape((*direction.buffer.shape[:-1], -1)) for _, leaf in direction.items()], -1)
    first = first[..., : len(direction)]
    shares: Tensor = first / (first.abs().sum(-1, keepdim=True) + 1e-7)
    return fill_tensors(dict(zip(direction, shares.unbind(-1), strict=True)), direction.layout)


def fill_tensors(numbers: Mapping[str, Tensor] | Tree, layout: Layout) -> Tree:
    """Each tensor of a layout filled with its number."""
    filled = {}
    for name, shape in layout.shapes.items():
        number = numbers[name]
        filled[name] = number.reshape(number.shape + (1,) * len(shape)).expand(number.shape + shape)
    return Tree.of(filled, layout)


@dataclass(frozen=True)
class AdmmPerturbation(Rule, stackable=True):
    """Climb along the gradient less two duals: δ = ρ (g − μ_i − s) / ‖·‖, μ_i ← μ_i + δ − s after every step.

    The server's s = ρ · mean_i μ_i / ‖·‖ draws the clients' perturbations together. rho = 0 takes the gradient at w.
    (FedSMOO, Sun et al. 2023)
    """

    rho: NonNegative
    needs_gradient = Loss()

    def server_slots(self, params: Tree) -> State:
        return {"s": params.zeros()}

    def client_slots(self, params: Tree) -> State:
        return {"mu_i": params.zeros()}

    def broadcast(self, message: State, server: State) -> State:
        return message | {"s": server["s"]}

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        mu, s = client["mu_i"], at.message["s"]
        delta = self.rho * (tree - mu - s).unit()
        return delta, client | {"mu_i": mu + delta - s}

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        return report | {"mu_i": client["mu_i"]}, client

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        return update, server | {"s": self.rho * reports["mu_i"].mean().unit()}


@dataclass(frozen=True)
class DistilAscent(Rule, stackable=True):
    """Climb on the distance to the global model's outputs, descend on the loss: ρ Λ ⊙ g_P / ‖g_P‖.

    Λ = 1, or when `adaptive` |w − w_t| normalised along the first axis of each tensor. At w = w_t the distance is flat,
    and g_P rounding noise, as it is where it is shorter than 1e-8: there is no perturbation then. rho = 0 is FedAvg.
    temperature = 1 compares outputs as they are.  (FedSOL, Lee et al. 2024)
    """

    rho: NonNegative
    adaptive: bool = False
    temperature: Positive = 3.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs_gradient", Distilled(self.temperature))

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        moved = at.params - at.message["params"]
        certain = ((moved.norm() > 0) & (tree.norm() >= 1e-8)).to(tree.buffer.dtype)
        climb = certain * (self.rho * tree.unit(1e-12))
        if self.adaptive:
            climb = climb * moved.map(along_first_axis)
        return climb, client


def along_first_axis(leaf: Tensor) -> Tensor:
    """|v| / ‖v‖, the norm taken over the first axis; 0 where v is 0."""
    if leaf.dim() == 0:
        return leaf.abs() / (leaf.abs() + 1e-12)
    length: Tensor = torch.linalg.vector_norm(leaf, dim=0, keepdim=True)
    return leaf.abs() / (length + 1e-12)


@dataclass(frozen=True)
class SharedLayers(Rule, stackable=True):
    """Climb layer by layer, less where the client differs from the global model: ρ (1 − Λ_l) ‖w_l‖ g_l / ‖g_l‖.

    Λ_l = ‖w_l − w_t,l‖ / √n_l, divided by the largest of them. rho = 0 takes the gradient at w. A reconstruction: no
    code is public.  (PLGU, Qu et al. 2023)
    """

    rho: NonNegative
    needs_gradient = Loss()

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        moved = (at.params - at.message["params"]).map(lambda leaf: leaf.square().mean().sqrt())
        shared = 1 - moved.elementwise(lambda v: v / (v.amax(-1, keepdim=True) + 1e-12))
        return tree.map(self.climb, at.params, shared), client

    def climb(self, g: Tensor, w: Tensor, shared: Tensor) -> Tensor:
        far: Tensor = torch.linalg.vector_norm(w) / (torch.linalg.vector_norm(g) + 1e-12)
        return self.rho * shared * far * g
