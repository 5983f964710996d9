"""Momentum over several rounds, spread over the steps of a client: over a round it adds β times a past move."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedkeel.core.rule import Local, Rule, State
from fedkeel.core.trees import Tree
from fedkeel.ranges import Count, NonNegative, PositiveShare

__all__ = ["HeavyBall", "OwnHeavyBall"]


@dataclass(frozen=True)
class HeavyBall(Rule, stackable=True):
    """Go on as the model went in the last τ rounds: g + β / (η K_i) m, m = (w_(t−τ) − w_t) / τ.

    beta = 0 is FedAvg. Before τ rounds have passed there is no momentum. tau = 1 is FedCM at α times its rate, with
    β = 1 − α, where clients weigh the same and take as many steps, at a constant rate, unclipped. The server keeps τ
    models.  (GHBM, Zaccone et al. 2025)
    """

    beta: NonNegative = 0.9
    tau: Count = 10

    def server_slots(self, params: Tree) -> State:
        return {f"past_{k}": params for k in range(self.tau)} | {"past_rounds": params.scalar(0.0)}

    def broadcast(self, message: State, server: State) -> State:
        params: Tree = server["params"]
        full = (server["past_rounds"] >= self.tau).to(params.buffer.dtype)
        return message | {"heavy_ball": (full / self.tau) * (server["past_0"] - params)}

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        return tree + (self.beta / (at.lr * at.steps)) * at.message["heavy_ball"], client

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        models = [server[f"past_{k}"] for k in range(1, self.tau)] + [server["params"]]
        past = {f"past_{k}": model for k, model in enumerate(models)}
        return update, server | past | {"past_rounds": server["past_rounds"] + 1}


@dataclass(frozen=True)
class OwnHeavyBall(Rule, stackable=True):
    """Go on from where the client last was: g + β / (η K_i) m_i, m_i = C (a_i − w_t), C the share that takes part.

    a_i is the model that the client last received; the first time there is none. ended = True takes the model with
    which it last ended, and w for w_t, anew in each step. beta = 0 is FedAvg. share = 0.1 is a tenth of the clients in
    each round.  (LocalGHBM and FedHBM, Zaccone et al. 2025)
    """

    beta: NonNegative = 0.9
    share: PositiveShare = 0.1
    ended: bool = False

    def client_slots(self, params: Tree) -> State:
        return {"anchor": params, "anchored": params.scalar(0.0)}

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        behind = client["anchor"] - (at.params if self.ended else at.start)
        return tree + (self.beta * self.share * client["anchored"] / (at.lr * at.steps)) * behind, client

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        anchor = at.params if self.ended else at.start
        return report, client | {"anchor": anchor, "anchored": torch.ones_like(client["anchored"])}
