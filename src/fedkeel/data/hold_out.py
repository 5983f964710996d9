"""A share of each client's samples set aside: for validation, or for a test of its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fedkeel.data.clients import (
    ClientData,
    DividedList,
    HeldOut,
    Rows,
    SharedClients,
    TensorClients,
    find_partition,
    take_rows,
)
from fedkeel.data.partition.partition import Partition
from fedkeel.randomness import key


def hold_out(clients: ClientData, share: float, seed: int) -> tuple[ClientData, ClientData]:
    """Cut a share of each client's rows for validation: (training rows, at least one of each client; validation rows).

    All copies of a sample that is held more than once are on one side.
    """
    whole, of = find_partition(clients), key(seed, "validation")
    if whole is not None and whole.duplicated:
        if isinstance(clients, SharedClients):
            kept, aside = whole.split(share, of)
            return clients.with_partition(kept), clients.with_partition(aside)
        if isinstance(clients, TensorClients):
            lists = split_list(clients.clients, clients.sizes, share, of)
            return TensorClients(lists[0]), TensorClients(lists[1])
    return HeldOut(clients, share, seed, validation=False), HeldOut(clients, share, seed, validation=True)


def split_list(clients: Sequence[Any], sizes: Rows, share: float, of: int) -> tuple[list[Any], list[Any]]:
    """Set a share of each client's samples aside, as `Partition.split` does: (what is kept, what was set aside).

    The rows of a list that no partition made are different samples.
    """
    ends = np.concatenate([[0], np.cumsum(sizes)])
    partition = clients.partition if isinstance(clients, DividedList) else None
    whole = Partition(np.arange(ends[-1]), ends, int(ends[-1]))
    if partition is not None and partition.duplicated:
        whole = partition

    def take(part: Partition) -> DividedList:
        inside = np.isin(whole.indices, part.indices)
        rows = [np.flatnonzero(inside[start:end]) for start, end in pairwise(ends.tolist())]
        made = [take_rows(data, rows[client], f"client {client}") for client, data in enumerate(clients)]
        if partition is None:
            return DividedList(made, None, rows)
        at = np.concatenate([[0], np.cumsum(inside)])[ends]
        return DividedList(made, Partition(partition.indices[inside], at, partition.samples, partition.notes), rows)

    kept, aside = whole.split(share, of)
    return take(kept), take(aside)
