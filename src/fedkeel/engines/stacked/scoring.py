"""Score many models at once: their weights are stacked, and so are the samples each is scored on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedkeel.core.trees import Tree, state_bytes
from fedkeel.data.clients import Sample
from fedkeel.engines.engine import ScoreRequest
from fedkeel.kernels.layers import Frame, RunningBuffers
from fedkeel.kernels.network import forward
from fedkeel.problems.predictions import Scores, measure_hits, weigh_means
from fedkeel.problems.prepared_samples import PreparedSamples
from fedkeel.problems.task import CLIENT, Part, Task

HELD_BYTES = 2 << 30  # of weights of the models of a group
STACK_BYTES = 2 << 30  # of weights, samples and activations in one forward pass


class Means(NamedTuple):
    """Means over ranges of samples, for some models of a group; they may still be on their way to the host."""

    models: Sequence[int]  # numbers in the group
    counts: list[list[int]]  # samples in the ranges of each
    names: tuple[str, ...]
    values: Tensor  # of each range in turn, one for each name; in float64

    def scores(self, read: Iterator[float]) -> dict[int, list[Scores]]:
        """Return scores by the model's number, from the values as the host reads them."""

        def of(counts: list[int]) -> list[Scores]:
            return [weigh_means({name: next(read) for name in self.names}, count) for count in counts]

        return {i: of(counts) for i, counts in zip(self.models, self.counts, strict=True)}


class StackScorer:
    """Scores models of clients by the kernels that train them, in the arithmetic of the gradients."""

    def __init__(self, task: Task, prepared: PreparedSamples):
        self.task, self.prepared, self.weight_bytes = task, prepared, task.initial.buffer.nbytes

    def groups(self, models: Iterable[ScoreRequest]) -> Iterator[list[ScoreRequest]]:
        """Yield models that are held in memory together, each made when taken; one that cannot be stacked is alone."""
        group, room = list[ScoreRequest](), HELD_BYTES
        for model in models:
            size = self.weight_bytes if self.stackable(model.split) else HELD_BYTES
            if group and size > room:
                yield group
                group, room = [], HELD_BYTES
            group.append(model)
            room -= size
        if group:
            yield group

    def stackable(self, split: str) -> bool:
        """Whether a split is the test set of a client, is not empty, and fits into memory."""
        rows = self.rows(split)
        return rows > 0 and split.startswith(CLIENT) and self.fits(1, rows)

    def rows(self, split: str) -> int:
        return sum(part.last - part.first for part in self.task.parts(split))

    def fits(self, models: int, rows: int) -> bool:
        """Whether so many models, with so many rows each, may share a forward pass."""
        return models * (self.weight_bytes + rows * self.row_bytes) <= STACK_BYTES

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one sample: the sample twice, and the largest layer's input and output."""
        assert self.task.tests is not None
        sample = self.task.prepare(self.task.read_part(Part(CLIENT, int(self.task.tests.sizes.argmax()), 0, 1)))
        return 2 * state_bytes(sample) + self.task.compute.itemsize * largest_layer(self.task, sample)

    def __call__(self, group: Sequence[ScoreRequest]) -> list[Means]:
        """Score a group by forward passes, each of as many models with similar test sets as fit into memory."""
        parts = [list(self.task.parts(model.split)) for model in group]
        passes = group_by_size([self.rows(model.split) for model in group], self.fits)
        return [self.score_together(some, [group[i] for i in some], [parts[i] for i in some]) for some in passes]

    @torch.no_grad()
    def score_together(
        self, numbers: Sequence[int], models: Sequence[ScoreRequest], parts: Sequence[Sequence[Part]]
    ) -> Means:
        task, module, initial = self.task, self.task.module, self.task.initial
        assert module is not None
        counts = [[part.last - part.first for part in of] for of in parts]
        weights = Tree(
            torch.stack([initial.matching_buffer(model.params).to(initial.buffer) for model in models]), initial.layout
        )
        tensors, places = self.side_by_side(parts, [sum(of) for of in counts])
        output = (
            forward(module, make_frame(task, weights), tensors[0].unflatten(0, places)).to(task.dtype).flatten(0, 1)
        )
        measured = {"loss": task.losses(module, tensors, output)}
        measured |= measure_hits(output, tensors[-1], task.ignored)
        each = torch.stack([value.to(torch.float64).reshape(len(value), -1).mean(1) for value in measured.values()], -1)
        firsts = [c * places[1] + first for c, of in enumerate(counts) for first in range_starts(of)]
        lengths = [count for of in counts for count in of]
        return Means(numbers, counts, tuple(measured), range_means(each, firsts, lengths).flatten())

    def side_by_side(self, parts: Sequence[Sequence[Part]], sizes: Sequence[int]) -> tuple[Sample, tuple[int, int]]:
        """Return the rows of all models, the same number of each, with the number of models and of rows."""
        columns = zip(*(self.prepared(part) for of in parts for part in of), strict=True)
        rows = [torch.cat(column) for column in columns]
        index = range_rows(range_starts(sizes), sizes, self.task.device)[0]
        return tuple(part.index_select(0, index.flatten()) for part in rows), (len(sizes), max(sizes))


