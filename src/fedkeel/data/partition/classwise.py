"""Each class is cut among the clients by shares of its own, so that sizes are unequal (NIID-Bench, Li et al. 2022)."""

from __future__ import annotations

import numpy as np

from fedkeel import randomness
from fedkeel.data.partition.class_pools import Pools
from fedkeel.data.partition.log_dirichlet import log_dirichlet, normalise
from fedkeel.data.partition.partition import Integers, Partition, check_enough

TRIES = 50


def divide_class_wise(pools: Pools, alpha: float, clients: int, min_size: int, key: int) -> Partition:
    """Draw until every client has `min_size` samples; after TRIES draws repair the best one and say so."""
    check_enough(len(pools.samples), clients, min_size)
    best, fewest = np.zeros((clients, pools.classes), dtype=np.int64), clients * min_size + 1
    for attempt in range(TRIES):
        table = _draw_table(pools.counts, alpha, clients, randomness.key(key, "shares", attempt))
        missing = int(np.maximum(min_size - table.sum(axis=1), 0).sum())
        if missing < fewest:
            best, fewest = table, missing
        if fewest == 0:
            return pools.deal(best)
    served = int(np.count_nonzero(best.sum(axis=1) < min_size))
    note = (
        f"{TRIES} draws left clients below {min_size} samples; "
        f"{fewest} samples were moved to {served} of {clients} clients from the largest ones"
    )
    return pools.deal(_fill_up(best, min_size), (note,))


def _draw_table(counts: Integers, alpha: float, clients: int, key: int) -> Integers:
    """Draw the samples of each class for each client: shares ~ Dir(α), none for a client that has its |D| / N."""
    logs = log_dirichlet(key, alpha, rows=len(counts), columns=clients)
    table = np.zeros((clients, len(counts)), dtype=np.int64)
    held = np.zeros(clients, dtype=np.int64)
    for label, count in enumerate(counts):
        shares = normalise(np.where(held * clients < counts.sum(), logs[label], -np.inf))
        cuts = np.floor(np.cumsum(shares)[:-1] * count + 1e-9).astype(np.int64)
        table[:, label] = np.diff(np.minimum(cuts, count), prepend=0, append=count)
        held += table[:, label]
    return table


def _fill_up(table: Integers, min_size: int) -> Integers:
    """Fill up each poor client from the largest client's largest class, which keeps the skew."""
    table = table.copy()
    sizes = table.sum(axis=1)
    for poor in np.flatnonzero(sizes < min_size):
        while sizes[poor] < min_size:
            rich = int(sizes.argmax())
            label = int(table[rich].argmax())
            amount = min(min_size - sizes[poor], sizes[rich] - min_size, table[rich, label])
            table[rich, label] -= amount
            table[poor, label] += amount
            sizes[rich] -= amount
            sizes[poor] += amount
    return table
