"""How unlike the clients are, as one number that means the same for every form of partition and every alpha."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.partition.partition import Integers, Partition


@dataclass(frozen=True)
class Summary:
    """What a partition looks like, in a few numbers."""

    clients: int
    empty: int
    smallest: int
    median: float
    largest: int
    classes_per_client: float
    unused: int
    duplicated: int
    score: float
    notes: tuple[str, ...]


def summarise(partition: Partition, labels: Integers, classes: int) -> Summary:
    """Describe a partition in a few numbers; `classes_per_client` is the mean over the clients that hold anything."""
    histogram, sizes = partition.histogram(labels, classes), partition.sizes
    held = np.count_nonzero(histogram, axis=1)[sizes > 0]
    return Summary(
        clients=partition.clients,
        empty=int(np.count_nonzero(sizes == 0)),
        smallest=int(sizes.min()),
        median=float(np.median(sizes)),
        largest=int(sizes.max()),
        classes_per_client=float(held.mean()) if len(held) else 0.0,
        unused=partition.unused,
        duplicated=partition.duplicated,
        score=score(histogram),
        notes=partition.notes,
    )


def score(histogram: Integers) -> float:
    """Measure label skew: 0 is what iid clients of these sizes are expected to show, 1 is one class per client.

    d = Σ_i (n_i / n) · TV(p_i, p), the size-weighted mean total-variation distance of the clients' label distributions
    p_i to the distribution p of all clients together; score = (d - d_iid) / (d_max - d_iid), held to [0, 1].

    d_max = 1 - Σ_c p_c² is reached when each client holds one class, and by nothing more extreme, since the distance is
    convex in p_i. d_iid > 0 because a small random sample never looks like the whole; without it few samples per client
    would pass for heterogeneity. p is what the clients hold, so a long tail common to all of them counts as none.
    """
    sizes = histogram.sum(axis=1)
    total = int(sizes.sum())
    if total == 0:
        return 0.0
    p = histogram.sum(axis=0) / total
    distance = np.abs(histogram - sizes[:, None] * p).sum() / (2 * total)
    most = 1.0 - float(np.square(p).sum())
    iid = _distance_by_chance(sizes, p)
    if most - iid <= 1e-12:  # one class, or one sample per client: nothing can be told apart
        return 0.0
    return float(np.clip((distance - iid) / (most - iid), 0.0, 1.0))


def _distance_by_chance(sizes: Integers, p: NDArray[np.float64]) -> float:
    """E[Σ_i (n_i / n) · TV(p_i, p)] of clients drawn at random.

    De Moivre: E|X - np| = 2 k C(n, k) p^k (1 - p)^(n - k + 1) with k = ⌊np⌋ + 1 for a binomial X; drawing without
    replacement from n_total makes it √((n_total - n) / (n_total - 1)) times as wide.
    """
    total = int(sizes.sum())
    size, clients = np.unique(sizes[sizes > 0], return_counts=True)
    n, q = size[:, None], p[(p > 0) & (p < 1)][None, :]
    k = np.floor(n * q).astype(np.int64) + 1
    log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, size.max() + 1)))))
    log_choose = log_factorial[n] - log_factorial[k] - log_factorial[n - k]
    deviation = 2 * k * np.exp(log_choose + k * np.log(q) + (n - k + 1) * np.log1p(-q))
    narrower = np.sqrt((total - size) / max(total - 1, 1))
    return float((clients * deviation.sum(axis=1) * narrower).sum() / (2 * total))
