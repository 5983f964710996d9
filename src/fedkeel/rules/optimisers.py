"""Optimisers of the clients: what a local step makes of the direction that the rules before it leave.

They stand behind filters, corrections and the clip; the experiment's weight decay stands behind them, except behind
`LocalMomentum`, where it is part of the direction, as in torch.optim.SGD.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedkeel.core.rule import Local, Rule, State, require
from fedkeel.core.trees import Tree
from fedkeel.ranges import NonNegative, Positive, ShareBelowOne

__all__ = ["Adagrad", "AdamW", "Lion", "LocalMomentum"]

Moments = Literal["reset", "keep", "average"]


class Optimiser(Rule):
    """What the optimisers share: what becomes of their moments, and of the count of steps, between rounds.

    reset: a round begins without any; keep: a client goes on with its own; average: every client begins with the mean
    of the clients' last, by the weights of the aggregation, which the server sends with the model. Phases of one round
    that share an optimiser begin alike, but for keep, where one goes on from the other.
    """

    moments: Moments = "reset"
    slots: ClassVar[tuple[str, ...]]  # names of the moments
    counter: ClassVar[str]  # name of the count of steps; without one it has that of the class
    rates: ClassVar[tuple[float, ...]] = ()  # learning rates that a sweep tries where none are given; (): those of SGD
    optimiser: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not hasattr(cls, "counter"):
            cls.counter = f"{cls.__name__}_count"

    @property
    def rate(self) -> float | None:
        """The learning rate of an experiment that gives none; None leaves it to the data set."""
        return self.rates[-2:][0] if self.rates else None

    def turn(self, tree: Tree, moments: State, count: Tensor) -> tuple[Tree, State]:
        """Turn a direction into a step; return it with the new moments. `count` is 1 in the first step."""
        raise NotImplementedError

    def first_moments(self, params: Tree) -> State:
        return {name: params.zeros() for name in self.slots}

    @property
    def lasting(self) -> tuple[str, ...]:
        """Names of the moments that the policy is about; the others begin every round anew."""
        return () if self.moments == "reset" else self.slots

    def round_slots(self, params: Tree) -> State:
        kept = self.lasting if self.moments == "keep" else ()
        return {name: slot for name, slot in self.first_moments(params).items() if name not in kept}

    def client_slots(self, params: Tree) -> State:
        return self.lasting_slots(params) if self.moments == "keep" else {}

    def server_slots(self, params: Tree) -> State:
        return self.lasting_slots(params) if self.moments == "average" else {}

    def lasting_slots(self, params: Tree) -> State:
        first = self.first_moments(params)
        return {name: first[name] for name in self.lasting} | {self.counter: params.scalar()}

    def broadcast(self, message: State, server: State) -> State:
        if self.moments != "average":
            return message
        return message | {name: server[name] for name in (*self.lasting, self.counter)}

    def start(self, params: Tree, client: State, message: State) -> tuple[Tree, State]:
        anew = [name for name in self.slots if name not in self.lasting]
        first = self.first_moments(params) if anew else {}
        sent = {name: message[name] for name in self.lasting} if self.moments == "average" else {}
        return params, client | {name: first[name] for name in anew} | sent

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        count = self.count_step(client, at)
        tree, moments = self.turn(tree, {name: client[name] for name in self.slots}, count)
        return tree, client | moments | ({self.counter: count} if self.moments == "keep" else {})

    def count_step(self, client: State, at: Local) -> Tensor:
        """Count the steps that the moments have seen, this one included."""
        if self.moments == "keep":
            return client[self.counter] + 1
        count = at.step.to(at.params.buffer.dtype) + 1
        return at.message[self.counter] + count if self.moments == "average" else count

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        # those of the model that is sent, not of one that stays
        sends = self.moments == "average" and "delta" in report and self.counter not in report
        if not sends:
            return report, client
        return report | {name: client[name] for name in self.lasting} | {self.counter: at.steps}, client

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        if self.moments != "average":
            return update, server
        weights = reports["weights"] / reports["weights"].sum()
        averaged = {name: reports[name].average(weights) for name in self.lasting}
        return update, server | averaged | {
            self.counter: server[self.counter] + (weights * reports[self.counter]).sum()
        }


@dataclass(frozen=True)
class LocalMomentum(Optimiser, stackable=True):
    """Heavy-ball momentum of the client's own steps: b ← μ b + (1 − τ) g, and b is the step; b = g in the first one.

    momentum = 0 is SGD. nesterov = True steps along g + μ b. dampening = 0 adds the whole gradient: τ is its share that
    is left out. moments = reset begins every round without b; keep goes on with the client's own; average has the
    server average and send it. The experiment's weight decay is part of g.  (SGD, as torch.optim.SGD; Polyak 1964)
    """

    momentum: ShareBelowOne = 0.9
    nesterov: bool = False
    dampening: ShareBelowOne = 0.0
    moments: Moments = "reset"
    slots = ("local_momentum",)
    counter = "local_momentum_count"
    rates = (0.001, 0.003, 0.01, 0.03)
    coupled_decay = True

    def __post_init__(self) -> None:
        require(not (self.nesterov and self.dampening), self, "nesterov needs dampening = 0")

    def turn(self, tree: Tree, moments: State, count: Tensor) -> tuple[Tree, State]:
        added = tree
        if self.dampening:
            added = tree * (1 - self.dampening * (count > 1).to(tree.buffer.dtype))
        ball = added.moved(moments["local_momentum"], self.momentum)
        return tree.moved(ball, self.momentum) if self.nesterov else ball, {"local_momentum": ball}


@dataclass(frozen=True)
class AdamW(Optimiser, stackable=True):
    """Divide the mean of the gradients by the root of the mean of their squares: m̂ / (√v̂ + ε), for each number.

    m ← β1 m + (1 − β1) g, v ← β2 v + (1 − β2) g²; m̂ = m / (1 − β1^k), v̂ = v / (1 − β2^k) in step k of the moments.
    beta1 = 0 takes the gradient itself for m. beta2 = 0 takes its square for v: with both the step is the sign of g.
    eps keeps numbers that hardly ever get a gradient from moving. moments = reset begins every round with m = v = 0,
    k = 1; keep goes on with the client's own; average has the server average and send them. The experiment's weight
    decay is decoupled: it stands behind.  (AdamW, Loshchilov and Hutter 2019)
    """

    beta1: ShareBelowOne = 0.9
    beta2: ShareBelowOne = 0.999
    eps: Positive = 1e-8
    moments: Moments = "reset"
    slots = ("adamw_m", "adamw_v")
    counter = "adamw_count"
    rates = (1e-4, 3e-4, 1e-3, 3e-3)

    def turn(self, tree: Tree, moments: State, count: Tensor) -> tuple[Tree, State]:
        m = mix(moments["adamw_m"], tree, self.beta1)
        v = mix_squares(moments["adamw_v"], tree, self.beta2)
        return divide_moments(m, v, self.beta1, self.beta2, self.eps, count), {"adamw_m": m, "adamw_v": v}


@dataclass(frozen=True)
class Adagrad(Optimiser, stackable=True):
    """Divide the gradient by the root of the sum of all squares so far: g / (√s + ε), s ← s + g², for each number.

    initial = 0 is where s begins: the larger, the shorter the first steps. eps keeps the division by a zero s harmless.
    moments = reset begins every round anew; keep goes on with the client's own s; average has the server average and
    send it. The experiment's weight decay is decoupled: it stands behind.  (Adagrad, Duchi et al. 2011)
    """

    eps: Positive = 1e-10
    initial: NonNegative = 0.0
    moments: Moments = "reset"
    slots = ("adagrad_sum",)
    counter = "adagrad_count"
    rates = (0.001, 0.003, 0.01, 0.03)

    def first_moments(self, params: Tree) -> State:
        return {"adagrad_sum": float(self.initial) * params.ones()}

    def turn(self, tree: Tree, moments: State, count: Tensor) -> tuple[Tree, State]:
        total = moments["adagrad_sum"].elementwise(lambda s, g: torch.addcmul(s, g, g), tree)
        return tree.elementwise(lambda g, s: g / (s.sqrt() + self.eps), total), {"adagrad_sum": total}


@dataclass(frozen=True)
class Lion(Optimiser, stackable=True):
    """Step by the sign of a mean of gradients: sign(β1 m + (1 − β1) g), then m ← β2 m + (1 − β2) g; sign(0) = 0.

    beta1 = 0 is the sign of the gradient. beta2 = 0 keeps the last gradient alone for m. Every number moves by the
    learning rate, so that wants to be smaller than AdamW's. moments = reset begins every round with m = 0; keep goes on
    with the client's own; average has the server average and send it (FedLion). The experiment's weight decay is
    decoupled: it stands behind.  (Lion, Chen et al. 2023)
    """

    beta1: ShareBelowOne = 0.9
    beta2: ShareBelowOne = 0.99
    moments: Moments = "reset"
    slots = ("lion_m",)
    counter = "lion_count"
    rates = (3e-5, 1e-4, 3e-4, 1e-3)

    def turn(self, tree: Tree, moments: State, count: Tensor) -> tuple[Tree, State]:
        m = moments["lion_m"]
        return mix(m, tree, self.beta1).elementwise(torch.sign), {"lion_m": mix(m, tree, self.beta2)}


# ---- means over steps ----------------------------------------------------------------------------------------------
def mix(mean: Tree, tree: Tree, beta: float) -> Tree:
    """β mean + (1 − β) tree."""
    return mean.elementwise(lambda old, new: torch.lerp(old, new, 1 - beta), tree)


def mix_squares(mean: Tree, tree: Tree, beta: float) -> Tree:
    """β mean + (1 − β) tree²."""
    return mean.elementwise(lambda old, new: torch.addcmul(beta * old, new, new, value=1 - beta), tree)


def divide_moments(m: Tree, v: Tree, beta1: float, beta2: float, eps: float, count: Tensor) -> Tree:
    """m̂ / (√v̂ + ε), of moments that began at zero `count` steps ago."""
    v = v / sum_weights(beta2, count)
    return (m / sum_weights(beta1, count)).elementwise(lambda m, v: m / (v.sqrt() + eps), v)


def sum_weights(beta: float, count: Tensor) -> Tensor:
    """1 − β^k, to full precision also where β^k is close to 1."""
    return -torch.expm1(count * log(beta)) if beta else torch.ones_like(count)
