"""A local step as one CUDA graph: captured once and then replayed, so that the host launches no kernels."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree

from fedkeel.core.local_step import Body, Carry, PhaseContext, StepInput
from fedkeel.core.method import Phase
from fedkeel.core.round import scan_steps
from fedkeel.core.trees import tensors
from fedkeel.engines.stacked.client_mapping import add_client_axis
from fedkeel.engines.stacked.stacked_batches import StackedBatch, StackedSteps, gather_batch
from fedkeel.kernels.side_stream import one_stream
from fedkeel.text import first_line

log = logging.getLogger("fedkeel")

LENGTHS = (25, 5, 1)  # steps of the graphs: each puts what it carries back once
WARM_UP = 3  # plans of transforms, workspaces and compiled kernels are made outside a capture


class Inputs(NamedTuple):
    """What the steps of a phase read, on the device: one row for each step."""

    rows: Tensor
    draws: Tensor | None
    mask: Tensor | None
    active: Tensor | None
    keys: Tensor
    scales: Tensor | None

    @staticmethod
    def of(steps: StackedSteps, device: torch.device, dtype: torch.dtype) -> Inputs:
        def to_device(array: Any) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device)

        return Inputs(
            to_device(steps.index),
            None if steps.draws is None else to_device(steps.draws),
            None if steps.full else to_device(steps.mask()).to(dtype),
            to_device(steps.sizes > 0) if steps.padded else None,
            steps.keys.to(device),
            steps.scales,
        )


@contextmanager
def without_collection() -> Iterator[None]:
    """Hold back the garbage collector: an older graph that it deletes during a capture breaks that capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Graph:
    """The body of a phase on memory that stays in place: `carry` is advanced by each replay."""

    def __init__(self, body: Body, carry: Carry, context: PhaseContext, inputs: Inputs, steps: StackedSteps):
        self.store, self.body, self.noisy = steps.store, body, steps.noisy
        self.carry: Carry = copy_state(carry)
        self.context: PhaseContext = copy_state(context)
        self.inputs: Inputs = add_room(inputs, steps.first)
        self.histogram = None if steps.histogram is None else steps.histogram.clone()
        self.pool: Any = None
        self.step = torch.zeros(1, dtype=torch.int64, device=inputs.rows.device)
        self.losses = torch.zeros(self.inputs.rows.shape[:2], dtype=steps.store.task.dtype, device=inputs.rows.device)
        self.warm_up()
        lengths = [length for length in LENGTHS if length <= len(inputs.rows)]
        self.graphs = [(length, self.capture(length)) for length in lengths]  # longest first

    def warm_up(self) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self.step.zero_()
                self.advance(1)
        torch.cuda.current_stream().wait_stream(side)

    def capture(self, count: int) -> torch.cuda.CUDAGraph:
        """Capture some steps as a graph; graphs of one phase share their memory."""
        graph = torch.cuda.CUDAGraph()
        # the main branch goes first where another one runs beside it; one stream, since memory is kept by stream
        stream = one_stream(self.step.device, priority=-1)
        with without_collection(), torch.cuda.graph(graph, pool=self.pool, stream=stream):
            self.advance(count)
        self.pool = graph.pool()
        return graph

    def advance(self, count: int) -> None:
        """Take some steps, chosen by the counter on the device, and put what they carry back after the last."""
        carry, place = self.carry, tensors(self.carry)
        for _ in range(count):
            index, draws, mask, active, keys, scale = (
                None if part is None else part.index_select(0, self.step).squeeze(0) for part in self.inputs
            )
            assert index is not None
            assert keys is not None
            clients, wide = index.shape
            noise = keys if self.noisy else None
            batch = StackedBatch(gather_batch(self.store, index, draws), mask, (wide,) * clients, self.histogram, noise)
            carry, loss = self.body(carry, self.context, StepInput(batch, self.step.squeeze(0), keys, active, scale))
            self.losses.index_copy_(0, self.step, loss.to(self.losses.dtype).unsqueeze(0))
            self.step += 1
        taken = {slot.untyped_storage().data_ptr() for slot in place}
        after = []
        for old, new in zip(place, tensors(carry), strict=True):
            # a slot may be another one's old value (the last model seen), which is about to be overwritten
            moves = new is not old and new.untyped_storage().data_ptr() in taken
            after.append(new.clone() if moves else new)
        for old, new in zip(place, after, strict=True):
            if new is not old:  # else a slot that no rule of the phase touches
                old.copy_(new)

    def replay(self, count: int) -> None:
        for length, graph in self.graphs:
            for _ in range(count // length):
                graph.replay()
            count %= length

    def run(self, carry: Carry, context: PhaseContext, inputs: Inputs, steps: StackedSteps) -> tuple[Carry, Tensor]:
        first, last = steps.first, steps.first + len(inputs.rows)
        if self.histogram is not None and steps.histogram is not None:
            self.histogram.copy_(steps.histogram)
        for mine, given in zip(tensors((self.carry, self.context)), tensors((carry, context)), strict=True):
            mine.copy_(given)
        for mine, given in zip(tensors(self.inputs), tensors(inputs), strict=True):
            if mine is not None:
                mine[first:last].copy_(given)
        self.step.fill_(first)
        self.replay(last - first)
        return copy_state(self.carry), self.losses[first:last].T.clone()


class GraphScan:
    """The scan of the stacked engine on a GPU: one graph for each phase and each set of shapes."""

    def __init__(self, separable: bool, make: type[Graph] = Graph) -> None:
        self.separable, self.make = separable, make  # separable: whether filled-up batches may be used
        self.possible = True
        self.graphs: dict[Any, Graph] = {}

    def __call__(
        self, phase: Phase, body: Body, carry: Carry, context: PhaseContext, steps: StackedSteps
    ) -> tuple[Carry, Tensor]:
        task = steps.store.task
        if not (self.possible and steps.store.on_device and (self.separable or steps.full)):
            return scan_steps(phase, body, carry, context, steps)
        inputs = Inputs.of(steps, task.device, task.dtype)
        carry, context = (
            _pytree.tree_map(torch.Tensor.contiguous, p) for p in (add_client_axis(carry, len(steps.clients)), context)
        )
        shapes = (*signature((carry, context)), *signature(inputs, skip=1))
        key = (id(phase), *(rows.data_ptr() for rows in steps.store.rows), *shapes)
        graph = self.graphs.get(key)
        if graph is None or len(graph.inputs.rows) < steps.first + len(inputs.rows):
            try:
                self.graphs[key] = graph = self.make(body, carry, context, inputs, steps)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                log.warning("steps are not captured as a graph and run slower: %s", first_line(error))
                self.possible = False
                return scan_steps(phase, body, carry, context, steps)
        return graph.run(carry, context, inputs, steps)

    def clear(self) -> None:
        self.graphs.clear()


def add_room(inputs: Inputs, first: int) -> Inputs:
    """Add room for the steps before the first and for half as many again: a later round may take more."""

    def extend(part: Tensor | None) -> Tensor | None:
        if part is None:
            return None
        before, after = (part[:1].expand(n, *part.shape[1:]) for n in (first, (first + len(part)) // 2))
        return torch.cat([before, part, after])

    return Inputs(*(extend(part) for part in inputs))  # type: ignore[arg-type]


def copy_state(state: Any) -> Any:
    return _pytree.tree_map(lambda leaf: None if leaf is None else leaf.clone(), state)


def signature(state: Any, skip: int = 0) -> tuple[Any, ...]:
    """Return structure and shapes, without the first `skip` axes of each tensor."""
    leaves, structure = _pytree.tree_flatten(state)
    return (repr(structure), *(leaf if leaf is None else (tuple(leaf.shape[skip:]), leaf.dtype) for leaf in leaves))
