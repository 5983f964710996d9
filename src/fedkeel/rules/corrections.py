"""Corrections of the local direction, with the server's half of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedkeel.core.rule import Local, Rule, Setting, State, newer_field
from fedkeel.core.trees import Tree
from fedkeel.ranges import NonNegative, Positive, PositiveShare

__all__ = [
    "ActiveDual",
    "ClientMomentum",
    "ClipHere",
    "ClipNorm",
    "ControlVariates",
    "DecayHere",
    "DriftCorrection",
    "DynamicDual",
    "MomentumVariates",
    "Proximal",
    "WeightDecay",
]


@dataclass(frozen=True)
class ClipNorm(Rule, stackable=True):
    """Shorten the direction to at most `max_norm`: v · min(1, c / (‖v‖ + 1e-6)), as torch's clip_grad_norm_."""

    max_norm: Positive
    filters = True

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        return (self.max_norm / (tree.norm() + 1e-6)).clamp(max=1.0) * tree, client


@dataclass(frozen=True)
class ClipHere(Rule):
    """Where in the chain the experiment's clip goes; without this, in front of the optimiser, or at its end."""


@dataclass(frozen=True)
class DecayHere(Rule):
    """Where in the chain the experiment's weight decay goes; without this, at its very end, behind the optimiser."""


@dataclass(frozen=True)
class WeightDecay(Rule, stackable=True):
    """Pull towards zero: g + μ w, at the unperturbed point, as torch.optim.SGD does it.  rate = 0 does nothing."""

    rate: NonNegative

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        return tree.moved(at.params, self.rate), client


@dataclass(frozen=True)
class Proximal(Rule, stackable=True):
    """Pull back to where the round started: g + μ (w − w_t).  mu = 0 is FedAvg.  (FedProx, Li et al. 2020)"""

    mu: NonNegative

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        return tree + self.mu * (at.params - at.start), client


class Variates(Rule):
    """Control variates: c of the server, which it sends, and c_i of each client.

    c moves by the mean change that clients report, those not selected included.
    """

    means: ClassVar[tuple[str, ...]] = ("c",)

    def server_slots(self, params: Tree) -> State:
        return {"c": params.zeros()}

    def client_slots(self, params: Tree) -> State:
        return {"c_i": params.zeros()}

    def broadcast(self, message: State, server: State) -> State:
        return message | {"c": server["c"]}

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        return update, server | {"c": server["c"] + reports["c_moved"].sum() / reports["population"]}


@dataclass(frozen=True)
class ControlVariates(Variates, stackable=True):
    """Replace the client's mean direction by everyone's: g + c − c_i.

    c_i ← c_i − c + (w_t − w_i) / (K_i η); c moves by the mean change over all clients, those not selected included.
    scale = 0 is FedAvg.  (SCAFFOLD, option II, Karimireddy et al. 2020)
    """

    scale: NonNegative = 1.0

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        if self.scale == 1:
            return tree + at.message["c"] - client["c_i"], client
        return tree + self.scale * (at.message["c"] - client["c_i"]), client

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        moved = (at.start - at.params) / (at.lr * at.steps) - at.message["c"]
        return report | {"c_moved": moved}, client | {"c_i": client["c_i"] + moved}


@dataclass(frozen=True)
class MomentumVariates(ControlVariates, stackable=True):
    """Control variates whose common one follows the participants: g + c − c_i, c ← c + γ (mean_i c_i − c) over them.

    c_i ← c_i − c + (w_t − w_i) / Σ_k η_k. gamma = 1 forgets all rounds but the last. scale = 0 is FedAvg.
    (FedMoSWA, Liu et al. 2025)
    """

    gamma: PositiveShare = 0.2
    means = ()

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        _, client = super().finish(report, client, at)
        return report | {"c_i": client["c_i"]}, client

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        return update, server | {"c": server["c"] + self.gamma * (reports["c_i"].mean() - server["c"])}


@dataclass(frozen=True)
class DynamicDual(Rule, stackable=True):
    """Pull towards w_t − h_i, where h_i sums the client's past moves: g + λ (w − w_t + h_i); w gains the mean of all h.

    lam must be positive: with λ = 0 the server would still add the mean dual. `half` leaves the term λ w to a rule
    behind the clip. `divided` also divides the mean dual by the number of selected clients. Without `pull` it is
    g + λ h_i.  (FedDyn, Acar et al. 2021)
    """

    lam: Positive
    half: bool = False
    divided: bool = False
    pull: bool = newer_field(True)
    means = ("h",)

    def server_slots(self, params: Tree) -> State:
        return {"h": params.zeros()}

    def client_slots(self, params: Tree) -> State:
        return {"h_i": params.zeros()}

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        if not self.pull:
            return tree + self.lam * client["h_i"], client
        place = client["h_i"] - at.start if self.half else at.params - at.start + client["h_i"]
        return tree + self.lam * place, client

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        return report, client | {"h_i": client["h_i"] + at.params - at.start}

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        delta = reports["delta"]
        moved = delta.mean() if self.divided else delta.sum()
        h = server["h"] + moved / reports["population"]
        return update + h, server | {"h": h}


