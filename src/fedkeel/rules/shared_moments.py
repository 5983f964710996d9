"""Optimisers of the clients whose state the server corrects: aligned second moments, momenta with control variates."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedkeel.core.layout import Shape
from fedkeel.core.rule import Local, State
from fedkeel.core.trees import Tree
from fedkeel.kernels.newton_schulz import SMALLEST, orthogonalise
from fedkeel.ranges import Count, Positive, PositiveShare, ShareBelowOne
from fedkeel.rules.corrections import Variates
from fedkeel.rules.optimisers import AdamW, Moments, Optimiser, mix, mix_squares, sum_weights
from fedkeel.rules.perturbations import fill_tensors

__all__ = ["AlignedAdamW", "Orthogonal", "VariateMomentum"]


@dataclass(frozen=True)
class AlignedAdamW(Optimiser, stackable=True):
    """AdamW whose v begins every round with the mean of the clients' last: m̂ / (√v̂ + ε); m begins at 0.

    m̂ = m / (1 − β1^k) in local step k, v̂ = v / (1 − β2^t) in step t of all rounds, which grows by the mean number of
    local steps. blocks = tensor sends the mean of each tensor's v, one number; number sends all of v. beta1 = 0 takes
    the gradient itself for m. beta2 = 0 takes its square for v. eps keeps numbers that hardly ever get a gradient from
    moving. The experiment's weight decay is decoupled: it stands behind.  (FedAdamW, Liu et al. 2026)
    """

    beta1: ShareBelowOne = 0.9
    beta2: ShareBelowOne = 0.999
    eps: Positive = 1e-8
    blocks: Literal["tensor", "number"] = "tensor"
    moments: ClassVar[Moments] = "average"  # type: ignore[misc]
    slots = ("adamw_v",)
    counter = "adamw_count"
    rates = AdamW.rates

    def shorten(self, v: Tree) -> Tree:
        """What travels of v."""
        return v.map(torch.mean) if self.blocks == "tensor" else v

    def server_slots(self, params: Tree) -> State:
        return {"adamw_v": self.shorten(params.zeros()), self.counter: params.scalar()}

    def round_slots(self, params: Tree) -> State:
        return {"adamw_m": params.zeros(), "adamw_v": params.zeros()}

    def start(self, params: Tree, client: State, message: State) -> tuple[Tree, State]:
        v = message["adamw_v"]
        if self.blocks == "tensor":
            v = params.zeros() + fill_tensors(v, params.layout)
        return params, client | {"adamw_m": params.zeros(), "adamw_v": v}

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        m, v = mix(client["adamw_m"], tree, self.beta1), mix_squares(client["adamw_v"], tree, self.beta2)
        count = at.step.to(tree.buffer.dtype) + 1
        first = m / sum_weights(self.beta1, count)
        second = v / sum_weights(self.beta2, at.message[self.counter] + count)
        turned = first.elementwise(lambda m, v: m / (v.sqrt() + self.eps), second)
        return turned, client | {"adamw_m": m, "adamw_v": v}

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        report, client = super().finish(report, client, at)
        return report | ({"adamw_v": self.shorten(report["adamw_v"])} if "adamw_v" in report else {}), client


@dataclass(frozen=True)
class VariateMomentum(Variates, stackable=True):
    """Correct the client's momentum by control variates, before an oracle: M − c_i + c, M ← (1 − α) M + α g.

    M begins at c_i, and its end is the next c_i; c moves by the mean change over all clients, those not selected
    included. alpha = 1 takes the gradient itself for M.  (FedMuon, Takezawa et al. 2025)
    """

    alpha: PositiveShare = 0.9

    def round_slots(self, params: Tree) -> State:
        return {"variate_m": params.zeros()}

    def start(self, params: Tree, client: State, message: State) -> tuple[Tree, State]:
        return params, client | {"variate_m": client["c_i"]}

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        m = mix(client["variate_m"], tree, 1 - self.alpha)
        return m - client["c_i"] + at.message["c"], client | {"variate_m": m}

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        m = client["variate_m"]
        return report | {"c_moved": m - client["c_i"]}, client | {"c_i": m}


@dataclass(frozen=True)
class Orthogonal(Optimiser, stackable=True):
    """Step by the oracle of a norm: O(U) of each matrix, all its singular values near 1; v / ‖v‖ of the rest.

    O by `steps` of Newton–Schulz, as Muon has it; a convolution is the matrix of its outputs times all else.
    (FedMuon, Takezawa et al. 2025)
    """

    steps: Count = 5
    moments: ClassVar[Moments] = "reset"  # type: ignore[misc]
    slots = ()  # it has none
    rates = (0.001, 0.003, 0.01, 0.03)

    def turn(self, tree: Tree, moments: State, count: Tensor) -> tuple[Tree, State]:
        return tree.map_by_shape(self.judge), moments

    def judge(self, leaves: Tensor, shape: Shape) -> Tensor:
        """The oracle's answer to tensors of one shape."""
        if 1 < (shape or (1,))[0] < prod(shape):
            rows, columns = shape[0], prod(shape[1:])
            x = leaves.reshape((-1, 1, rows, columns))
            return orthogonalise([x], [1.0], self.steps, 0).reshape(leaves.shape)
        last = tuple(range(-len(shape), 0))
        length = torch.linalg.vector_norm(leaves, dim=last, keepdim=True) if shape else leaves.abs()
        return leaves / length.clamp(min=SMALLEST)
