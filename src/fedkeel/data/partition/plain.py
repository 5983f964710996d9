"""The plain ways to divide: equal shares, unequal sizes, natural owners; and a long-tailed set before any of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedkeel import randomness
from fedkeel.data.partition.log_dirichlet import Concentration, log_dirichlet, normalised
from fedkeel.data.partition.partition import (
    Integers,
    Partition,
    Partitioner,
    check_enough,
    check_labels,
    check_partitioner,
    collect,
    equal_sizes,
)
from fedkeel.errors import DataError, ExperimentError
from fedkeel.ranges import Count, Range


@dataclass(frozen=True)
class Iid:
    """Contiguous slices of the shuffled set, ⌊M / N⌋ samples each and the remainder to client 0."""

    clients: Count

    def __post_init__(self) -> None:
        check_partitioner(self)

    def divide(self, labels: Integers, key: int, *, groups: Integers | None = None) -> Partition:
        check_labels(labels)
        return _slices(equal_sizes(len(labels), self.clients), key)


@dataclass(frozen=True)
class QuantitySkew:
    """Labels iid, sizes min_size + (M - N · min_size) · Dir(α).

    Large alpha is equal sizes; small alpha leaves nearly everything to one client.
    """

    alpha: Concentration
    clients: Count
    min_size: Count = 1

    def __post_init__(self) -> None:
        check_partitioner(self)

    def divide(self, labels: Integers, key: int, *, groups: Integers | None = None) -> Partition:
        check_labels(labels)
        check_enough(len(labels), self.clients, self.min_size)
        spare = len(labels) - self.clients * self.min_size
        shares = normalised(log_dirichlet(randomness.key(key, "sizes"), self.alpha, 1, self.clients))[0]
        cuts = np.minimum(np.round(np.cumsum(shares)[:-1] * spare).astype(np.int64), spare)
        return _slices(self.min_size + np.diff(cuts, prepend=0, append=spare), key)


def _slices(sizes: Integers, key: int) -> Partition:
    samples = int(sizes.sum())
    shuffled = randomness.permutation(randomness.key(key, "shuffle"), samples)
    return collect(np.repeat(np.arange(len(sizes)), sizes), shuffled, len(sizes), samples)


@dataclass(frozen=True)
class Natural:
    """One client for each owner the data name (writer, role, domain), in ascending order of the owners' numbers."""

    @property
    def clients(self) -> None:
        return None

    def divide(self, labels: Integers, key: int, *, groups: Integers | None = None) -> Partition:
        check_labels(labels)
        if groups is None:
            raise DataError(
                "this data set does not say who owns which sample, so it has no natural clients",
                hint="use a partition such as Dirichlet(alpha=0.1, clients=100)",
            )
        if groups.shape != labels.shape:
            raise DataError(f"{groups.size} owners were given for {labels.size} samples")
        owners, holders = np.unique(groups, return_inverse=True)
        return collect(holders, np.arange(len(labels)), len(owners), len(labels))


@dataclass(frozen=True)
class LongTail:
    """Make the whole set long-tailed, then divide it by `base`: the class of rank c of C keeps
    n_max · imbalance^(-c / (C - 1)) samples, at least one and at most what it has (Cao et al. 2019).

    Ranks follow the labels: class 0 is the head. imbalance = n_max / n_min = 1 is `base` alone.
    """

    base: Partitioner
    imbalance: Annotated[float, Range(1)]

    def __post_init__(self) -> None:
        check_partitioner(self)
        if hasattr(self.base, "corrupt"):
            raise ExperimentError("a long tail cannot be made of shifted features.", "feature-shift:base=long-tail:…")

    @property
    def clients(self) -> int | None:
        return self.base.clients

    def divide(self, labels: Integers, key: int, *, groups: Integers | None = None) -> Partition:
        check_labels(labels)
        kept = self._kept(labels, randomness.key(key, "long tail"))
        part = self.base.divide(labels[kept], key, groups=None if groups is None else groups[kept])
        even = ("the base repeats samples of rare classes: form=client-prior-exact keeps the tail",)
        return Partition(kept[part.indices], part.offsets, len(labels), part.notes + even * (part.duplicated > 0))

    def _kept(self, labels: Integers, key: int) -> Integers:
        _, rank, counts = np.unique(labels, return_inverse=True, return_counts=True)
        steps = np.arange(len(counts)) / max(len(counts) - 1, 1)
        # the nudge: 100^(-1/2) · 500 is 49.999…
        targets = np.floor(counts.max() * float(self.imbalance) ** -steps + 1e-9).astype(np.int64)
        shuffled = randomness.permutation(key, len(labels))
        shuffled = shuffled[np.argsort(rank[shuffled], kind="stable")]
        place = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.sort(shuffled[place < np.repeat(np.maximum(targets, 1), counts)])
