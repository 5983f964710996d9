"""Momentum of the server, fitted to each client (FedWMSAM) or in units of the first learning rate (FedFSA)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from fedkeel.core.rule import Local, Rule, Setting, State
from fedkeel.core.trees import Tree, cosine
from fedkeel.ranges import NonNegative, OpenShare, Share, ShareBelowOne
from fedkeel.rules.corrections import ClientMomentum, ControlVariates, mean_direction
from fedkeel.rules.perturbations import by_tensor_number

__all__ = ["AddMomentum", "FirstRateMomentum", "MixGradients", "PersonalMomentum", "PredictedPosition"]


@dataclass(frozen=True)
class FirstRateMomentum(ClientMomentum, stackable=True):
    """Mix the gradient with the last global direction: α g + (1 − α) m, m = −γ Σ_i Δ_i / (η_0 Σ_i K_i).

    alpha = 1 is FedAvg. η_0 is the learning rate of the first round and γ its decay, whatever the round's own is; both
    are set when the method meets its experiment. first_lr = 0 takes the round's. decay = 1 leaves m as it is.
    (FedFSA's code)
    """

    first_lr: NonNegative = 0.0
    decay: NonNegative = 1.0

    def settled(self, setting: Setting) -> Rule:
        return replace(self, first_lr=setting.lr, decay=setting.lr_decay)

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        lr = torch.full_like(reports["lr"], self.first_lr) if self.first_lr else reports["lr"]
        m = mean_direction(reports | {"lr": lr}, self.own_steps)
        return update, server | {"momentum": self.decay * m}


@dataclass(frozen=True)
class AddMomentum(ClientMomentum, stackable=True):
    """Add the last global direction: d + α m, m = −Σ_i Δ_i / (η Σ_i K_i).

    alpha = 0 adds nothing. Without the 1 − α of ClientMomentum a direction that stays is amplified by 1 / (1 − α).
    own_steps = True takes −mean_i Δ_i / (K_i η) for m.  (FedAdamW, Liu et al. 2026)
    """

    alpha: ShareBelowOne = 0.5

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        return tree.moved(at.message["momentum"], self.alpha), client


@dataclass(frozen=True)
class PersonalMomentum(Rule, stackable=True):
    """Mix the gradient with a momentum fitted to the client: α g + (1 − α) m_i, m_i = m + α / (1 − α) · (c − c_i).

    α moves by `smooth` towards the mean of 1 + cos(Δ_i, m), kept in [0.1, 0.9]: clients that follow the momentum lower
    it, and rely on the momentum more. alpha = 0.1 is where α begins. smooth = 0 keeps it there. mix = False steps along
    g alone; the momentum is still followed. decay = 1 leaves m = −Σ_i Δ_i / (η Σ_i K_i) as it is; the released
    code multiplies it by the decay of the learning rate.  (FedWMSAM, Li et al. 2025)
    """

    alpha: OpenShare = 0.1
    smooth: Share = 0.01
    mix: bool = True
    decay: NonNegative = 1.0
    variates: ControlVariates = field(default_factory=ControlVariates)

    def server_slots(self, params: Tree) -> State:
        return self.variates.server_slots(params) | {"momentum": params.zeros(), "alpha": params.scalar(self.alpha)}

    def client_slots(self, params: Tree) -> State:
        return self.variates.client_slots(params)

    def broadcast(self, message: State, server: State) -> State:
        return self.variates.broadcast(message, server) | {name: server[name] for name in ("momentum", "alpha")}

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        alpha = at.message["alpha"]
        return alpha * tree + (1 - alpha) * client_momentum(client, at) if self.mix else tree, client

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        return self.variates.finish(report, client, at)

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        update, server = self.variates.server_step(update, server, reports)
        delta, m = reports["delta"], server["momentum"]
        moves = (delta.norm() * m.norm() > 0).to(delta.buffer.dtype)  # without a direction, as far off as can be
        far = (moves * (1 + cosine(delta, m))).mean().clamp(0.1, 0.9)
        return update, server | {
            "alpha": (1 - self.smooth) * server["alpha"] + self.smooth * far,
            "momentum": self.decay * mean_direction(reports),
        }

    def server_curves(self, message: State) -> State:
        return {"alpha": message["alpha"]}


def client_momentum(client: State, at: Local) -> Tree:
    """m_i = m + α / (1 − α) · (c − c_i)."""
    alpha = at.message["alpha"]
    return at.message["momentum"] + (at.message["c"] - client["c_i"]) * (alpha / (1 - alpha))


@dataclass(frozen=True)
class PredictedPosition(Rule, stackable=True):
    """Climb towards where the client's momentum points: ρ (w_t + k m_i − w) / ‖·‖ in step k; none in step 0.

    rho = 0 takes the gradient at w. `released` keeps two errors of the released code: the opposite sign, and one number
    per tensor.  (FedWMSAM, Li et al. 2025)
    """

    rho: NonNegative
    released: bool = False
    reads = ("momentum", "alpha", "c", "c_i")

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        ahead = at.start + at.step.to(at.params.buffer.dtype) * client_momentum(client, at) - at.params
        if self.released:
            return -self.rho * by_tensor_number(ahead), client
        return self.rho * ahead.unit(), client


@dataclass(frozen=True)
class MixGradients(Rule, stackable=True):
    """Mix the gradients before and after the climb: (1 − a) g(w) + a g(w + δ).  mix = 1 is SAM, 0 SGD.  (FedSpeed)"""

    mix: Share
    reads = ("gradient",)

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        assert at.gradient is not None
        return tree.elementwise(lambda after, before: torch.lerp(before, after, self.mix), at.gradient), client
