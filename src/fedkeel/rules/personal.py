"""Personal models: what never leaves a client."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedkeel.core.rule import Local, Rule, State, newer_field
from fedkeel.core.trees import Tree, where
from fedkeel.ranges import Count, NonNegative
from fedkeel.rules.layers import HEAD, NamesLayers, Patterns, matcher

__all__ = ["BeginMerged", "KeepModel", "LearnMerge", "Merge", "OwnModel", "PrivateLayers"]


@dataclass(frozen=True)
class PrivateLayers(NamesLayers, stackable=True):
    """Parameters that match never leave the client; the server's own stay as they were first made.

    (FedPer, Arivazhagan et al. 2019)
    """

    patterns: Patterns = (HEAD,)

    def client_slots(self, params: Tree) -> State:
        return {"private": params.only(matcher(self.patterns))}

    def travels(self, params: Tree) -> Tree:
        mine = matcher(self.patterns)
        return params.only(lambda name: not mine(name))

    def start(self, params: Tree, client: State, message: State) -> tuple[Tree, State]:
        return params | client["private"], client

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        private = at.params.only(matcher(self.patterns))
        return report | {"delta": self.travels(report["delta"])}, client | {"private": private}


@dataclass(frozen=True)
class KeepModel(Rule, stackable=True):
    """Remember the model at the end of a client's own work: what is judged as its personal model."""

    def client_slots(self, params: Tree) -> State:
        return {"kept": params}

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        return report, client | {"kept": at.params}


@dataclass(frozen=True)
class OwnModel(Rule, stackable=True):
    """A second model that never leaves, pulled towards the global one: g + λ (w − w_t).

    lam = 0 trains each client alone.  (Ditto, Li et al. 2021)
    """

    lam: NonNegative

    def client_slots(self, params: Tree) -> State:
        return {"own": params}

    def start(self, params: Tree, client: State, message: State) -> tuple[Tree, State]:
        buffers = {"buffers": client["own_buffers"]} if "own_buffers" in client else {}
        return client["own"], client | buffers

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        return tree + self.lam * (at.params - at.message["params"]), client

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        return report, client | {"own": at.params}


@dataclass(frozen=True)
class Merge(NamesLayers, stackable=True):
    """Take in as much of the global head as helps: θ = own + (global − own) ⊙ W, W learned in [0, 1].

    In the perturb chain of a measuring phase: move to the merged model; in a training phase's gradient chain: begin
    there, and remember what came of it. W = 1 is FedAvg.  (FedALA, Zhang et al. 2023)
    """

    patterns: Patterns = (HEAD,)

    def client_slots(self, params: Tree) -> State:
        head = params.only(matcher(self.patterns))
        return {"own_head": head, "merge": head.ones()}

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        head = at.params.only(client["own_head"].layout)
        return tree.zeros() | (client["own_head"] - head) * (1 - client["merge"]), client


RECENT = 10  # losses by which FedALA's released code tells that W has converged


@dataclass(frozen=True)
class LearnMerge(Rule, stackable=True):
    """Move W against its slope at the merged model: W ← W − η_W g ⊙ (global − own), in [0, 1].  rate = 0 keeps W.

    The first time that a client has a head of its own it learns until W has converged: until the mean losses of the
    last ten passes differ by a standard deviation below `threshold`. threshold = 0 never ends before the last pass.
    Later it learns for one pass. passes = 1 learns for one pass each time; else it is the most, and every round takes
    the time of so many: what is left over changes nothing.  (FedALA, Zhang et al. 2023)
    """

    rate: NonNegative = 1.0
    passes: Count = newer_field(1)
    threshold: NonNegative = newer_field(0.1)
    reads = ("own_head", "merge")

    def passes_needed(self) -> int:
        return self.passes

    def client_slots(self, params: Tree) -> State:
        if self.passes == 1:
            return {}
        numbers = {name: params.scalar(0.0) for name in ("merge_pass", "merge_rests", "merge_begun")}
        return {"merge_losses": Tree.of({"loss": params.buffer.new_zeros(RECENT)})} | numbers

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        own = client["own_head"]
        slope = tree.only(own.layout) * (at.params.only(own.layout) - own)
        merge = (client["merge"] - self.rate * slope).clamp(0, 1)
        if self.passes > 1:
            merge = where(client["merge_rests"] == 0, merge, client["merge"])
        return tree, client | {"merge": merge}

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        if self.passes == 1:
            return report, client
        assert at.loss is not None
        own, past, begun = client["own_head"], client["merge_losses"], client["merge_begun"]
        number, zero = client["merge_pass"] + 1, torch.zeros_like(begun)
        buffer = torch.cat([past.buffer[..., 1:], at.loss.to(past.buffer.dtype).unsqueeze(-1)], -1)
        converged = (number > RECENT) & (buffer.std(-1, correction=0) < self.threshold)
        rests = torch.where(converged | (begun > 0), zero + 1, client["merge_rests"])
        last, apart = number >= self.passes, (own - at.start.only(own.layout)).norm() > 0
        return report, client | {
            "merge_losses": Tree(buffer, past.layout),
            "merge_pass": torch.where(last, zero, number),
            "merge_rests": torch.where(last, zero, rests),
            "merge_begun": torch.where(last & apart, zero + 1, begun),
        }


@dataclass(frozen=True)
class BeginMerged(Rule, stackable=True):
    """Begin a phase at the merged model, and remember the head it ends with."""

    reads = ("own_head", "merge")

    def start(self, params: Tree, client: State, message: State) -> tuple[Tree, State]:
        own = client["own_head"]
        merged = own + (params.only(own.layout) - own) * client["merge"]
        return params | merged, client

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        return report, client | {"own_head": at.params.only(client["own_head"].layout)}
