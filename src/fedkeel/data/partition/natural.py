"""Clients that the data name themselves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedkeel.data.partition.partition import Integers, Partition, check_labels, collect
from fedkeel.errors import DataError


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
            raise DataError(
                f"{groups.size} owners were given for {labels.size} samples", hint="give each sample one owner"
            )
        owners, holders = np.unique(groups, return_inverse=True)
        return collect(holders, np.arange(len(labels)), len(owners), len(labels))
