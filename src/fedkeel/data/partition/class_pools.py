"""The samples of each class in a random order, from which clients are served."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedkeel import randomness
from fedkeel.data.partition.partition import Integers, Partition, check_labels, collect


@dataclass(frozen=True, eq=False)
class Pools:
    """Class c has ``counts[c]`` samples: ``samples[starts[c] : starts[c] + counts[c]]``. No class is empty."""

    samples: Integers
    counts: Integers

    @property
    def starts(self) -> Integers:
        return np.cumsum(self.counts) - self.counts

    @property
    def classes(self) -> int:
        return len(self.counts)

    @staticmethod
    def of(labels: Integers, key: int, *, by_label: bool = False) -> Pools:
        """Classes are numbered as they first appear, so that their names do not matter; or by their labels."""
        check_labels(labels)
        _, first, class_of, counts = np.unique(labels, return_index=True, return_inverse=True, return_counts=True)
        if not by_label:
            order = np.argsort(first)
            class_of, counts = np.argsort(order)[class_of], counts[order]
        shuffled = randomness.permutation(randomness.key(key, "pools"), len(labels))
        return Pools(shuffled[np.argsort(class_of[shuffled], kind="stable")], counts)

    def deal(self, table: Integers, notes: tuple[str, ...] = ()) -> Partition:
        """Give client i ``table[i, c]`` samples of class c, the next ones of its pool."""
        amounts = table.T
        first = self.starts[:, None] + np.cumsum(amounts, axis=1) - amounts
        amounts, first = amounts.ravel(), first.ravel()
        within = np.arange(amounts.sum()) - np.repeat(np.cumsum(amounts) - amounts, amounts)
        clients = len(table)
        holders = np.repeat(np.tile(np.arange(clients), self.classes), amounts)
        return collect(holders, self.samples[np.repeat(first, amounts) + within], clients, len(self.samples), notes)


def even_parts(count: int, parts: int) -> Integers:
    """`count` cut into `parts` sizes that differ by one at most, the larger first."""
    return np.array([count // parts + (part < count % parts) for part in range(parts)], dtype=np.int64)
