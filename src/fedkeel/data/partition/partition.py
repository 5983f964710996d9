"""Which client holds which samples: the result of every partitioner, and what partitioners share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedkeel import randomness
from fedkeel.errors import DataError, ExperimentError, ask_for_object
from fedkeel.typed_values import check_fields, show_value

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Partition:
    """Client i holds ``indices[offsets[i] : offsets[i + 1]]``, in ascending order, of a set of `samples` samples.

    A sample may be unused (no client holds it) or duplicated (held more than once): some published splits do both.
    `notes` says what had to be repaired.
    """

    indices: Integers
    offsets: Integers
    samples: int
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.indices.flags.writeable = False
        self.offsets.flags.writeable = False

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Integers:
        return np.diff(self.offsets)

    @property
    def unused(self) -> int:
        """How many samples no client holds."""
        return self.samples - self._distinct

    @property
    def duplicated(self) -> int:
        """How many of the held samples are further copies of one already counted."""
        return len(self.indices) - self._distinct

    @property
    def _distinct(self) -> int:
        return int(np.count_nonzero(np.bincount(self.indices, minlength=self.samples)))

    def __len__(self) -> int:
        return self.clients

    def __getitem__(self, client: int) -> Integers:
        if not 0 <= client < self.clients:
            raise IndexError(f"client {client} of {self.clients}")
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    @property
    def holders(self) -> Integers:
        """The client of each entry of `indices`."""
        return np.repeat(np.arange(self.clients), self.sizes)

    def histogram(self, labels: Integers, classes: int) -> Integers:
        """How many samples of each class each client holds: [clients, classes]."""
        cells = self.holders * classes + labels[self.indices]
        return np.bincount(cells, minlength=self.clients * classes).reshape(self.clients, classes)

    def split(self, share: float, key: int) -> tuple[Partition, Partition]:
        """Set ⌊share · n⌋ of each client's n different samples aside: (what is kept, what was set aside).

        All copies of a sample stay on one side. One that several clients hold is drawn by the first of them, among the
        n; the others follow. Every client with data keeps at least one sample, so a client of one sample sets none
        aside. What a client draws depends on the key, its number and its own samples only. share = 0 keeps all.
        """
        if not 0 <= share < 1:
            raise ExperimentError(f"the share to set aside must be in [0, 1): {share}", "for example 0.1")
        samples, first = np.unique(self.indices, return_index=True)  # holders ascend: the first is the owner
        clients = self.holders[first]
        lots = randomness.bits(randomness.bits(key, self.clients)[clients] + samples.astype(np.uint64), 1)[:, 0]
        order = np.lexsort((lots, clients))
        owned = np.bincount(clients, minlength=self.clients)
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order)) - (np.cumsum(owned) - owned)[clients[order]]
        # 0.29 * 100 is 28.999…: the nudge makes the floor the one of the written number
        drawn = np.zeros(self.samples, dtype=bool)
        drawn[samples] = rank < np.floor(share * owned + 1e-9)[clients]
        left = np.bincount(self.holders[~drawn[self.indices]], minlength=self.clients)
        for client in np.flatnonzero(left == 0).tolist():
            drawn[self[client][:1]] = False  # all it holds was drawn by others
        aside = drawn[self.indices]
        return self._where(~aside), self._where(aside)

    def _where(self, mask: NDArray[np.bool_]) -> Partition:
        return collect(self.holders[mask], self.indices[mask], self.clients, self.samples, self.notes)


class Partitioner(Protocol):
    """A way to divide a data set. The result is a function of the labels, the groups and the key alone.

    Write it as a frozen dataclass: its fields are its settings, and its name in files is how it prints.
    """

    @property
    def clients(self) -> int | None:
        """How many clients it makes; None where the data decide it."""
        ...

    def divide(
        self, labels: Integers, key: int, *, groups: Integers | None = None
    ) -> Partition | Sequence[Sequence[int] | Integers]:
        """Say which client holds which samples: a list with the numbers of each client's samples, or a `Partition`.

        `labels` is a row with the class of each sample, never empty; `key` the number that all randomness is drawn
        from (`numpy.random.default_rng(key)`, or `fedkeel.randomness`); `groups` the natural owner of each sample where
        the data set knows one.
        """
        ...


def divide(way: Partitioner, labels: Integers, key: int, *, groups: Integers | None = None) -> Partition:
    """Divide samples with these labels in anyone's way; refuse an answer that is no division of them."""
    check_labels(labels)
    try:
        signature(way.divide).bind(labels, key, groups=groups)
    except TypeError as error:
        line = f"partition {type(way).__name__} does not take what divide is given: {error}"
        raise ExperimentError(line, "def divide(self, labels, key, *, groups=None)") from error
    answer: Any = way.divide(labels, key, groups=groups)
    if isinstance(answer, Partition):
        check_answer(answer, way, len(labels))
        return answer
    line = f"partition {type(way).__name__} does not say which samples each client holds: its answer is "
    hint = "return a list with one row of sample numbers for each client: [[0, 2], [1, 3, 4], …]"
    if not isinstance(answer, Sequence | np.ndarray) or isinstance(answer, str) or not len(answer):
        raise ExperimentError(line + show_value(answer), hint)
    held = [np.asarray(rows) for rows in answer]
    for client, rows in enumerate(held):
        if rows.ndim != 1 or (len(rows) and rows.dtype.kind not in "iu"):
            raise ExperimentError(f"{line}{rows.dtype} of shape {rows.shape} for client {client}.", hint)
    holders = np.repeat(np.arange(len(held)), [len(rows) for rows in held])
    found = collect(holders, np.concatenate(held).astype(np.int64), len(held), len(labels))
    check_answer(found, way, len(labels))
    return found


