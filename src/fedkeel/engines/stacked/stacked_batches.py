"""The samples of stacked clients: raw rows that lie on the device, and which of them each step takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.core.method import Phase
from fedkeel.core.round import Moment
from fedkeel.data.batches import sample_keys_of_steps
from fedkeel.data.clients import Rows, Sample
from fedkeel.data.prepare import Preparation
from fedkeel.engines.engine import Training, planned, step_keys
from fedkeel.problems.task import Task, widen_labels


class StackedBatch(NamedTuple):
    """The samples of one step of all stacked clients, `[clients, batch, …]`.

    Short batches are filled up with samples of the same client. `mask` is 1 for real samples and None when all are;
    `sizes` counts them, on the host. `histogram` is one row of class counts for each client, and `noise` the key of
    each client's step, where they are asked for.
    """

    tensors: Sample
    mask: Tensor | None
    sizes: tuple[int, ...]
    histogram: Tensor | None = None
    noise: Tensor | None = None


class Store:
    """Raw rows on the device: of all clients when they fit into `budget` bytes, else of those that train now."""

    def __init__(self, task: Task, budget: int):
        self.task, self.offsets, self.rows = task, dict[int, int](), Sample()
        sizes = task.clients.sizes
        sample = task.clients.rows(int(sizes.argmax()), np.zeros(1, dtype=np.int64))
        self.row_bytes = sum(part.numel() * part.element_size() for part in sample)
        self.whole = int(sizes.sum()) * self.row_bytes <= budget
        # a preparation of the user's own expects rows where data sets lie
        self.on_device = task.problem.prepare is None or isinstance(task.problem.prepare, Preparation)
        self.device = task.device if self.on_device else torch.device("cpu")

    def hold(self, clients: Sequence[int]) -> bool:
        """Have the rows of these clients on the device; whether they lie elsewhere than before."""
        if all(client in self.offsets for client in clients):
            return False
        wanted = range(len(self.task.clients.sizes)) if self.whole else clients
        parts, offset = [], 0
        self.offsets = {}
        for client in wanted:
            size = int(self.task.clients.sizes[client])
            self.offsets[client] = offset
            offset += size
            parts.append(self.task.clients.rows(client, np.arange(size)))
        rows = [torch.cat(column) for column in zip(*parts, strict=True)]
        if self.rows and len(self.rows[0]) >= offset:
            for mine, given in zip(self.rows, rows, strict=True):  # in place: captured steps read from there
                mine[:offset].copy_(given)
            return False
        self.rows = tuple(part.to(self.device) for part in rows)
        return True


@dataclass
class Steps:
    """One phase of stacked clients: which samples each step takes, and what is random about them."""

    store: Store
    clients: Sequence[int]
    index: NDArray[np.int64]  # [steps, clients, batch] rows of the store
    sizes: NDArray[np.int64]  # [steps, clients] real samples; 0 where the client has finished
    seeds: NDArray[np.uint64] | None  # [steps, clients, batch]
    draws: NDArray[np.int64] | None  # [steps, clients, batch, numbers]
    keys: Tensor  # [steps, clients], for random rules and objectives
    histogram: Tensor | None = None  # [clients, classes]
    first: int = 0  # the number of the first step
    pads: bool = False  # whether steps of the same phase are padded elsewhere

    def part(self, first: int, last: int, clients: int) -> Steps:
        """Some steps of the first clients."""

        def cut(array: Any) -> Any:
            return None if array is None else array[first:last, :clients]

        histogram = None if self.histogram is None else self.histogram[:clients]
        index, sizes, seeds, draws, keys = map(cut, (self.index, self.sizes, self.seeds, self.draws, self.keys))
        return Steps(
            self.store,
            self.clients[:clients],
            index,
            sizes,
            seeds,
            draws,
            keys,
            histogram,
            self.first + first,
            self.padded,
        )

    @property
    def noisy(self) -> bool:
        """Whether an objective reads the key of the step."""
        return "key" in self.store.task.asks

    @property
    def padded(self) -> bool:
        """Whether some client finishes before the others."""
        return self.pads or bool((self.sizes == 0).any())

    @property
    def full(self) -> bool:
        """Whether all batches that count are of one size."""
        return bool(np.isin(self.sizes, (0, self.index.shape[2])).all())

    @property
    def shares(self) -> Tensor:
        """Of each client's samples in the phase, how many each step takes: `[clients, steps]`."""
        task = self.store.task
        sizes = torch.from_numpy(np.ascontiguousarray(self.sizes.T)).to(task.device, task.dtype)
        return sizes / sizes.sum(-1, keepdim=True)

    def mask(self) -> NDArray[np.bool_]:
        """Real samples; of clients that have finished all count, so that nothing is divided by zero."""
        real: NDArray[np.bool_] = np.arange(self.index.shape[2]) < self.sizes[..., None]
        return real | (self.sizes == 0)[..., None]

    def __iter__(self) -> Iterator[Moment]:
        """Step by step, each batch only as wide as its widest client."""
        device, dtype = self.store.task.device, self.store.task.dtype
        steps = torch.arange(self.first, self.first + len(self.index), device=device)
        keys, active = self.keys.to(device), torch.from_numpy(self.sizes > 0).to(device)
        mask = torch.from_numpy(self.mask()).to(device, dtype)
        for s, sizes in enumerate(self.sizes):
            wide = int(sizes.max())
            short = bool(((sizes > 0) & (sizes < wide)).any())
            batch = StackedBatch(
                self.prepared(s, wide),
                mask[s, :, :wide] if short else None,
                tuple(int(n) or wide for n in sizes),
                self.histogram,
                keys[s] if self.noisy else None,
            )
            yield Moment(batch, steps[s], keys[s], active[s] if self.padded else None)

    def prepared(self, s: int, wide: int) -> Sample:
        """What the models see in step s."""
        device = self.store.device
        if self.store.on_device:
            draws = None if self.draws is None else torch.from_numpy(self.draws[s, :, :wide]).to(device)
            return gathered(self.store, torch.from_numpy(self.index[s, :, :wide]).to(device), draws)
        made = []  # the user's own function sees each client's samples alone, as it would in any other engine
        for c, size in enumerate(self.sizes[s].tolist()):
            at, seeds = (
                self.index[s, c, : size or wide],
                None if self.seeds is None else self.seeds[s, c, : size or wide],
            )
            raw = tuple(part[torch.from_numpy(at).to(device)] for part in self.store.rows)
            made.append(tuple(filled(part, wide) for part in self.store.task.prepare(raw, seeds)))
        return tuple(torch.stack(column) for column in zip(*made, strict=True))


