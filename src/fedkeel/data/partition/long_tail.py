"""A long-tailed set, divided by any other partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedkeel import randomness
from fedkeel.data.partition.feature_shift import find_shift
from fedkeel.data.partition.partition import Based, Integers, Partition, check_labels, divide
from fedkeel.errors import ExperimentError
from fedkeel.ranges import Range


@dataclass(frozen=True)
class LongTail(Based):
    """Make the whole set long-tailed, then divide it by `base`: the class of rank c of C keeps
    n_max · imbalance^(-c / (C - 1)) samples, at least one and at most what it has (Cao et al. 2019).

    Ranks follow the labels: class 0 is the head. imbalance = n_max / n_min = 1 is `base` alone.
    """

    imbalance: Annotated[float, Range(1)]

    def __post_init__(self) -> None:
        super().__post_init__()
        if find_shift(self.base) is not None:
            raise ExperimentError("a long tail cannot be made of shifted features.", "feature-shift:base=long-tail:…")

    def divide(self, labels: Integers, key: int, *, groups: Integers | None = None) -> Partition:
        check_labels(labels)
        kept = self._cut_tail(labels, randomness.key(key, "long tail"))
        part = divide(self.base, labels[kept], key, groups=None if groups is None else groups[kept])
        even = ("the base repeats samples of rare classes: form=client-prior-exact keeps the tail",)
        return Partition(kept[part.indices], part.offsets, len(labels), part.notes + even * (part.duplicated > 0))

    def _cut_tail(self, labels: Integers, key: int) -> Integers:
        _, rank, counts = np.unique(labels, return_inverse=True, return_counts=True)
        steps = np.arange(len(counts)) / max(len(counts) - 1, 1)
        # the nudge: 32^(-2/5) · 320 is 79.999…
        targets = np.floor(counts.max() * float(self.imbalance) ** -steps + 1e-9).astype(np.int64)
        shuffled = randomness.permutation(key, len(labels))
        shuffled = shuffled[np.argsort(rank[shuffled], kind="stable")]
        place = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.sort(shuffled[place < np.repeat(np.maximum(targets, 1), counts)])
