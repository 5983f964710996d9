"""A larger radius on the layers to which a client's loss is most sensitive (FedFSA)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedkeel.core.layout import Layout
from fedkeel.core.objective import Loss
from fedkeel.core.rule import Local, Rule, Setting, State
from fedkeel.core.trees import Tree
from fedkeel.randomness import keyed_uniforms
from fedkeel.ranges import NonNegative, Passes, Whole
from fedkeel.rules.layers import weight_layers

__all__ = [
    "ByChance",
    "ByChange",
    "ByNorm",
    "ByRange",
    "ByRemoval",
    "ByTaylor",
    "CriticalLayers",
    "LayerRadius",
    "NoteRemoval",
]


def tensor_scores(params: Tree) -> Tree:
    """One number per parameter, zero so far."""
    return params.map(lambda leaf: leaf.new_zeros(()))


@dataclass(frozen=True)
class LayerRadius(Rule, stackable=True):
    """SAM with a larger radius on critical layers: ρ_l g_l / ‖g‖, ρ_l = ρ_larger on those, else ρ.

    rho_larger = rho is SAM.  (FedFSA, 2025)
    """

    rho: NonNegative
    rho_larger: NonNegative
    needs_gradient = Loss()
    reads = ("critical",)

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        return layerwise_perturbation(tree, client, self.rho, self.rho_larger), client


def layerwise_perturbation(gradient: Tree, client: State, rho: float, rho_larger: float) -> Tree:
    radius = client["critical"].elementwise(lambda c: rho + c * (rho_larger - rho))
    return gradient.unit().map(torch.mul, radius)


@dataclass(frozen=True)
class CriticalLayers(Rule, stackable=True):
    """Mark the `top` layers of highest sensitivity for the next round; none are marked before the first.

    choose = "lowest" marks the least sensitive ones that moved at all. Biases, norms, other vectors and shortcuts are
    never marked. top = 0 is SAM.  (FedFSA, 2025)
    """

    top: Whole
    choose: Literal["highest", "lowest"] = "highest"
    reads = ("sensitivity",)

    def client_slots(self, params: Tree) -> State:
        return {"critical": tensor_scores(params)}

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        able = weight_layers(at.params.layout)
        count = min(self.top, len(able.shapes))
        if count == 0:
            return report, client
        scored = client["sensitivity"].only(lambda name: name in able.shapes)
        marked = scored.elementwise(lambda s: self.mark_top(s, count))
        return report, client | {"critical": client["critical"].zeros() | marked}

    def client_curves(self, params: Tree, client: State) -> State:
        able = weight_layers(params.layout)
        return {"critical": client["critical"].only(lambda name: name in able.shapes)}

    def mark_top(self, sensitivity: Tensor, count: int) -> Tensor:
        rank = sensitivity if self.choose == "highest" else torch.where(sensitivity > 0, -sensitivity, -torch.inf)
        return torch.zeros_like(sensitivity).scatter(-1, rank.topk(count).indices, 1.0)


@dataclass(frozen=True)
class Sensitivity(Rule):
    """How much the loss depends on each layer: a number per parameter, at the end of a client's round."""

    def client_slots(self, params: Tree) -> State:
        return {"sensitivity": tensor_scores(params)}


@dataclass(frozen=True)
class ByChange(Sensitivity, stackable=True):
    """The mean squared change of the layer in this round: mean (w_i − w_t)².  (FedFSA, equation 11)"""

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        moved = (at.params - at.start).map(lambda leaf: leaf.square().mean())
        return report, client | {"sensitivity": moved}


@dataclass(frozen=True)
class ByNorm(Sensitivity, stackable=True):
    """The squared length of the layer's change in this round: ‖w_i − w_t‖², so that large layers rank higher.

    (FedFSA, equation 11, read as the inner product of equation 8)
    """

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        moved = (at.params - at.start).map(lambda leaf: leaf.square().sum())
        return report, client | {"sensitivity": moved}


