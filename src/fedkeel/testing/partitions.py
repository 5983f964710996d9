"""Check a way to divide a data set."""

from __future__ import annotations

import numpy as np

from fedkeel.data.partition.own import OwnPartition
from fedkeel.data.partition.partition import Integers, Partition, Partitioner
from fedkeel.data.partition.partition import divide as divide_labels
from fedkeel.data.partition.registry import load_partition, may_repeat
from fedkeel.errors import ExperimentError
from fedkeel.importing import Trust
from fedkeel.testing.broken_law import BrokenLaw, hold

LABELS = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4] * 60)
KEYS = range(5)


def check_partition(partition: Partitioner | str, labels: Integers = LABELS, groups: Integers | None = None) -> None:
    """Check a partitioner: it divides these labels soundly, by the key alone, and prints the same in every process."""
    way = load_partition(partition, Trust.TYPED)
    name = f"partition {partition if isinstance(partition, str) else type(way).__name__}"
    hold(
        isinstance(way, OwnPartition) or " at 0x" not in repr(way),
        f"{name} prints another name in every process, so its runs cannot be resumed.",
        "make it a frozen dataclass",
    )
    given = labels.copy()
    divided = [divide(way, given, key, groups) for key in KEYS]
    hold(bool((given == labels).all()), f"{name} writes into the labels that it was given.", "work on labels.copy()")
    for one in divided:
        check_division(one, name, len(labels), way.clients)
    held_twice = any(one.duplicated for one in divided)
    hold(
        may_repeat(way) or not held_twice,
        f"{name} gives samples to several clients, and says that it does not.",
        "repeats = True",
    )
    check_key(way, name, labels, groups)
    same = divide(way, labels.astype(np.uint8), 0, groups)
    hold(
        same.indices.tobytes() == divided[0].indices.tobytes(),
        f"{name} divides labels of another integer type in another way.",
        "look at labels by ==, or convert them first",
    )


def divide(way: Partitioner, labels: Integers, key: int, groups: Integers | None) -> Partition:
    try:
        return divide_labels(way, labels, key, groups=groups)
    except ExperimentError as error:
        raise BrokenLaw(error.message, error.hint) from None


def check_division(divided: Partition, name: str, samples: int, clients: int | None) -> None:
    """Check that a division is what it says: so many clients, their samples in order and within the data set."""
    offsets, indices = divided.offsets, divided.indices
    hold(divided.samples == samples, f"{name} divides {divided.samples} samples of {samples}.", "samples=len(labels)")
    hold(
        clients in (None, len(divided)),
        f"{name} says that it has {clients} clients and makes {len(divided)}.",
        "clients is how many divide makes, or None where the data decide it",
    )
    hold(
        offsets[0] == 0 and offsets[-1] == len(indices) and bool((np.diff(offsets) >= 0).all()),
        f"the offsets of {name} do not cut its indices into clients.",
        "collect(holders, indices, clients, samples) makes both",
    )
    hold(
        len(indices) == 0 or (indices.min() >= 0 and indices.max() < samples),
        f"{name} gives away samples that do not exist.",
        f"indices lie in 0 … {samples - 1}",
    )
    ascending = all(bool((np.diff(mine) >= 0).all()) for mine in map(divided.__getitem__, range(len(divided))))
    hold(ascending, f"{name} does not list the samples of a client in order.", "collect(…) sorts them")


def check_key(way: Partitioner, name: str, labels: Integers, groups: Integers | None) -> None:
    """Check that the key alone decides, whatever NumPy's own generator has drawn."""
    state = np.random.get_state()
    try:
        drawn = []
        for seed in (0, 1):
            np.random.seed(seed)
            drawn.append(divide(way, labels, 5, groups))
    finally:
        np.random.set_state(state)
    one, other = drawn
    hold(
        one.indices.tobytes() == other.indices.tobytes() and one.offsets.tobytes() == other.offsets.tobytes(),
        f"{name} divides in two ways by the same key.",
        "draw by fedkeel.randomness from the key alone",
    )
