"""Clients that the data name themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedkeel.data.partition.partition import Checked, Integers, Partition, check_labels, collect
from fedkeel.errors import DataError
from fedkeel.randomness import permutation
from fedkeel.ranges import Count, PositiveShare


@dataclass(frozen=True)
class Natural(Checked):
    """One client for each owner the data name (writer, role, domain), in ascending order of the owners' numbers.

    Of those with at least `min_size` training samples a `share` is drawn by the key, rounded up, and of these at most
    `most`. share = 1 without the others keeps every owner. The test set stays whole.  (FedFFT: a fifth of Shakespeare's
    roles)
    """

    share: PositiveShare = 1.0
    most: Count | None = None
    min_size: Count = 1
    later: ClassVar[tuple[str, ...]] = ("share", "most", "min_size")

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
            raise DataError(
                f"{groups.size} owners were given for {labels.size} samples", hint="give each sample one owner"
            )
        owners, holders, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        chosen = self.choose_owners(sizes, key)
        if not len(chosen):
            raise DataError(
                f"none of {len(owners)} owners has {self.min_size} samples",
                f"the largest has {sizes.max()}: lower min_size",
            )
        number = np.full(len(owners), -1, np.int64)
        number[chosen] = np.arange(len(chosen))
        held = np.flatnonzero(number[holders] >= 0)
        return collect(number[holders[held]], held, len(chosen), len(labels))

    def choose_owners(self, sizes: Integers, key: int) -> Integers:
        """The places of the owners that become clients, ascending."""
        large = np.flatnonzero(sizes >= self.min_size)
        count = math.ceil(self.share * len(large) - 1e-9)
        order = permutation(key, len(large))[: count if self.most is None else min(count, self.most)]
        return np.sort(large[order])
