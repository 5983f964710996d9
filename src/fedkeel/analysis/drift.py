"""How far clients move, and how much they agree. `updates` are stacked: w_i − w_t of each client."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.trees import Tree


@dataclass(frozen=True)
class Drift:
    """One round's drift in a few numbers.

    `mean`, `least` and `most` are of ‖w_i − w_t‖ over the clients; `spread` is √mean‖Δ_i − Δ̄‖²; `cosine` the mean
    cosine between the updates of two clients (1 for a single client); `agreement` ‖Δ̄‖ / mean‖Δ_i‖, 1 when all clients
    move alike and 0 when their moves cancel.
    """

    mean: float
    least: float
    most: float
    spread: float
    cosine: float
    agreement: float

    def named(self) -> dict[str, float]:
        return asdict(self)


def drift(updates: Tree) -> Drift:
    """Measure the drift of the clients of one round: lengths, spread, cosines.  (FedSCAM fig. 9)"""
    return Drift(*drift_numbers(updates).tolist())


def drift_numbers(updates: Tree) -> Tensor:
    """The six numbers of a Drift, in three readings of the updates and without a product for each pair of clients.

    With unit moves u_i, the cosines of all pairs add up to ‖Σ u_i‖² − Σ ‖u_i‖².
    """
    clients, lengths = len(updates.buffer), updates.norm()
    inverse = torch.where(lengths > 0, 1 / lengths, 0.0)
    sums = torch.stack([torch.full_like(inverse, 1 / clients), inverse]) @ updates.buffer
    centre, units = Tree(sums, updates.layout).norm().to(torch.float64)
    moving, lengths = (lengths > 0).sum(), lengths.to(torch.float64)
    # row by row: a copy of all updates may not fit, and mean‖Δ_i‖² − ‖Δ̄‖² is rounding where clients nearly agree
    apart = torch.stack([Tree(row - sums[0], updates.layout).norm() for row in updates.buffer])
    spread = apart.to(torch.float64).square().mean().sqrt()
    cosine = (units**2 - moving) / (clients * (clients - 1)) if clients > 1 else torch.ones_like(centre)
    agreement = centre / lengths.mean().clamp(min=1e-30)
    return torch.stack([lengths.mean(), lengths.min(), lengths.max(), spread, cosine, agreement])


def cosines(updates: Tree) -> Tensor:
    """The cosine between the updates of every two clients, `[clients, clients]`; 0 where a client did not move."""
    gram = updates.buffer @ updates.buffer.mT
    lengths = gram.diagonal().sqrt()
    return (gram / torch.outer(lengths, lengths).clamp(min=1e-30)).clamp(-1, 1)


@dataclass(frozen=True)
class AccuracySpread:
    """How unequally a model serves its clients: over the clients' own accuracies."""

    mean: float
    deviation: float
    least: float
    worst_tenth: float
    most: float


def accuracy_spread(accuracies: list[float]) -> AccuracySpread:
    """Summarise one accuracy per client; `worst_tenth` is the mean over the worst tenth of the clients."""
    ranked = np.sort(np.asarray(accuracies, dtype=np.float64))
    worst = ranked[: max(1, len(ranked) // 10)]
    return AccuracySpread(*map(float, (ranked.mean(), ranked.std(), ranked[0], worst.mean(), ranked[-1])))
