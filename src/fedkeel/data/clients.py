"""The data of all clients, by client and row. Clients that are never asked for cost nothing."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.data.partition.partition import Partition
from fedkeel.errors import DataError
from fedkeel.randomness import key, permutation

Rows = NDArray[np.int64]
Sample = tuple[Tensor, ...]


class ClientData(Protocol):
    """What a task needs to know of its clients."""

    @property
    def sizes(self) -> Rows:
        """How many samples each client has, [clients]; one with none is never selected."""
        ...

    def rows(self, client: int, rows: Rows) -> Sample:
        """Fetch some samples of a client: a tuple of tensors, inputs first and the target last.

        `rows` are numbers below the client's size, in the order of the batch; they may be asked for in any order.
        """
        ...


TARGETS = ("labels", "label", "targets", "target", "y")
"""What the target of named data may be called."""


def find_target(data: Mapping[str, Any]) -> str | None:
    """The part of named data that is called as targets are; the first of them, where there are several."""
    return next((name for name in TARGETS if name in data), None)


def names_of(data: Any, whose: str) -> tuple[str, ...] | None:
    """Name the parts of data that have names: the inputs in the order of the alphabet, the target last."""
    if not isinstance(data, Mapping):
        return None
    target = find_target(data)
    if target is None or len(data) < 2:
        raise DataError(
            f"{whose} has parts by name, and none is called the target: {', '.join(map(str, data))}",
            f"call it one of {', '.join(TARGETS)}, beside the inputs",
        )
    return (*sorted(name for name in data if name != target), target)


def refuse_masked(part: Any, whose: str) -> None:
    """Refuse an array that hides some of its values: PyTorch would take them."""
    if np.ma.is_masked(part):
        raise DataError(f"{whose} has values behind a mask.", "fill them (x.filled(0)), or leave their rows out")


def to_tensor(part: Any) -> Tensor:
    part = np.array(part) if hasattr(part, "to_numpy") else part  # PyTorch would ask a Series for the row called 0
    if not isinstance(part, np.ndarray):
        return part if isinstance(part, Tensor) else torch.as_tensor(part)
    if part.flags.writeable:
        return torch.as_tensor(part, device="cpu")  # not the caller's default
    with warnings.catch_warnings():  # nobody writes into it: rows are taken as copies
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.as_tensor(part, device="cpu")


def to_tensors(data: Any, whose: str) -> Sample:
    """Convert one tensor, array or column of pandas, or a tuple or dict of them, to tensors of equal length."""
    names = names_of(data, whose)
    parts = [data[n] for n in names] if names else data if isinstance(data, tuple | list) else (data,)
    for part in parts:
        refuse_masked(part, whose)
    try:
        tensors = tuple(map(to_tensor, parts))
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{whose} is not made of tensors: {error}",
            "give a tensor, or a tuple or dict of them; words are numbered, texts of unequal length are padded",
        ) from None
    if any(tensor.layout is not torch.strided for tensor in tensors):
        raise DataError(f"{whose} has sparse tensors, whose rows cannot be taken.", "give them with .to_dense()")
    if not tensors or any(t.dim() == 0 or len(t) != len(tensors[0]) for t in tensors):
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
        raise DataError(f"the tensors of {whose} differ in length: {shapes}", "rows are samples, in each of them")
    return tensors


def take_rows(data: Any, rows: Rows, whose: str) -> Any:
    """Some samples of data, in the form that the data have: a tensor, a tuple of them or a dict."""
    at, names = torch.from_numpy(rows), names_of(data, whose)
    parts = tuple(part[at] for part in to_tensors(data, whose))
    if names is not None:
        return dict(zip(names, parts, strict=True))
    return parts if isinstance(data, tuple | list) else parts[0]


class DividedList(list[Any]):
    """The data of each client, with the partition that took them from one pool: it knows which samples are copies; and,
    where a share was set aside, which rows of each client are left."""

    def __init__(self, clients: Iterable[Any], partition: Partition | None, left: Sequence[Rows] | None = None):
        super().__init__(clients)
        self.partition, self.left = partition, left


class TensorClients:
    """Each client's own tensors, from any sequence; one that knows its `sizes` is not walked through."""

    def __init__(self, clients: Sequence[Any]):
        self.clients = clients
        sizes = getattr(clients, "sizes", None)
        if sizes is None:
            sizes = [len(to_tensors(clients[i], f"client {i}")[0]) for i in range(len(clients))]
            check_names({f"client {i}": names_of(clients[i], f"client {i}") for i in range(len(clients))})
        self.sizes = np.asarray(sizes, dtype=np.int64)

    def rows(self, client: int, rows: Rows) -> Sample:
        at = torch.from_numpy(rows)
        return tuple(part[at] for part in to_tensors(self.clients[client], f"client {client}"))


def in_memory(data: ClientData) -> bool:
    """Whether the data of all clients are tensors that can be looked at without reading them."""
    if isinstance(data, HeldOut):
        return in_memory(data.clients)
    return isinstance(data, TensorClients) and not hasattr(data.clients, "sizes")


class DerivedClients:
    """Clients whose rows are those of other clients: of the sources."""

    sources: Sequence[ClientData]


