"""What happens to a model's buffers (batch normalisation's running statistics) between rounds."""

from __future__ import annotations

from dataclasses import dataclass

from fedkeel.core.rule import Local, Rule, State
from fedkeel.core.trees import Tree


@dataclass(frozen=True)
class ShareBuffers(Rule, stackable=True):
    """Clients begin with the server's buffers, which become the weighted average of theirs: b ← Σ p_i b_i."""

    def broadcast(self, message: State, server: State) -> State:
        return message | {"buffers": server["buffers"]}

    def start(self, params: Tree, client: State, message: State) -> tuple[Tree, State]:
        return params, client | {"buffers": message["buffers"]}

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        return report | {"buffers": client["buffers"]}, client

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        weights = reports["weights"] / reports["weights"].sum()
        return update, server | {"buffers": reports["buffers"].average(weights)}
