"""A data set divided for personalised learning: each client's own test set, and the server's own data."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedkeel.data.clients import Sample
from fedkeel.data.partition.partition import Partition, collect
from fedkeel.randomness import permutation

PROXY = 0.02  # of the training data, as much as FedLAW's code takes from the test set


def without_proxy(partition: Partition, of: int, least: int) -> tuple[Partition, NDArray[np.int64]]:
    """Draw some samples for the server: (the partition without them, their numbers)."""
    count = max(least, int(PROXY * partition.samples))
    chosen = np.sort(permutation(of, partition.samples)[:count])
    rest = ~np.isin(partition.indices, chosen)
    rest_of_clients = collect(
        partition.holders[rest], partition.indices[rest], partition.clients, partition.samples, partition.notes
    )
    return rest_of_clients, chosen


def rows_of(images: Any, labels: NDArray[np.int64], at: NDArray[np.int64]) -> Sample:
    return torch.from_numpy(np.ascontiguousarray(images[at])), torch.from_numpy(labels[at])
