"""FedProx with a pull that cannot grow without bound."""

from dataclasses import dataclass

import torch

import fedkeel as fk
from fedkeel.ranges import NonNegative


@dataclass(frozen=True)
class BoundedPull(fk.Rule, stackable=True):
    """Pull back to where the round started, by at most μ: g + μ tanh(w − w_t).  mu = 0 is FedAvg."""

    mu: NonNegative

    def step(self, tree, client, at):
        return tree + self.mu * (at.params - at.start).elementwise(torch.tanh), client


def tanhprox(mu: float = 0.1) -> fk.Method:
    """FedProx whose pull is bounded in every coordinate."""
    return fk.method("tanhprox", gradient=BoundedPull(mu), weights=fk.BySize())
