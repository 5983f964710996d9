"""Label skew by a fixed number of classes per client, in the forms the papers use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedkeel import randomness
from fedkeel.data.partition.class_pools import Pools, even_parts
from fedkeel.data.partition.partition import Checked, Integers, Partition, check_enough
from fedkeel.data.partition.sequential_assignment import divide_refilling
from fedkeel.errors import DataError
from fedkeel.ranges import Count

Form = Literal["shards", "shuffled", "cyclic"]


@dataclass(frozen=True)
class Pathological(Checked):
    """Each client holds `classes` classes, where the shards or the samples suffice for that.

    shards     the set is cut into classes · N shards of one class each, and each client gets `classes` of them, of
               different classes wherever that is possible; frequent classes have more shards and rare ones may have
               none, so each sample comes at most once (FedFSA)
    shuffled   the classes are chosen uniformly, and samples are drawn from them evenly; equal sizes; an exhausted class
               is refilled, so samples are duplicated and others unused (FL-Simulator)
    cyclic     client i holds the classes i, …, i + classes - 1 modulo C in the order of their labels, each shared
               evenly by the clients that hold it; each sample at most once (FedCR)

    Sizes of shards and cyclic are equal where the classes are equally frequent.
    """

    classes: Count
    clients: Count
    form: Form = "shards"

    @property
    def repeats(self) -> bool:
        """Whether a sample may come twice."""
        return self.form == "shuffled"

    def divide(self, labels: Integers, key: int, *, groups: Integers | None = None) -> Partition:
        pools = Pools.of(labels, key, by_label=self.form == "cyclic")
        if self.classes > pools.classes:
            raise DataError(
                f"clients cannot hold {self.classes} classes of a data set with {pools.classes}",
                hint=f"use classes={pools.classes} or fewer",
            )
        return {"shards": _shards, "shuffled": _shuffled, "cyclic": _cyclic}[self.form](self, pools, key)


def _shuffled(self: Pathological, pools: Pools, key: int) -> Partition:
    chosen = _class_orders(self.clients, pools.classes, key)[:, : self.classes]
    priors = np.full((self.clients, pools.classes), -np.inf)
    np.put_along_axis(priors, chosen, 0.0, axis=1)
    return divide_refilling(pools, priors, key)


def _shards(self: Pathological, pools: Pools, key: int) -> Partition:
    total = self.classes * self.clients
    check_enough(len(pools.samples), self.clients, each=self.classes)
    shards = _shards_of_classes(pools.counts, total)
    sizes = [even_parts(count, number) for count, number in zip(pools.counts, shards, strict=True)]
    orders = _class_orders(self.clients, pools.classes, key)
    left = shards.copy()
    table = np.zeros((self.clients, pools.classes), dtype=np.int64)
    for client in range(self.clients):
        to_come = self.clients - client
        order = orders[client][left[orders[client]] > 0]
        # a class with a shard for each client still to come cannot wait
        order = order[np.argsort(left[order] < to_come, kind="stable")]
        chosen = order[: self.classes].tolist()
        left[chosen] -= 1
        while len(chosen) < self.classes:
            chosen.append(int(left.argmax()))
            left[chosen[-1]] -= 1
        for label in chosen:
            table[client, label] += sizes[label][-1]
            sizes[label] = sizes[label][:-1]
    return pools.deal(table, _notes(pools, table))


def _shards_of_classes(counts: Integers, total: int) -> Integers:
    """Shards in proportion to the samples (largest remainders): total / C each where classes are equally frequent.

    A rare class may get none: no client holds it then, also where clients hold as many classes as there are.
    """
    exact = counts * total
    shards = exact // counts.sum()
    spare = total - int(shards.sum())
    shards[np.argsort(-(exact % counts.sum()), kind="stable")[:spare]] += 1
    return np.asarray(shards)


def _cyclic(self: Pathological, pools: Pools, key: int) -> Partition:
    check_enough(len(pools.samples), self.clients, each=1)
    table = np.zeros((self.clients, pools.classes), dtype=np.int64)
    for label, count in enumerate(pools.counts):
        holders = np.flatnonzero((label - np.arange(self.clients)) % pools.classes < self.classes)
        poorest_first = holders[np.argsort(table[holders].sum(axis=1), kind="stable")]
        table[poorest_first, label] = even_parts(count, len(holders))
    empty = np.flatnonzero(table.sum(axis=1) == 0)
    if len(empty):
        raise DataError(
            f"the {self.classes} classes of client {empty[0]} have fewer samples than clients that hold them",
            hint="use fewer clients, more classes per client, or form='shards'",
        )
    return pools.deal(table, _notes(pools, table))


def _notes(pools: Pools, table: Integers) -> tuple[str, ...]:
    without = int(np.count_nonzero(table.sum(axis=0) == 0))
    return (f"no client holds {without} of {pools.classes} classes",) if without else ()


def _class_orders(clients: int, classes: int, key: int) -> Integers:
    """A random order of the classes for each client."""
    lots = randomness.bits(randomness.bits(randomness.key(key, "class orders"), clients), classes)
    return np.argsort(lots, axis=1, kind="stable")
