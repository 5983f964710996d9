"""How far clients move, and how much they agree. `updates` are stacked: w_i − w_t of each client."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from fedkeel.trees import Tree


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
    """The drift of the clients of one round: lengths, spread, cosines.  (FedSCAM fig. 9)"""
    values = drift_numbers(gram_matrix(updates))
    return Drift(*values.tolist())


def drift_numbers(gram: Tensor) -> Tensor:
    """The six numbers of a Drift, from ⟨Δ_i, Δ_j⟩ alone: one matrix product reads the updates once."""
    gram = gram.to(torch.float64)
    lengths = gram.diagonal().clamp(min=0).sqrt()
    centre = gram.mean()  # ‖Δ̄‖²
    spread = (gram.diagonal().mean() - centre).clamp(min=0).sqrt()
    similar = normalised(gram)
    clients = len(gram)
    cosine = (similar.sum() - similar.trace()) / max(clients * (clients - 1), 1)
    cosine = cosine if clients > 1 else torch.ones_like(cosine)
    agreement = centre.clamp(min=0).sqrt() / lengths.mean().clamp(min=1e-30)
    return torch.stack([lengths.mean(), lengths.min(), lengths.max(), spread, cosine, agreement])


def cosines(updates: Tree) -> Tensor:
    """The cosine between the updates of every two clients, `[clients, clients]`; 0 where a client did not move."""
    return normalised(gram_matrix(updates))


def normalised(gram: Tensor) -> Tensor:
    lengths = gram.diagonal().clamp(min=0).sqrt()
    return (gram / torch.outer(lengths, lengths).clamp(min=1e-30)).clamp(-1, 1)


def gram_matrix(updates: Tree) -> Tensor:
    return updates.buffer @ updates.buffer.mT


@dataclass(frozen=True)
class Spread:
    """How unequally a model serves its clients: over the clients' own accuracies."""

    mean: float
    deviation: float
    least: float
    worst_tenth: float
    most: float


def accuracy_spread(accuracies: list[float]) -> Spread:
    """Of one accuracy per client; `worst_tenth` is the mean over the tenth of the clients that fare worst."""
    found = np.sort(np.asarray(accuracies, dtype=np.float64))
    worst = found[: max(1, len(found) // 10)]
    return Spread(float(found.mean()), float(found.std()), float(found[0]), float(worst.mean()), float(found[-1]))