def is_at_hand(data: ClientData) -> bool:
    """Whether the rows of all clients lie in memory or in a mapped file, so that no code of the user's reads them."""
    if isinstance(data, DerivedClients):
        return all(map(is_at_hand, data.sources))
    return isinstance(data, SharedClients) or in_memory(data)


class NamedRows(DerivedClients):
    """Clients that give their rows as dicts."""

    def __init__(self, clients: Any):
        self.clients, self.sizes, self.sources = clients, clients.sizes, (clients,)
        self.hidden = getattr(clients, "hidden", False)  # as on a federation's server, which sees no rows

    def rows(self, client: int, rows: Rows) -> Sample:
        return to_tensors(self.clients.rows(client, rows), f"client {client}")


def check_names(named: Mapping[str, tuple[str, ...] | None]) -> None:
    """Refuse data whose parts have other names than those of the first."""
    first, expected = next(iter(named.items()), ("", None))
    for whose, names in named.items():
        if names != expected:
            here, there = (", ".join(one) if one else "no names" for one in (names, expected))
            raise DataError(
                f"the parts of {whose} are called otherwise: {here}; those of {first}: {there}",
                "give all of them the same parts",
            )


class UnequalSamplesError(DataError):
    """Samples differ in shape, so they cannot be seen at once."""


def join_rows(of_clients: Sequence[Tensor]) -> Tensor:
    """Put the rows of clients one behind the other; refuse samples of unequal shape."""
    shapes = {tuple(part.shape[1:]) for part in of_clients}
    if len(shapes) > 1:
        some = " and ".join(map(str, sorted(shapes)[:2]))
        raise UnequalSamplesError(
            f"the samples of clients differ in shape, so they cannot be stacked: {some}.",
            "pad them to one length, or use --engine serial",
        )
    return torch.cat(list(of_clients))


class SharedClients:
    """One data set on disk, divided among clients by a partition."""

    def __init__(self, inputs: Any, labels: NDArray[np.int64], partition: Partition):
        self.inputs, self.labels, self.partition = inputs, labels, partition
        self.sizes = np.diff(partition.offsets)

    def with_partition(self, partition: Partition) -> SharedClients:
        """The same data set, divided otherwise."""
        return SharedClients(self.inputs, self.labels, partition)

    def rows(self, client: int, rows: Rows) -> Sample:
        at = self.partition.indices[self.partition.offsets[client] + rows]
        return torch.from_numpy(np.ascontiguousarray(self.inputs[at])), torch.from_numpy(self.labels[at])


def find_partition(clients: ClientData | None) -> Partition | None:
    """The partition that divided the samples among clients, where there was one."""
    if isinstance(clients, SharedClients):
        return clients.partition
    divided = clients.clients if isinstance(clients, TensorClients) else None
    return divided.partition if isinstance(divided, DividedList) else None


def count_share(share: float, sizes: Rows) -> Rows:
    """⌊share · n⌋ of each size n, for the share as it is written: 0.29 · 100 is 29, and 28.999… in floating point.

    Where floating point rounds up, as 1/3 · 3 to 1, that is the number.
    """
    written = Fraction(str(float(share)))
    exact = [written.numerator * size // written.denominator for size in sizes.tolist()]
    return np.maximum((share * sizes).astype(np.int64), np.array(exact, np.int64))


class HeldOut(DerivedClients):
    """A share of each client's rows (`validation`), or the rest of them, at least one row of each client."""

    def __init__(self, clients: ClientData, share: float, seed: int, *, validation: bool):
        self.clients, self.seed, self.validation = clients, seed, validation
        self.sources = [clients]
        self.kept = clients.sizes - np.minimum(count_share(share, clients.sizes), np.maximum(clients.sizes - 1, 0))
        self.sizes = clients.sizes - self.kept if validation else self.kept

    def rows(self, client: int, rows: Rows) -> Sample:
        order = permutation(key(self.seed, "validation", client), int(self.clients.sizes[client]))
        kept = int(self.kept[client])
        return self.clients.rows(client, (order[kept:] if self.validation else order[:kept])[rows])


def describe_clients(
    clients: ClientData, tests: ClientData | None = None, validation: ClientData | None = None, server: int = 0
) -> str:
    """Say in one line who holds how much; of a divided data set also how many samples are unused, and how many copies.

    `clients` includes `validation`, but neither `tests` nor the samples of the server.
    """
    sizes = clients.sizes + (0 if tests is None else tests.sizes)
    few, many = (int(sizes.min()), int(sizes.max())) if len(sizes) else (0, 0)
    facts = [f"{len(sizes)} clients hold {few} sample{'s' * (few != 1)} each" if few == many else
            f"{len(sizes)} clients hold {few} to {many} samples"]  # fmt: skip
    partition = find_partition(clients)
    if partition is not None:
        parts = [part for part in (partition, find_partition(tests)) if part is not None]
        held = np.concatenate([part.indices for part in parts])
        distinct = len(np.unique(held))
        taken = server if isinstance(clients, SharedClients) else 0  # a problem's own proxy is not of the pool
        facts += [f"{partition.samples - distinct - taken} unused, {len(held) - distinct} duplicated"]
    for part, use in ((validation, "validation"), (tests, "the clients' own tests")):
        facts += [] if part is None else [f"{int(part.sizes.sum())} of them for {use}"]
    facts += [] if partition is None else partition.notes
    return "; ".join(facts)
