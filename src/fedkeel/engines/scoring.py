"""Scores on a GPU: prepared samples stay there, batches are large, and the host waits once."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import torch
from torch import Tensor, nn

from fedkeel.core.trees import Tree
from fedkeel.engines.engine import Model
from fedkeel.engines.stacked.scoring import Means, Prepared, Stacks, apart, frame_of, largest_layer
from fedkeel.kernels.network import forward
from fedkeel.problems.gradients import Workspace
from fedkeel.problems.task import CHUNK, CLIENT, Part, Scores

ROWS = 2500  # scored at once
OFFSETS = 2**31  # kernels count the numbers of a layer in 32 bits


class Lowered(nn.Module):
    """The network of a workspace by the kernels that train it, as a stack of one, in the arithmetic of the gradients.

    Half as wide as float32, and norm, shortcut and ReLU in one pass: more samples fit, and they take less time.
    """

    def __init__(self, workspace: Workspace):
        super().__init__()
        task, weights, buffers = workspace.task, workspace.weights, workspace.buffers
        assert task.module is not None
        self.network, self.dtype = task.module, task.dtype
        self.frame = frame_of(task, alone(weights), None if buffers is None else alone(buffers))

    def forward(self, x: Tensor) -> Tensor:
        return forward(self.network, self.frame, x.unsqueeze(0)).squeeze(0).to(self.dtype)


def alone(tree: Tree) -> Tree:
    """A stack of one; a view: what the workspace loads is seen in it."""
    return Tree(tree.buffer.unsqueeze(0), tree.layout)


class Scorer:
    """Scores models on stretches of evaluation data.

    Where kernels know every layer of the network, one model may be `lowered`, and many of them `stacked`.
    """

    def __init__(self, workspace: Workspace, lowered: bool = False, stacked: bool = False):
        self.workspace, self.task = workspace, workspace.task
        self.samples = Prepared(self.task)
        self.model = Lowered(workspace) if lowered else workspace.model
        self.lowered = lowered
        self.stacks = Stacks(self.task, self.samples) if stacked and apart(self.task) else None

    def __call__(self, params: Tree, buffers: Tree | None, split: str) -> list[Scores]:
        return read([[self.single(Model(params, buffers, split))]])[0]

    def many(self, models: Iterable[Model]) -> list[list[Scores]]:
        """Scores of several models; the host waits for all of them together.

        They are taken one at a time, or in groups where they can be stacked: no two groups are in memory at once.
        """
        if self.stacks is None:
            return read([[means] for means in map(self.single, models)])
        return read(list(map(self.group, self.stacks.groups(models))))  # unlike a loop, map lets go of a group

    def group(self, models: list[Model]) -> list[Means]:
        return [self.single(models[0])] if self.stacks is None or len(models) == 1 else self.stacks(models)

    @cached_property
    def rows(self) -> int:
        """How many samples are scored at once."""
        if not self.lowered or self.task.test is None:
            return ROWS
        one = self.task.prepare(self.task.read_part(Part("test", -1, 0, 1)))
        return min(4 * ROWS, OFFSETS // largest_layer(self.task, one))

    def single(self, asked: Model) -> Means:
        """Means over the stretches of one model; shorter ones where others have taken the memory."""
        try:
            return self.scored(asked)
        except torch.OutOfMemoryError:
            if self.rows <= CHUNK:  # stretches are not cut
                raise
        self.rows //= 2
        self.samples.forget()
        torch.cuda.empty_cache()
        return self.single(asked)

    def scored(self, asked: Model) -> Means:
        self.workspace.load(asked.params, asked.buffers)
        parts, model = list(self.task.parts(asked.split)), self.model
        # batches of a client's own test set may each count, however short
        parts = parts if asked.split.startswith(CLIENT) else merged(parts, self.rows)
        if isinstance(model, nn.Module):
            model.eval()
        try:
            found = [self.task.measure(model, self.samples(part)) for part in parts]
        finally:
            if isinstance(model, nn.Module):
                model.train()
        values = [value.to(self.task.device) for means in found for value in means.values()]
        flat = torch.stack(values) if values else torch.zeros(0, dtype=torch.float64, device=self.task.device)
        return Means((0,), [[part.last - part.first for part in parts]], tuple(found[0]) if found else (), flat)


def read(groups: list[list[Means]]) -> list[list[Scores]]:
    """What the means of groups of models are, in the order of the models."""
    waiting = [means.values for group in groups for means in group]
    numbers = iter(torch.cat(waiting).tolist() if waiting else ())
    scores: list[list[Scores]] = []
    for group in groups:
        found = {i: of for means in group for i, of in means.scores(numbers).items()}
        scores += [found[i] for i in sorted(found)]
    return scores


def merged(parts: list[Part], rows: int) -> list[Part]:
    """Neighbouring stretches joined, up to so many rows."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last and last.client == part.client and last.last == part.first and part.last - last.first <= rows:
            joined[-1] = last._replace(last=part.last)
        else:
            joined.append(part)
    return joined
