"""Weights that the server learns: from the updates themselves (FedAWA), or on data of its own (FedLAW)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedkeel.core.rule import Local, Rule, Setting, State, Weighting
from fedkeel.core.trees import Tree, cosine
from fedkeel.ranges import NonNegative, Positive, Whole
from fedkeel.rules.weights import by_size, into_range

__all__ = ["AtMixture", "ByAttraction", "ByPlaces", "LearnMixture", "OnProxy"]

ADAM = (0.5, 0.999)


def adam_step(slope: Tensor, first: Tensor, second: Tensor, step: Tensor | int) -> tuple[Tensor, Tensor, Tensor]:
    """Adam's direction, and its two moments; `step` counts from 1."""
    first = ADAM[0] * first + (1 - ADAM[0]) * slope
    second = ADAM[1] * second + (1 - ADAM[1]) * slope.square()
    direction = first / (1 - ADAM[0] ** step) / ((second / (1 - ADAM[1] ** step)).sqrt() + 1e-8)
    return direction, first, second


def scale_model(update: Tree, server: State, gamma: Tensor | float) -> Tree:
    """The update that leads to γ (w + update)."""
    params: Tree = server["params"].only(update.layout)
    return (params + update) * gamma - params


@dataclass(frozen=True)
class ByAttraction(Weighting):
    """Weights λ = softmax(T) that draw the updates together: descend on Σ λ_k (‖Δ_k − Σ λ_j Δ_j‖ + 1 − cos(w, w_k)).

    T starts at log n_k and is remembered per client; `steps` of Adam at rate `server_lr` each round; then
    w ← γ Σ λ_k w_k. steps = 0 and gamma = 1 is FedAvg. `released` is an earlier reading of the released code, for runs
    that began with it; ByPlaces follows that code.  (FedAWA, Shi et al. 2025)
    """

    steps: Whole = 1
    server_lr: NonNegative = 1e-3
    gamma: Positive = 1.0
    released: bool = False
    asks = ("client",)

    def server_slots(self, params: Tree) -> State:
        return {"attraction": params.buffer.new_zeros(1)}

    def places(self, reports: State) -> Tensor:
        clients: Tensor = reports["client"].to(torch.int64)
        return torch.arange(len(clients), device=clients.device) if self.released else clients

    def logits(self, reports: State, server: State) -> Tensor:
        """T of the participants: where it starts, and how far it has been moved."""
        known, sizes = server["attraction"], by_size(reports)
        places = self.places(reports)
        moved = torch.where(places < len(known), known[places.clamp(max=len(known) - 1)], 0.0)
        return (sizes if self.released else sizes.log()) + moved

    def learn_logits(self, reports: State, server: State) -> Tensor:
        attraction = Attraction.of(reports["delta"], server["params"])
        return attraction.descend(self.logits(reports, server), self.steps, self.server_lr)

    def __call__(self, reports: State, server: State) -> Tensor:
        return torch.softmax((self.logits if self.released else self.learn_logits)(reports, server), 0)

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        places, known = self.places(reports), server["attraction"]
        # as long as the highest number so far: the sizes of those not met need not be known
        room = pad(known, (0, max(0, int(places.max()) + 1 - len(known))))
        moved = self.learn_logits(reports, server) - self.logits(reports, server)
        return scale_model(update, server, self.gamma), server | {
            "attraction": room.index_add(0, places, moved.to(room.dtype))
        }


@dataclass(frozen=True)
class Attraction:
    """What FedAWA descends on, from inner products only: their number does not grow with the model.

    Of huge updates it is a share of that, along which Adam steps alike.
    """

    inner: Tensor  # ⟨Δ_j, Δ_k⟩, less their mean: distances do not change, rounding shrinks
    apart: Tensor  # 1 − cos(w, w_k)

    @staticmethod
    def of(delta: Tree, params: Tree) -> Attraction:
        here = params.only(delta.layout)
        scale, (centred,) = into_range(delta - delta.mean())
        _, (there, here) = into_range(here + delta, here)
        return Attraction(centred.buffer @ centred.buffer.T, (1 - cosine(there, here)) / scale)

    def cost(self, logits: Tensor) -> Tensor:
        weights = torch.softmax(logits, 0)
        towards = self.inner @ weights
        squared = self.inner.diagonal() - 2 * towards + weights @ towards
        return (weights * ((squared.clamp(min=0) + 1e-12).sqrt() + self.apart)).sum()

    def descend(self, logits: Tensor, steps: int, rate: float) -> Tensor:
        """The logits after some steps of a fresh Adam."""
        first, second = torch.zeros_like(logits), torch.zeros_like(logits)
        for step in range(1, steps + 1):
            slope = torch.func.grad(self.cost)(logits)
            direction, first, second = adam_step(slope, first, second, step)
            logits = logits - rate * direction
        return logits


