"""Which of its samples a client sees in which local step, decided before any step is taken."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedkeel.randomness import FIRST, bits, key, keys_below, keys_of_each

ROW = np.uint64(FIRST)


Plan = list[NDArray[np.int64]]
"""The samples of each local step, by their numbers within the client's own data."""


def plan_clients(keys: Sequence[int], size: int, batch_size: int, steps: int, taken: int | None = None) -> list[Plan]:
    """Plan the steps of clients with as many samples each, by the key of each.

    Each epoch is a fresh random order cut into batches, of which the last, partial one is kept; the last epoch is cut
    short where so many steps end within it. `taken`: how many samples an epoch takes, where not all.
    """
    taken = size if taken is None else taken
    passes = -(-steps // max(-(-taken // batch_size), 1))
    every = bits(keys_of_each(passes, keys, "epoch"), size).argsort(axis=-1, kind="stable")
    starts = range(0, taken, batch_size)
    return [[order[start : start + batch_size] for order in orders for start in starts][:steps] for orders in every]


def sample_keys(of: int, step: int, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """One key for each sample of a step, a function of (of, step, row) and of nothing beside it in the batch."""
    # `bits` steps a key by another odd constant before it mixes, so neighbouring rows share no number
    return np.uint64(key(of, "sample", step)) + ROW * rows.astype(np.uint64)


def sample_keys_of_steps(of: int, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """`sample_keys` of all steps at once: rows `[steps, batch]`."""
    return keys_below(len(rows), of, "sample")[:, None] + ROW * rows.astype(np.uint64)