@dataclass(frozen=True)
class ByRange(Sensitivity, stackable=True):
    """The mean squared change of the layer, each time scaled to [0, 1]; a constant layer ranks last. (FedFSA's code)"""

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        return report, client | {"sensitivity": at.params.map(self.change, at.start)}

    def change(self, now: Tensor, before: Tensor) -> Tensor:
        spans = torch.stack([now.max() - now.min(), before.max() - before.min()])
        tiny = torch.finfo(now.dtype).tiny
        scaled = (now - now.min()) / spans[0].clamp(min=tiny) - (before - before.min()) / spans[1].clamp(min=tiny)
        return torch.where((spans > 0).all(), scaled.square().mean(), -1.0)


@dataclass(frozen=True)
class ByTaylor(Sensitivity, stackable=True):
    """The first-order effect of the layer's perturbation, |g_l · ε_l|, summed over the last local epoch.

    Of K steps these are the last K / E, where E is the most epochs that a client of the run may take. Goes first in the
    gradient chain, behind LayerRadius(rho, rho_larger).  (FedFSA, equation 8)
    """

    rho: NonNegative
    rho_larger: NonNegative
    epochs: Passes = 1
    reads = ("gradient", "critical")

    def settled(self, setting: Setting) -> Rule:
        return replace(self, epochs=setting.epochs)

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        assert at.gradient is not None
        epsilon = layerwise_perturbation(at.gradient, client, self.rho, self.rho_larger)
        effect = (tree * epsilon).map(lambda leaf: leaf.sum().abs())
        last = (at.step >= at.steps - at.steps / self.epochs).to(tree.buffer.dtype)
        begun = (at.step > 0).to(tree.buffer.dtype)
        return tree, client | {"sensitivity": begun * client["sensitivity"] + last * effect}


@dataclass(frozen=True)
class ByRemoval(Sensitivity, stackable=True):
    """How the loss at w + ε changes when one layer's ε is taken away: |L(w + ε) − L(w + ε − ε_l)|, on one batch.

    For a measuring phase after the training: one step for each layer and one more.  (FedFSA, equation 7)
    """

    rho: NonNegative
    rho_larger: NonNegative
    needs_gradient = Loss()

    def client_slots(self, params: Tree) -> State:
        return super().client_slots(params) | {"perturbed_loss": params.scalar(0.0)}

    def steps_needed(self, layout: Layout) -> int | None:
        return len(weight_layers(layout).shapes) + 1

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        number = at.step.to(tree.buffer.dtype)
        epsilon = layerwise_perturbation(tree, client, self.rho, self.rho_larger)
        kept = number_layers(epsilon).elementwise(lambda n: (n != number).to(n.dtype))
        return epsilon.map(torch.mul, kept if epsilon.buffer.dim() == 1 else kept.expand(len(epsilon.buffer))), client


@dataclass(frozen=True)
class NoteRemoval(Rule, stackable=True):
    """Keep what each step of ByRemoval measured: the full loss in step 0, the change without layer l in step l."""

    reads = ("loss", "sensitivity", "perturbed_loss")

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        assert at.loss is not None
        number = at.step.to(tree.buffer.dtype)
        full = torch.where(at.step == 0, at.loss, client["perturbed_loss"])
        mine = number_layers(tree).elementwise(lambda n: (n == number).to(n.dtype))
        change = (full - at.loss).abs() * mine
        return tree, client | {"perturbed_loss": full, "sensitivity": client["sensitivity"] * (1 - mine) + change}


def number_layers(tree: Tree) -> Tree:
    """The layers that may be critical numbered from 1, in the model's order; −1 for the others."""
    able = list(weight_layers(tree.layout).shapes)
    numbers = {name: able.index(name) + 1.0 if name in able else -1.0 for name in tree.layout.shapes}
    return Tree.of({name: tree.buffer.new_tensor(number) for name, number in numbers.items()})


@dataclass(frozen=True)
class ByChance(Sensitivity):
    """Layers drawn at random, anew in each round: FedFSA's ablation."""

    random = True

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        old: Tree = client["sensitivity"]
        draws = Tree(keyed_uniforms(at.key, old.layout.size).to(tree.buffer.dtype) + 1e-6, old.layout)
        first = (at.step == 0).to(tree.buffer.dtype)
        return tree, client | {"sensitivity": first * draws + (1 - first) * old}