def largest_layer(task: Task, sample: Sample) -> int:
    """Count the numbers that go into and come out of a layer, for one sample: the most of all layers."""
    numbers = [0]
    assert task.module is not None

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        numbers.append(inputs[0].numel() + output.numel() * (1 if getattr(layer, "bias", None) is None else 2))

    hooks, training = [layer.register_forward_hook(count) for layer in task.module.modules()], task.module.training
    try:
        with torch.no_grad():
            task.predict(task.module.eval(), sample)  # batch norms learn nothing from it
    finally:
        task.module.train(training)
        for hook in hooks:
            hook.remove()
    return max(numbers)


def make_frame(task: Task, weights: Tree, buffers: Tree | None = None) -> Frame:
    """Make the frame that kernels need for scoring: nothing is differentiated, batch norms learn nothing."""
    running = None if buffers is None else RunningBuffers(buffers)
    return Frame(weights, weights, torch.zeros((), device=task.device), task.compute, running)


def scores_apart(task: Task) -> bool:
    """Whether every measure is taken sample by sample, so that samples beside it do not matter."""
    is_whole = task.problem.metrics.keys() == task.whole_metrics  # those are taken elsewhere
    return hasattr(task.problem.loss, "batch_mean") and is_whole and task.buffers is None


def group_by_size(sizes: Sequence[int], fits: Callable[[int, int], bool]) -> list[list[int]]:
    """Group indices of sizes into lists that fit; no size is less than half of another in its list."""
    groups: list[list[int]] = []
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        largest = sizes[groups[-1][0]] if groups else 0
        if groups and 2 * sizes[i] >= largest and fits(len(groups[-1]) + 1, largest):
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def range_starts(lengths: Sequence[int]) -> list[int]:
    """Return where ranges begin that lie one behind the other."""
    return [0, *accumulate(lengths)][:-1]


def range_rows(firsts: Sequence[int], lengths: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return row numbers `[ranges, longest]`, filled up with the last of each, and which of them are real."""
    # a copy that blocks would wait for everything that is on its way
    first, length = torch.tensor([firsts, lengths]).to(device, non_blocking=True).unsqueeze(-1)
    step = torch.arange(max(lengths), device=device)
    return first + torch.minimum(step, length - 1), step < length


def range_means(each: Tensor, firsts: Sequence[int], lengths: Sequence[int]) -> Tensor:
    """Compute means over ranges of rows of `each`, `[rows, names]`: `[ranges, names]`."""
    index, real = range_rows(firsts, lengths, each.device)
    values = each.index_select(0, index.flatten()).unflatten(0, index.shape)
    # zero times the infinite loss of a diverged model would be no number
    return values.where(real.unsqueeze(-1), 0.0).sum(1) / real.sum(1, keepdim=True)
