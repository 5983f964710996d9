"""The samples of stacked clients: raw rows that lie on the device, and which of them each step takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.core.local_step import StepInput
from fedkeel.core.method import Phase
from fedkeel.core.trees import state_bytes
from fedkeel.data.batches import sample_keys_of_steps
from fedkeel.data.clients import Rows, Sample, is_at_hand, join_rows
from fedkeel.data.prepare import Preparation, widen_labels
from fedkeel.engines.engine import Training, plan_rows_of_each, step_keys
from fedkeel.problems.task import Task


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


class RowStore:
    """Raw rows on the device: of all clients, if at hand and within `budget` bytes, else of those that train now."""

    def __init__(self, task: Task, budget: int):
        self.task, self.offsets, self.rows = task, dict[int, int](), Sample()
        sizes = task.clients.sizes
        sample = task.clients.rows(int(sizes.argmax()), np.zeros(1, dtype=np.int64))
        self.whole = int(sizes.sum()) * state_bytes(sample) <= budget and is_at_hand(task.clients)
        # a preparation of the user's own expects rows where data sets lie
        self.on_device = task.problem.prepare is None or isinstance(task.problem.prepare, Preparation)
        self.device = task.device if self.on_device else torch.device("cpu")

    def hold(self, clients: Sequence[int]) -> bool:
        """Bring the rows of these clients onto the device; return whether rows have moved in memory."""
        if all(client in self.offsets for client in clients):
            return False
        wanted = np.flatnonzero(self.task.clients.sizes).tolist() if self.whole else dict.fromkeys(clients)
        parts, offset, offsets = [], 0, dict[int, int]()
        self.offsets = {}  # where reading fails, nothing is held
        for client in wanted:
            size = int(self.task.clients.sizes[client])
            offsets[client] = offset
            offset += size
            parts.append(self.task.clients.rows(client, np.arange(size)))
        rows = [join_rows(column) for column in zip(*parts, strict=True)]
        pairs = list(zip(self.rows, rows, strict=True)) if self.rows else []
        if pairs and all(len(mine) >= offset and have_one_form(mine, given) for mine, given in pairs):
            for mine, given in pairs:  # in place: captured steps read from there
                mine[:offset].copy_(given)
            self.offsets = offsets
            return False
        self.rows, self.offsets = tuple(part.to(self.device) for part in rows), offsets
        return True


@dataclass
class StackedSteps:
    """One phase of stacked clients: which samples each step takes, and what is random about them."""

    store: RowStore
    clients: Sequence[int]
    index: NDArray[np.int64]  # [steps, clients, batch] rows of the store
    sizes: NDArray[np.int64]  # [steps, clients] real samples; 0 where the client has finished
    seeds: NDArray[np.uint64] | None  # [steps, clients, batch]
    draws: NDArray[np.int64] | None  # [steps, clients, batch, numbers]
    keys: Tensor  # [steps, clients], for random rules and objectives
    histogram: Tensor | None = None  # [clients, classes]
    first: int = 0  # the number of the first step
    pads: bool = False  # whether steps of the same phase are padded elsewhere
    scales: Tensor | None = None  # [steps, clients] of the rate, where it changes from step to step

    def set_scales(self, scales: Sequence[list[float] | None]) -> None:
        """Note by what each client's rate is multiplied in each of its steps; padded steps change nothing."""
        task = self.store.task
        rows = [[*own, *[1.0] * (len(self.sizes) - len(own))] for own in scales if own is not None]
        self.scales = torch.tensor(rows, dtype=task.dtype, device=task.device).T.contiguous() if rows else None

    def part(self, first: int, last: int, clients: int) -> StackedSteps:
        """Cut out some steps of the first clients."""

        def cut(array: Any) -> Any:
            return None if array is None else array[first:last, :clients]

        histogram = None if self.histogram is None else self.histogram[:clients]
        parts = {name: cut(getattr(self, name)) for name in ("index", "sizes", "seeds", "draws", "keys", "scales")}
        at = self.first + first
        return replace(self, clients=self.clients[:clients], histogram=histogram, first=at, pads=self.padded, **parts)

    @property
    def noisy(self) -> bool:
        """Whether an objective, or a network that drops something, reads the random key of the step."""
        return self.store.task.needs_keys

    @property
    def padded(self) -> bool:
        """Whether some client finishes before the others."""
        return self.pads or bool((self.sizes == 0).any())

    @property
    def full(self) -> bool:
        """Whether all real batches are of one size."""
        return bool(np.isin(self.sizes, (0, self.index.shape[2])).all())

    @property
    def shares(self) -> Tensor:
        """Each step's share of the client's samples in the phase: `[clients, steps]`."""
        task = self.store.task
        sizes = torch.from_numpy(np.ascontiguousarray(self.sizes.T)).to(task.device, task.dtype)
        return sizes / sizes.sum(-1, keepdim=True)

    def mask(self) -> NDArray[np.bool_]:
        """Mark real samples; all samples of a finished client count, so that nothing is divided by zero."""
        real: NDArray[np.bool_] = np.arange(self.index.shape[2]) < self.sizes[..., None]
        return real | (self.sizes == 0)[..., None]

    def __iter__(self) -> Iterator[StepInput]:
        """Yield step by step; each batch is only as wide as its widest client."""
        device, dtype = self.store.task.device, self.store.task.dtype
        steps = torch.arange(self.first, self.first + len(self.index), device=device)
        keys, active = self.keys.to(device), torch.from_numpy(self.sizes > 0).to(device)
        mask = torch.from_numpy(self.mask()).to(device, dtype)
        for s, sizes in enumerate(self.sizes):
            wide = int(sizes.max())
            short = bool(((sizes > 0) & (sizes < wide)).any())
            batch = StackedBatch(
                self.prepare_step(s, wide),
                mask[s, :, :wide] if short else None,
                tuple(int(n) or wide for n in sizes),
                self.histogram,
                keys[s] if self.noisy else None,
            )
            scale = None if self.scales is None else self.scales[s]
            yield StepInput(batch, steps[s], keys[s], active[s] if self.padded else None, scale)

    def prepare_step(self, s: int, wide: int) -> Sample:
        """Prepare the samples that the models see in step s."""
        device = self.store.device
        if self.store.on_device:
            draws = None if self.draws is None else torch.from_numpy(self.draws[s, :, :wide]).to(device)
            return gather_batch(self.store, torch.from_numpy(self.index[s, :, :wide]).to(device), draws)
        batches = []  # the user's own function sees each client's samples alone, as it would in any other engine
        for c, size in enumerate(self.sizes[s].tolist()):
            at, seeds = (
                self.index[s, c, : size or wide],
                None if self.seeds is None else self.seeds[s, c, : size or wide],
            )
            raw = tuple(part[torch.from_numpy(at).to(device)] for part in self.store.rows)
            batches.append(tuple(fill_batch(part, wide) for part in self.store.task.prepare(raw, seeds)))
        return tuple(join_rows(column).unflatten(0, (len(batches), wide)) for column in zip(*batches, strict=True))