def filled(part: Tensor, wide: int) -> Tensor:
    """A batch filled up to `wide` samples with its first."""
    return part if len(part) == wide else torch.cat([part, part[:1].expand(wide - len(part), *part.shape[1:])])


def gathered(store: Store, index: Tensor, draws: Tensor | None) -> Sample:
    """Rows of the store, prepared on the device: `[clients, batch, …]`."""
    task = store.task
    raw = tuple(part.index_select(0, index.reshape(-1)) for part in store.rows)
    if isinstance(task.problem.prepare, Preparation):
        raw = task.problem.prepare.apply(raw, None if draws is None else draws.flatten(0, 1))
    return tuple(part.to(task.dtype_of(part)).unflatten(0, index.shape) for part in widen_labels(raw))


def steps_of(store: Store, training: Training, round: int, clients: Sequence[int], number: int, phase: Phase) -> Steps:
    """The plan of a phase: the same rows and the same draws as if each client were alone."""
    task = store.task
    random = "key" in task.asks or any(rule.random for rule in phase.rules)
    plans = [planned(task, training, round, client, number, phase) for client in clients]
    steps, wide = max(map(len, plans)), max(len(rows) for plan in plans for rows in plan)
    index = np.zeros((steps, len(clients), wide), dtype=np.int64)
    sizes = np.zeros((steps, len(clients)), dtype=np.int64)
    seeds = np.zeros(index.shape, dtype=np.uint64) if task.augments else None
    keys = torch.zeros(sizes.shape, dtype=torch.int64)
    for c, (client, plan) in enumerate(zip(clients, plans, strict=True)):
        of, count = training.key("samples", round, client, number), len(plan)
        sizes[:count, c] = [len(rows) for rows in plan]
        rows = np.stack([filled_up(rows, wide) for rows in plan])
        index[:count, c], index[count:, c] = store.offsets[client] + rows, store.offsets[client] + rows[0, 0]
        if seeds is not None:
            seeds[:count, c] = sample_keys_of_steps(of, rows)
        if random:
            keys[:count, c] = step_keys(training, round, client, number, count)
    prepare = task.problem.prepare
    draws = prepare.draw(seeds) if isinstance(prepare, Preparation) else None
    histogram = torch.stack([task.histogram(client) for client in clients]) if "histogram" in task.asks else None
    return Steps(store, clients, index, sizes, seeds, draws, keys, histogram)


def filled_up(rows: Rows, wide: int) -> Rows:
    """`wide` row numbers: the given ones, then the first again."""
    return rows if len(rows) == wide else np.concatenate([rows, np.repeat(rows[:1], wide - len(rows))])