def check_answer(answer: Partition, way: Partitioner, samples: int) -> None:
    """Refuse a partition with samples that do not exist, or whose offsets leave some out."""
    ends, held, samples = answer.offsets, answer.indices, min(samples, answer.samples)
    whole = held.ndim == ends.ndim == 1 and held.dtype.kind in "iu" and ends.dtype.kind in "iu"
    if not whole or len(ends) < 2 or ends[0] != 0 or ends[-1] != len(held) or bool((np.diff(ends) < 0).any()):
        raise ExperimentError(
            f"the offsets of partition {type(way).__name__} do not divide its indices among clients.",
            "both are whole numbers; offsets begin with 0, never fall and end with how many indices there are",
        )
    wrong = np.flatnonzero((held < 0) | (held >= samples))
    if len(wrong):
        raise ExperimentError(
            f"partition {type(way).__name__} gives samples to client {answer.holders[wrong[0]]} that do not exist.",
            f"their numbers are 0 to {samples - 1}",
        )


def collect(holders: Integers, indices: Integers, clients: int, samples: int, notes: tuple[str, ...] = ()) -> Partition:
    """The partition in which client ``holders[k]`` holds sample ``indices[k]``, for each k."""
    order = np.lexsort((indices, holders))
    offsets = np.zeros(clients + 1, dtype=np.int64)
    np.cumsum(np.bincount(holders, minlength=clients), out=offsets[1:])
    return Partition(indices[order], offsets, samples, notes)


def assign_all(samples: int) -> Partition:
    """Give all samples to one client."""
    return Partition(np.arange(samples), np.array([0, samples]), samples)


def equal_sizes(samples: int, clients: int) -> Integers:
    """⌊samples / clients⌋ each, and the remainder to client 0, as FL-Simulator does."""
    check_enough(samples, clients, each=1)
    sizes = np.full(clients, samples // clients, dtype=np.int64)
    sizes[0] += samples % clients
    return sizes


@dataclass(frozen=True)
class Checked:
    """A partitioner that refuses fields which are not of their type or in their range."""

    def __post_init__(self) -> None:
        name, base = type(self).__name__, getattr(self, "base", self)
        if not hasattr(base, "divide") or isinstance(base, type):
            hint = ask_for_object(base) if isinstance(base, type) else "fk.Iid(100)"
            raise ExperimentError(f"base of {name} must be a partition: {show_value(base)}", hint)
        check_fields(self, ExperimentError, name)


@dataclass(frozen=True)
class Based(Checked):
    """A partitioner that changes another one's data, and has its clients."""

    base: Partitioner

    @property
    def clients(self) -> int | None:
        return self.base.clients


def check_enough(samples: int, clients: int, each: int) -> None:
    if clients * each > samples:
        raise DataError(
            f"{clients} clients cannot have {each} of {samples} samples each",
            hint=f"use at most {samples // max(each, 1)} clients or a larger data set",
        )


def check_labels(labels: Integers) -> None:
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(
            f"labels to divide by must be a row of integers, not {labels.dtype} of shape {labels.shape}",
            hint="give one class number for each sample",
        )
    if len(labels) == 0:
        raise DataError("a data set without samples cannot be divided", hint="check the data set's files")
