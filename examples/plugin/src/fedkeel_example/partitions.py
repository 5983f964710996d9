"""Large and small clients."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TwoSizes:
    """Every second client holds `ratio` times as many samples as the others, drawn at random; ratio = 1 is iid."""

    clients: int
    ratio: int = 4
    repeats = False

    def divide(self, labels, key, *, groups=None):
        turns = np.concatenate([[client] * (self.ratio if client % 2 else 1) for client in range(self.clients)])
        order = np.random.default_rng(key).permutation(len(labels))
        holders = turns[np.arange(len(labels)) % len(turns)]
        return [order[holders == client] for client in range(self.clients)]
