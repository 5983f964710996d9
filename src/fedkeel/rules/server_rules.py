"""Rules of the server alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedkeel.core.rule import Local, Rule, State, newer_field, require
from fedkeel.core.trees import Tree
from fedkeel.ranges import Count, NonNegative, Positive, Share, ShareBelowOne, Whole
from fedkeel.rules.weights import finite_norm, into_range

__all__ = [
    "Extrapolate", "GlobalSharpness", "ServerAdam", "ServerMomentum", "Shrink", "StartAhead", "Trajectory", "WarmUp"
]  # fmt: skip

Form = Literal["heavy-ball", "ema", "nesterov"]
SecondMoment = Literal["adam", "yogi", "adagrad"]


@dataclass(frozen=True)
class ServerMomentum(Rule):
    """Momentum on the averaged update: v ← β v + Δ, w ← w + v.  momentum = 0 is FedAvg.  (FedAvgM, Hsu et al. 2019)

    form = "ema" adds (1 − β) Δ instead of Δ; "nesterov" moves by Δ + β v.
    """

    momentum: ShareBelowOne
    form: Form = "heavy-ball"

    def server_slots(self, params: Tree) -> State:
        return {"velocity": params.zeros()}

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        before = self.momentum * server["velocity"].only(update.layout)
        velocity = before + ((1 - self.momentum) * update if self.form == "ema" else update)
        move = update + self.momentum * velocity if self.form == "nesterov" else velocity
        return move, server | {"velocity": server["velocity"] | velocity}


@dataclass(frozen=True)
class ServerAdam(Rule):
    """Adam on the averaged update: m ← β₁ m + (1 − β₁) Δ, v ← β₂ v + (1 − β₂) Δ², w ← w + η m / (√v + τ).

    beta1 = 0 keeps no momentum. beta2 = 0 scales by the last update alone. A larger tau keeps small updates small.
    second = "yogi" moves v by (1 − β₂) Δ² towards Δ², "adagrad" sums all Δ². v starts at v0 · τ²: v0 = 0 is
    zero. correct = False leaves the bias of the first rounds t; True multiplies the move by √(1 − β₂^t) / (1 − β₁^t),
    where a sum of squares has no bias.  (FedAdam, FedYogi, FedAdagrad, Reddi et al. 2021)
    """

    beta1: ShareBelowOne = 0.9
    beta2: ShareBelowOne = 0.99
    tau: Positive = 1e-3
    second: SecondMoment = newer_field("adam")
    v0: NonNegative = newer_field(0.0)
    correct: bool = newer_field(False)

    def server_slots(self, params: Tree) -> State:
        slots: State = {"first_moment": params.zeros(), "second_moment": self.v0 * self.tau * self.tau * params.ones()}
        return slots | ({"moves": params.scalar(0.0)} if self.correct else {})

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        first = self.beta1 * server["first_moment"].only(update.layout) + (1 - self.beta1) * update
        second = self.next_second(server["second_moment"].only(update.layout), update * update)
        move = first.elementwise(lambda m, v: m / (v.sqrt() + self.tau), second)
        server = server | {
            "first_moment": server["first_moment"] | first,
            "second_moment": server["second_moment"] | second,
        }
        if not self.correct:
            return move, server
        t = server["moves"] + 1
        spread = 1.0 if self.second == "adagrad" else (1 - self.beta2**t).sqrt()
        return move * (spread / (1 - self.beta1**t)), server | {"moves": t}

    def next_second(self, second: Tree, square: Tree) -> Tree:
        """v after a round, from v and Δ²."""
        if self.second == "adagrad":
            return second + square
        if self.second == "yogi":
            return second - (1 - self.beta2) * second.elementwise(lambda v, s: s * torch.sign(v - s), square)
        return self.beta2 * second + (1 - self.beta2) * square


@dataclass(frozen=True)
class Extrapolate(Rule):
    """Go further where the clients' updates differ: w ← w + η_g Δ, η_g = max(1, Σ p_i ‖Δ_i‖² / (2 (‖Δ‖² + ε))).

    A larger epsilon extrapolates less. Equal updates are averaged as they are. by_count = False takes ε as it is; True
    multiplies it by the number of participants.  (FedExP, Jhunjhunwala et al. 2023)
    """

    epsilon: NonNegative = 1e-3
    by_count: bool = False

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        scale, (delta, mean) = into_range(reports["delta"], reports["update"])
        lengths = delta.norm().square()
        epsilon = self.epsilon * (len(lengths) if self.by_count else 1)
        whole = 2 * (mean.norm().square() + epsilon / scale**2)
        further = (reports["weights"] * lengths).sum() / whole.clamp(min=torch.finfo(whole.dtype).tiny)
        return update * further.clamp(min=1.0), server


@dataclass(frozen=True)
class GlobalSharpness(Rule):
    """Send the model moved against the last update: w_t − ρ_t Δ / ‖Δ‖, while the server keeps w_t.

    rho = 0 sends w_t; so does the first round. warmup = 0 keeps ρ constant; else it grows for so many rounds T from
    ρ_0: ρ_t = ρ_0 + (ρ − ρ_0) min(t / T, 1). rho0 = rho keeps it constant too. ramp = False stays at ρ_0 up to round T.
    (FedGloSS, Caldarola et al. 2025)
    """

    rho: NonNegative
    warmup: Whole = 0
    rho0: NonNegative = 0.001
    ramp: bool = True

    def server_slots(self, params: Tree) -> State:
        counter = {"round": params.scalar(0.0)} if self.warmup else {}
        return {"pseudo_gradient": params.zeros()} | counter

    def broadcast(self, message: State, server: State) -> State:
        rho: Tensor | float = self.rho
        if self.warmup:
            t = server["round"]
            message = message | {"round": t}
            rho = warm_up_radius(self.rho, self.rho0, self.warmup, t, self.ramp)
        return message | {"params": message["params"] + rho * server["pseudo_gradient"].unit()}

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        server = server | ({"round": server["round"] + 1} if self.warmup else {})
        return update, server | {"pseudo_gradient": server["pseudo_gradient"] | -reports["update"]}


@dataclass(frozen=True)
class StartAhead(Rule):
    """Send the model ahead along its last move, w_t + γ (w_t − w_(t−1)); it then moves by (1 + γ) Δ.

    The server keeps w_t. gamma = 0 sends w_t and moves by Δ; the first round has no last move. Moves do not build up:
    they are no momentum.
    (FedNSAM's code)
    """

    gamma: ShareBelowOne = 0.85

    def server_slots(self, params: Tree) -> State:
        return {"last_start": params}

    def broadcast(self, message: State, server: State) -> State:
        move = server["params"] - server["last_start"]
        return message | {"params": message["params"] + self.gamma * move}

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        return (1 + self.gamma) * update, server | {"last_start": server["params"]}


@dataclass(frozen=True)
class Trajectory(Rule):
    """Send the mean of the models so far beside w_t: e_t = α e_(t−1) + (1 − α) w_t, e_0 = w_0.

    alpha = 0 sends w_t twice. alpha = 1 sends w_0 for ever.  (FedGMT, Li et al. 2025)
    """

    alpha: Share = 0.95

    def server_slots(self, params: Tree) -> State:
        return {"trajectory": params}

    def broadcast(self, message: State, server: State) -> State:
        return message | {"trajectory": self.alpha * server["trajectory"] + (1 - self.alpha) * server["params"]}

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        return update, self.broadcast(server, server)


@dataclass(frozen=True)
class WarmUp(Rule, stackable=True):
    """Behind a perturbation of radius ρ, which then grows with that of the server: ρ_t / ρ · δ.

    ρ_t = ρ_0 + (ρ − ρ_0) min(t / T, 1). rho0 = rho changes nothing.  (FedGloSS, Caldarola et al. 2025)
    """

    rho: Positive
    warmup: Count
    rho0: NonNegative = 0.001
    reads = ("round",)
    filters = True

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        return tree * (warm_up_radius(self.rho, self.rho0, self.warmup, at.message["round"]) / self.rho), client


def warm_up_radius(rho: float, rho0: float, warmup: int, t: Tensor, ramp: bool = True) -> Tensor:
    """From rho0 in round 0 to rho in round `warmup`, and rho from there on; without a ramp, rho0 until then."""
    grown = (t / warmup).clamp(max=1.0) if ramp else (t > warmup).to(t.dtype)
    return rho0 + (rho - rho0) * grown


@dataclass(frozen=True)
class Shrink(Rule):
    """Shrink each layer of the averaged model: w_l ← γ_l (w_l + Δ_l), γ_l = ‖w_l‖ / (‖w_l‖ + τ_l ‖Δ_l‖).

    τ_l is β times the mean distance of the clients' updates from their mean, kept in [τ_min, τ_max]. A layer is a
    module: its weight and bias together. A layer of zeros is not shrunk. beta = 0 takes tau_min everywhere.
    tau_max = 0 changes nothing.  (FedLWS, Shi et al. 2025)
    """

    beta: NonNegative = 0.03
    tau_min: NonNegative = 0.01
    tau_max: NonNegative = 0.2

    def __post_init__(self) -> None:
        require(self.tau_min <= self.tau_max or self.tau_max == 0, self, "tau_min must not exceed tau_max")

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        apart = reports["delta"] - reports["delta"].mean()
        params: Tree = server["params"].only(update.layout)
        shrunk: dict[str, Tensor] = {}
        for names in group_by_module(update).values():
            distance = joint_norm(apart, names).mean()
            tau = (self.beta * distance).clamp(min=self.tau_min).clamp(max=self.tau_max)
            whole = joint_norm(params, names)
            gamma = whole / (whole + tau * joint_norm(update, names)).clamp(min=1e-30)
            gamma = torch.where(whole > 0, gamma, 1.0)
            shrunk |= {name: gamma * (params[name] + update[name]) - params[name] for name in names}
        return Tree.of(shrunk, update.layout), server


def group_by_module(tree: Tree) -> dict[str, list[str]]:
    """The parameters of each module, by its name."""
    names: dict[str, list[str]] = {}
    for name in tree:
        names.setdefault(name.rpartition(".")[0], []).append(name)
    return names


def joint_norm(tree: Tree, names: list[str]) -> Tensor:
    """The norm of some of a tree's leaves together."""
    return finite_norm(tree.only(lambda name: name in names))