@dataclass(frozen=True)
class ByPlaces(Weighting):
    """ByAttraction as released: T belongs to places in the list of participants, and starts at shares of all clients.

    In the first round T_k = n_k / Σ_j n_j over all clients, not over the participants; whoever stands in a place later
    goes on with its T. λ = softmax(T) is taken before the last of the `steps` of Adam at rate `server_lr`;
    w ← γ Σ λ_k w_k. gamma = 1 averages. `mean_size` is set when the method meets its data; mean_size = 0 takes shares
    of the participants.  (FedAWA's code)
    """

    steps: Whole = 1
    server_lr: NonNegative = 1e-3
    gamma: Positive = 1.0
    mean_size: NonNegative = 0.0

    def settled(self, setting: Setting) -> Rule:
        return replace(self, mean_size=setting.mean_size)

    def server_slots(self, params: Tree) -> State:
        return {"attraction": params.buffer.new_zeros(1), "places": params.scalar(0.0)}

    def logits(self, reports: State, server: State) -> Tensor:
        """T of the places that are taken: as it was left, or at its start where nobody has stood."""
        known, size = server["attraction"], reports["size"]
        places = torch.arange(len(size), device=size.device)
        start = size / (self.mean_size * reports["population"]) if self.mean_size else by_size(reports)
        return torch.where(places < server["places"], known[places.clamp(max=len(known) - 1)], start)

    def descend(self, reports: State, server: State, steps: int) -> Tensor:
        attraction = Attraction.of(reports["delta"], server["params"])
        return attraction.descend(self.logits(reports, server), steps, self.server_lr)

    def __call__(self, reports: State, server: State) -> Tensor:
        return torch.softmax(self.descend(reports, server, max(self.steps - 1, 0)), 0)

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        left = self.descend(reports, server, self.steps)
        kept = torch.cat([left.to(server["attraction"].dtype), server["attraction"][len(left) :]])
        places = server["places"].clamp(min=len(left))
        return scale_model(update, server, self.gamma), server | {"attraction": kept, "places": places}


@dataclass(frozen=True)
class OnProxy(Weighting):
    """w ← γ Σ λ_k w_k, with λ = softmax(x) and γ = exp(y) learned on the server's own data.

    x starts at log π, y at 0: without a step this is FedAvg. The learning is the method's `server_phase`.
    (FedLAW, Li et al. 2023)
    """

    def begin(self, reports: State, server: State) -> State:
        logits = by_size(reports).log()
        zero, none = logits.new_zeros(()), torch.zeros_like(logits)
        moments = {"x_first": none, "x_second": none, "y_first": zero, "y_second": zero}
        return {"x": logits, "y": zero, "models": server["params"] + reports["delta"]} | moments

    def __call__(self, reports: State, server: State) -> Tensor:
        return torch.softmax(reports["learned"]["x"], 0) if "learned" in reports else by_size(reports)

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        return scale_model(update, server, reports["learned"]["y"].exp()) if "learned" in reports else update, server


def mix_models(state: State) -> Tree:
    """γ Σ λ_k w_k."""
    return state["models"].average(torch.softmax(state["x"], 0)) * state["y"].exp()


@dataclass(frozen=True)
class AtMixture(Rule):
    """In the server's phase: take the gradient at γ Σ λ_k w_k."""

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        return mix_models(client) - at.params, client


@dataclass(frozen=True)
class LearnMixture(Rule):
    """In the server's phase: move x and y by Adam against the gradient g at the mixture.

    By the chain rule ∂L/∂x_k = γ λ_k ⟨g, w_k − Σ λ_j w_j⟩ and ∂L/∂y = ⟨g, γ Σ λ_j w_j⟩. rate = 0 is FedAvg.
    (FedLAW, Li et al. 2023)
    """

    rate: NonNegative

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        weights, gamma = torch.softmax(client["x"], 0), client["y"].exp()
        along = client["models"].dot(tree.expand(len(weights)))
        slopes = {"x": gamma * weights * (along - weights @ along), "y": gamma * (weights @ along)}
        moved: State = {}
        for name, slope in slopes.items():
            direction, first, second = adam_step(slope, client[f"{name}_first"], client[f"{name}_second"], at.step + 1)
            moved |= {name: client[name] - self.rate * direction, f"{name}_first": first, f"{name}_second": second}
        return tree, client | moved