def have_one_form(one: Tensor, other: Tensor) -> bool:
    """Whether the samples of two tensors are of one shape and type."""
    return one.shape[1:] == other.shape[1:] and one.dtype == other.dtype


def fill_batch(part: Tensor, wide: int) -> Tensor:
    """Fill a batch up to `wide` samples by repeating its first."""
    return part if len(part) == wide else torch.cat([part, part[:1].expand(wide - len(part), *part.shape[1:])])


def gather_batch(store: RowStore, index: Tensor, draws: Tensor | None) -> Sample:
    """Gather rows of the store and prepare them on the device: `[clients, batch, …]`."""
    task = store.task
    raw = tuple(part.index_select(0, index.reshape(-1)) for part in store.rows)
    if isinstance(task.problem.prepare, Preparation):
        raw = task.problem.prepare.apply(raw, None if draws is None else draws.flatten(0, 1))
    return tuple(part.to(task.dtype_of(part)).unflatten(0, index.shape) for part in widen_labels(raw))


def plan_stack(
    store: RowStore, training: Training, round: int, clients: Sequence[int], number: int, phase: Phase
) -> StackedSteps:
    """Plan a phase: the same rows and the same draws as if each client were alone."""
    task = store.task
    random = task.needs_keys or any(rule.random for rule in phase.rules)
    plans = plan_rows_of_each(task, training, round, clients, number, phase)
    steps, wide = max(map(len, plans)), max(len(rows) for plan in plans for rows in plan)
    index = np.zeros((steps, len(clients), wide), dtype=np.int64)
    sizes = np.zeros((steps, len(clients)), dtype=np.int64)
    seeds = np.zeros(index.shape, dtype=np.uint64) if task.augments else None
    keys = torch.zeros(sizes.shape, dtype=torch.int64)
    for c, (client, plan) in enumerate(zip(clients, plans, strict=True)):
        count = len(plan)
        sizes[:count, c] = [len(rows) for rows in plan]
        rows = np.array([fill_rows(rows, wide) for rows in plan])
        index[:count, c], index[count:, c] = store.offsets[client] + rows, store.offsets[client] + rows[0, 0]
        if seeds is not None:
            seeds[:count, c] = sample_keys_of_steps(training.key("samples", round, client, number), rows)
        if random:
            keys[:count, c] = step_keys(training, round, client, number, count)
    prepare = task.problem.prepare
    draws = prepare.draw(seeds) if isinstance(prepare, Preparation) else None
    histogram = torch.stack([task.histogram(client) for client in clients]) if "histogram" in task.asks else None
    return StackedSteps(store, clients, index, sizes, seeds, draws, keys, histogram)


def fill_rows(rows: Rows, wide: int) -> Rows:
    """Return `wide` row numbers: the given ones, then the first again."""
    return rows if len(rows) == wide else np.concatenate([rows, np.repeat(rows[:1], wide - len(rows))])
