"""Large and small clients."""

from dataclasses import dataclass

import numpy as np

from fedkeel.data.partition.partition import check_enough, check_labels, collect
from fedkeel.randomness import permutation


@dataclass(frozen=True)
class TwoSizes:
    """Every second client holds `ratio` times as many samples as the others, drawn at random; ratio = 1 is iid."""

    clients: int
    ratio: int = 4
    repeats = False

    def divide(self, labels, key, *, groups=None):
        check_labels(labels)
        check_enough(len(labels), self.clients, each=self.ratio)
        turns = np.concatenate([[client] * (self.ratio if client % 2 else 1) for client in range(self.clients)])
        order = permutation(key, len(labels))
        return collect(turns[np.arange(len(labels)) % len(turns)], order, self.clients, len(labels))
