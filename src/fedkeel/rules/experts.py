"""What clients' models make of each class, multiplied into one prior (FedCR)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedkeel.core.layout import Layout
from fedkeel.core.objectives import Precision
from fedkeel.core.rule import Local, State
from fedkeel.core.trees import Tree
from fedkeel.ranges import Share
from fedkeel.rules.layers import HEAD, NamesLayers, Patterns, matcher

__all__ = ["CommonPrior", "NotePrecision"]


def class_matrices(layout: Layout, patterns: Patterns) -> Layout:
    """The matching parameters with one row for each class."""
    mine = matcher(patterns)
    return layout.only(lambda name: mine(name) and len(layout.shapes[name]) == 2)


@dataclass(frozen=True)
class NotePrecision(NamesLayers, stackable=True):
    """First in a measuring phase's perturb chain: add up 1 / σ² of the codes of each class, and perturb nothing.

    The sum is the slope of the objective `Precision()` in the head's weights, one row for each class.  (FedCR)
    """

    patterns: Patterns = (HEAD,)
    needs_gradient = Precision()

    def client_slots(self, params: Tree) -> State:
        return {"precision": params.only(class_matrices(params.layout, self.patterns)).zeros()}

    def start(self, params: Tree, client: State, message: State) -> tuple[Tree, State]:
        return params, client | {"precision": client["precision"].zeros()}

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        sofar = client["precision"]
        return tree.zeros(), client | {"precision": sofar + tree.only(sofar.layout)}

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        return report | {"precision": client["precision"]}, client


@dataclass(frozen=True)
class CommonPrior(NamesLayers, stackable=True):
    """A Gaussian for each class: the product of N(0, 1) and of every participant's experts, its samples' codes.

    1/σ̄² = 1 + Σ 1/σ², μ̄ = σ̄² Σ μ/σ²; then beta2 of the new μ̄ and σ̄, and the rest of the old. A class that no
    participant has keeps its prior. beta2 = 0 keeps N(0, 1) for good. After NotePrecision, in the gradient chain of the
    same phase: Σ μ/σ² is the slope of its objective, `Evidence()`, in the head's weights.  (FedCR, Zhang et al. 2023)
    """

    beta2: Share = 1.0
    patterns: Patterns = (HEAD,)
    reads = ("precision",)

    def server_slots(self, params: Tree) -> State:
        rows = params.only(class_matrices(params.layout, self.patterns))
        return {"prior_mean": rows.zeros(), "prior_spread": rows.ones()}

    def client_slots(self, params: Tree) -> State:
        return {"evidence": params.only(class_matrices(params.layout, self.patterns)).zeros()}

    def broadcast(self, message: State, server: State) -> State:
        return message | {name: server[name] for name in ("prior_mean", "prior_spread")}

    def start(self, params: Tree, client: State, message: State) -> tuple[Tree, State]:
        return params, client | {"evidence": client["evidence"].zeros()}

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        sofar = client["evidence"]
        return tree, client | {"evidence": sofar + tree.only(sofar.layout)}

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        return report | {"evidence": client["evidence"]}, client

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        precision, evidence = reports["precision"].sum(), reports["evidence"].sum()
        found = {
            "prior_mean": evidence.elementwise(lambda e, p: e / (1 + p), precision),
            "prior_spread": precision.elementwise(lambda p: (1 + p).rsqrt()),
        }
        present = precision.buffer > 0
        for name, new in found.items():
            old: Tree = server[name]
            mixed = (1 - self.beta2) * old + self.beta2 * new
            server = server | {name: Tree(torch.where(present, mixed.buffer, old.buffer), old.layout)}
        return update, server