@dataclass(frozen=True)
class DriftCorrection(Rule, stackable=True):
    """Keep the local drift apart from the model: g + λ / ω_i (w − w_t + h_i) + c / ω_i − c_i, ω_i = n_i / mean n.

    h_i sums the client's past moves, and w gains the mean of all h. c_i ← c_i − c / ω_i + (w_t − w_i) / (K_i η); c
    moves by the mean of ω_i times that over all clients, those not selected included. lam must be positive: the
    larger, the stronger the pull. `mean_size` is set when the method meets its data; 0 weighs all clients
    alike.  (FedDC, Gao et al. 2022)
    """

    lam: Positive
    mean_size: NonNegative = 0.0
    means = ("h", "c")

    def settled(self, setting: Setting) -> Rule:
        return replace(self, mean_size=setting.mean_size)

    def server_slots(self, params: Tree) -> State:
        return {"h": params.zeros(), "c": params.zeros(), "mean_size": params.scalar(self.mean_size)}

    def client_slots(self, params: Tree) -> State:
        return {"h_i": params.zeros(), "c_i": params.zeros(), "size": params.scalar()}

    def broadcast(self, message: State, server: State) -> State:
        return message | {"c": server["c"], "mean_size": server["mean_size"]}

    def inverse_weight(self, client: State, server: State) -> Tensor:
        """1 / ω_i, of one client or of all in the reports."""
        size: Tensor = client["size"]
        return server["mean_size"] / size if self.mean_size else torch.ones_like(size)

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        less = self.inverse_weight(client, at.message)
        pull = self.lam * (at.params - at.start + client["h_i"]) + at.message["c"]
        return tree + less * pull - client["c_i"], client

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        less = self.inverse_weight(client, at.message)
        moved = (at.start - at.params) / (at.lr * at.steps) - less * at.message["c"]
        drift = client["h_i"] + at.params - at.start
        return report | {"c_moved": moved}, client | {"c_i": client["c_i"] + moved, "h_i": drift}

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        omega, everyone = 1 / self.inverse_weight(reports, server), reports["population"]
        h = server["h"] + reports["delta"].sum() / everyone
        c = server["c"] + reports["c_moved"].average(omega) / everyone
        return update + h, server | {"h": h, "c": c}


@dataclass(frozen=True)
class ActiveDual(Rule, stackable=True):
    """FedDyn's pull, g + λ (w − w_t + h_i), but each client sends w_i + h_i: the mean dual is that of the selected.

    lam must be positive. Without `pull` it is g + λ h_i.  (FedSpeed, Sun et al. 2023)
    """

    lam: Positive
    pull: bool = newer_field(True)
    adds = ("h_i",)

    def client_slots(self, params: Tree) -> State:
        return {"h_i": params.zeros()}

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        place = at.params - at.start + client["h_i"] if self.pull else client["h_i"]
        return tree + self.lam * place, client

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        h = client["h_i"] + at.params - at.start
        delta: Tree = report["delta"]
        return report | {"delta": delta + h, "moved": delta.norm()}, client | {"h_i": h}


def mean_direction(reports: State, own_steps: bool = False) -> Tree:
    """−Σ_i Δ_i / (η Σ_i K_i), the mean direction of all steps; with `own_steps` −mean_i Δ_i / (K_i η), that of clients.

    Without a copy of the reports.
    """
    way, delta = reports["lr"] * reports["steps"], reports["delta"]
    total = way * len(way) if own_steps else way.sum().expand_as(way)
    return delta.average(-1 / total)


@dataclass(frozen=True)
class ClientMomentum(Rule, stackable=True):
    """Mix the gradient with the last global direction: α g + (1 − α) m, m = −Σ_i Δ_i / (η Σ_i K_i).

    alpha = 1 is FedAvg. m = 0 in the first round, which therefore runs at α η. own_steps = True takes
    −mean_i Δ_i / (K_i η) for m: the same if all clients take as many steps; else those that take few count for more
    than they moved the model.  (FedCM, Xu et al. 2021)
    """

    alpha: PositiveShare
    own_steps: bool = False

    def server_slots(self, params: Tree) -> State:
        return {"momentum": params.zeros()}

    def broadcast(self, message: State, server: State) -> State:
        return message | {"momentum": server["momentum"]}

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        return self.alpha * tree + (1 - self.alpha) * at.message["momentum"], client

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        return update, server | {"momentum": mean_direction(reports, self.own_steps)}
