"""Averages of the server's models over rounds: deployed in place of the last model, from which training goes on."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from math import floor

import torch
from torch import Tensor

from fedkeel.core.rule import Rule, State, newer_field
from fedkeel.core.schedules import CyclicRate, Schedule
from fedkeel.core.trees import Tree
from fedkeel.errors import MethodError
from fedkeel.ranges import Count, PositiveShare, ShareBelowOne, Whole

__all__ = ["LastTwo", "ModelEma", "ModelSwa"]


class AverageModels(Rule):
    """Keep an average of the models after each round, a ← (1 − α_t) a + α_t w_t, and deploy it.

    The model's buffers (running statistics) are averaged with the same weights: the server has no data to estimate
    them anew.
    """

    @abstractmethod
    def weigh(self, server: State) -> tuple[Tensor, State]:
        """The share α_t of the newest model, and what the server remembers of the weights."""

    def server_slots(self, params: Tree) -> State:
        return {"averaged": params}

    def remember(self, server: State) -> State:
        alpha, counted = self.weigh(server)
        averaged: State = {"averaged": mix(server["averaged"], server["params"], alpha)}
        if "buffers" in server:
            newest: Tree = server["buffers"]
            before: Tree = server["averaged_buffers"] if "averaged_buffers" in server else newest
            averaged["averaged_buffers"] = mix(before, newest, alpha)
        return server | averaged | counted

    def deploy(self, model: State, server: State) -> State:
        buffers = {"buffers": server["averaged_buffers"]} if "averaged_buffers" in server else {}
        return model | {"params": model["params"] | server["averaged"]} | buffers


def mix(old: Tree, new: Tree, alpha: Tensor) -> Tree:
    """Return (1 − α) old + α new; for α = 1 the bits of the new one."""
    return old.elementwise(lambda a, w: torch.where(alpha >= 1, w, torch.lerp(a, w, alpha)), new)


@dataclass(frozen=True)
class ModelEma(AverageModels):
    """Deploy an exponential average of the models after each round: a_t = Σ_s β^(t−s) w_s / Σ_s β^(t−s), s = 1 … t.

    w_0 has no part in it. decay = 0 deploys the last model. decay = 0.9 averages about 1 / (1 − 0.9) = 10 rounds: at a
    participation of 10 %, each client once.

    share = 0.04 keeps the average to a 25th of the rounds so far, while the model still improves fast; share = 1 does
    not limit it. It covers n_t = min(β n_(t−1) + 1, share · t) rounds, at least one: a_t = a_(t−1) + (w_t − a_(t−1)) /
    n_t.  (Polyak and Juditsky 1992; a share of the rounds so far: Shamir and Zhang 2013)
    """

    decay: ShareBelowOne = 0.9
    share: PositiveShare = newer_field(1.0)

    def server_slots(self, params: Tree) -> State:
        slots = super().server_slots(params) | {"averaged_weight": params.scalar(0.0)}
        return slots if self.share == 1 else slots | {"averaged_rounds": params.scalar(0.0)}

    def weigh(self, server: State) -> tuple[Tensor, State]:
        newest = 1 - self.decay
        weight: Tensor = self.decay * server["averaged_weight"] + newest
        if self.share == 1:
            return newest / weight, {"averaged_weight": weight}
        rounds = server["averaged_rounds"] + 1
        weight = torch.minimum(weight, newest * (self.share * rounds).clamp(min=1))
        return newest / weight, {"averaged_weight": weight, "averaged_rounds": rounds}


@dataclass(frozen=True)
class ModelSwa(AverageModels):
    """Deploy the mean of the models after the last rounds, from a share `begin` of all rounds on.

    Before, the plain model is deployed. begin = 0 averages all rounds. cycle = C takes every C-th round, and of a
    cyclic rate the ends of its cycles. `after` is set when the method meets its experiment: how many rounds come before
    those that count.  (Izmailov et al. 2018)
    """

    begin: ShareBelowOne = 0.75
    cycle: Count = 1
    after: Whole | None = None

    def fit_run(self, rounds: int, schedule: Schedule | None) -> Rule:
        after = floor(self.begin * rounds + 1e-9) if self.after is None else self.after
        if isinstance(schedule, CyclicRate) and self.cycle > 1:
            if self.cycle % schedule.cycle:
                raise MethodError(
                    f"averaging takes every {self.cycle} rounds, and the rate's cycles have {schedule.cycle}.",
                    f"cycle = {schedule.cycle}",
                )
            after = max(after, schedule.warmup)
            after -= (after - schedule.warmup) % schedule.cycle  # the first end of a cycle from there on counts
        if after + self.cycle > rounds:
            raise MethodError(
                f"averaging would start after the last round: in round {after + self.cycle} of {rounds}.",
                "choose a smaller start or cycle, or more rounds",
            )
        return replace(self, after=after)

    def server_slots(self, params: Tree) -> State:
        return super().server_slots(params) | {
            "averaged_rounds": params.scalar(0.0), "averaged_models": params.scalar(0.0),
        }  # fmt: skip

    def weigh(self, server: State) -> tuple[Tensor, State]:
        rounds, models = server["averaged_rounds"] + 1, server["averaged_models"]
        begun = rounds - float(self.after or 0)
        counts = (begun > 0) & (begun.remainder(self.cycle) == 0)
        alpha = torch.where(
            counts, 1 / (models + 1), (models == 0).to(models.dtype)
        )  # up to the first, the plain model
        return alpha, {"averaged_rounds": rounds, "averaged_models": models + counts}


@dataclass(frozen=True)
class LastTwo(Rule):
    """Deploy the mean of the last two models, (w_t + w_(t−1)) / 2; buffers are the last.  (FedExP)"""

    def server_slots(self, params: Tree) -> State:
        return {"model_before": params}

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        return update, server | {"model_before": server["params"]}

    def deploy(self, model: State, server: State) -> State:
        return model | {"params": 0.5 * (model["params"] + server["model_before"])}
