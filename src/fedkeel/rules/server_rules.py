"""Rules of the server alone."""

from __future__ import annotations

from dataclasses import dataclass

from fedkeel.rule import Rule, State, require
from fedkeel.trees import Tree


@dataclass(frozen=True)
class ServerMomentum(Rule):
    """Heavy ball on the averaged update: v ← β v + Δ, w ← w + v.  momentum = 0 is FedAvg.  (FedAvgM, Hsu et al.)"""

    momentum: float

    def __post_init__(self) -> None:
        require(0 <= self.momentum < 1, self, "momentum must lie in [0, 1)")

    def server_slots(self, params: Tree) -> State:
        return {"velocity": params.zeros()}

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        velocity = self.momentum * server["velocity"] + update
        return velocity, server | {"velocity": velocity}
