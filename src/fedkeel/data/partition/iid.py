"""Labels that are iid: slices of the shuffled set, of equal or of unequal sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedkeel import randomness
from fedkeel.data.partition.log_dirichlet import Concentration, log_dirichlet, normalise
from fedkeel.data.partition.partition import (
    Checked,
    Integers,
    Partition,
    check_enough,
    check_labels,
    collect,
    equal_sizes,
)
from fedkeel.ranges import Count


@dataclass(frozen=True)
class Iid(Checked):
    """Contiguous slices of the shuffled set, ⌊M / N⌋ samples each and the remainder to client 0."""

    clients: Count

    def divide(self, labels: Integers, key: int, *, groups: Integers | None = None) -> Partition:
        check_labels(labels)
        return _cut_slices(equal_sizes(len(labels), self.clients), key)


@dataclass(frozen=True)
class QuantitySkew(Checked):
    """Labels iid, sizes min_size + (M - N · min_size) · Dir(α).

    Large alpha is equal sizes; small alpha leaves nearly everything to one client.
    """

    alpha: Concentration
    clients: Count
    min_size: Count = 1

    def divide(self, labels: Integers, key: int, *, groups: Integers | None = None) -> Partition:
        check_labels(labels)
        check_enough(len(labels), self.clients, self.min_size)
        spare = len(labels) - self.clients * self.min_size
        shares = normalise(log_dirichlet(randomness.key(key, "sizes"), self.alpha, 1, self.clients))[0]
        cuts = np.minimum(np.round(np.cumsum(shares)[:-1] * spare).astype(np.int64), spare)
        return _cut_slices(self.min_size + np.diff(cuts, prepend=0, append=spare), key)


def _cut_slices(sizes: Integers, key: int) -> Partition:
    samples = int(sizes.sum())
    shuffled = randomness.permutation(randomness.key(key, "shuffle"), samples)
    return collect(np.repeat(np.arange(len(sizes)), sizes), shuffled, len(sizes), samples)
