"""Scores on a GPU: prepared samples stay there, batches are large, and the host waits once."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import torch
from torch import Tensor, nn

from fedkeel.core.trees import Tree
from fedkeel.engines.engine import ScoreRequest
from fedkeel.engines.stacked.scoring import Means, StackScorer, largest_layer, make_frame, scores_apart
from fedkeel.kernels.network import forward
from fedkeel.problems.gradients import Workspace
from fedkeel.problems.predictions import Scores
from fedkeel.problems.prepared_samples import PreparedSamples
from fedkeel.problems.task import CHUNK, CLIENT, Part

ROWS = 2500  # scored at once
OFFSETS = 2**31  # kernels count the numbers of a layer in 32 bits


class KernelNetwork(nn.Module):
    """A workspace's network computed by the kernels that train it, as a stack of one, in the same arithmetic.

    Half as wide as float32, and norm, shortcut and ReLU in one pass: more samples fit, and they take less time.
    """

    def __init__(self, workspace: Workspace):
        super().__init__()
        task, weights, buffers = workspace.task, workspace.weights, workspace.buffers
        assert task.module is not None
        self.network, self.dtype = task.module, task.dtype
        self.frame = make_frame(task, as_stack(weights), None if buffers is None else as_stack(buffers))

    def forward(self, x: Tensor) -> Tensor:
        return forward(self.network, self.frame, x.unsqueeze(0)).squeeze(0).to(self.dtype)


def as_stack(tree: Tree) -> Tree:
    """View a tree as a stack of one client; what the workspace loads shows in the view."""
    return Tree(tree.buffer.unsqueeze(0), tree.layout)


class Scorer:
    """Scores models on ranges of evaluation data.

    Where kernels know every layer of the network, one model may be `lowered`, and many of them `stacked`.
    """

    def __init__(self, workspace: Workspace, lowered: bool = False, stacked: bool = False):
        self.workspace, self.task = workspace, workspace.task
        self.samples = PreparedSamples(self.task)
        self.model = KernelNetwork(workspace) if lowered else workspace.model
        self.lowered = lowered
        self.stacks = StackScorer(self.task, self.samples) if stacked and scores_apart(self.task) else None

    def __call__(self, params: Tree, buffers: Tree | None, split: str) -> list[Scores]:
        return read_scores([[self.score_one(ScoreRequest(params, buffers, split))]])[0]

    def many(self, models: Iterable[ScoreRequest]) -> list[list[Scores]]:
        """Score several models; the host waits once for all of them.

        They are taken one at a time, or in groups where they can be stacked: no two groups are in memory at once.
        """
        if self.stacks is None:
            return read_scores([[means] for means in map(self.score_one, models)])
        return read_scores(list(map(self.group, self.stacks.groups(models))))  # unlike a loop, map lets go of a group

    def group(self, models: list[ScoreRequest]) -> list[Means]:
        return [self.score_one(models[0])] if self.stacks is None or len(models) == 1 else self.stacks(models)

    @cached_property
    def rows(self) -> int:
        """How many samples are scored at once."""
        if not self.lowered or self.task.test is None:
            return ROWS
        one = self.task.prepare(self.task.read_part(Part("test", -1, 0, 1)))
        return min(4 * ROWS, OFFSETS // largest_layer(self.task, one))

    def score_one(self, request: ScoreRequest) -> Means:
        """Measure one model; in shorter ranges where other programs have taken the memory."""
        try:
            return self.measure(request)
        except torch.OutOfMemoryError:
            if self.rows <= CHUNK:  # the ranges of a split are not cut
                raise
        self.rows //= 2
        self.samples.forget()
        torch.cuda.empty_cache()
        return self.score_one(request)

    def measure(self, request: ScoreRequest) -> Means:
        self.workspace.load(request.params, request.buffers)
        parts, model = list(self.task.parts(request.split)), self.model
        # batches of a client's own test set may each count, however short; metrics may be no means over samples
        parts = parts if request.split.startswith(CLIENT) else merge_parts(parts, self.rows)
        apart = request.split.startswith(CLIENT) or bool(self.task.problem.metrics)
        groups = [[part] for part in parts] if apart else group_parts(parts, self.rows)
        if isinstance(model, nn.Module):
            model.eval()
        try:
            measures = [self.task.measure(model, self.samples(*group)) for group in groups]
        finally:
            if isinstance(model, nn.Module):
                model.train()
        values = [value.to(self.task.device) for means in measures for value in means.values()]
        flat = torch.stack(values) if values else torch.zeros(0, dtype=torch.float64, device=self.task.device)
        counts = [sum(part.last - part.first for part in group) for group in groups]
        return Means((0,), [counts], tuple(measures[0]) if measures else (), flat)


def read_scores(groups: list[list[Means]]) -> list[list[Scores]]:
    """Read the means of groups of models as scores, in the order of the models."""
    values = [means.values for group in groups for means in group]
    numbers = iter(torch.cat(values).tolist() if values else ())
    scores: list[list[Scores]] = []
    for group in groups:
        by_model = {i: of for means in group for i, of in means.scores(numbers).items()}
        scores += [by_model[i] for i in sorted(by_model)]
    return scores


def merge_parts(parts: list[Part], rows: int) -> list[Part]:
    """Join neighbouring ranges, up to so many rows."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last and last.client == part.client and last.last == part.first and part.last - last.first <= rows:
            joined[-1] = last._replace(last=part.last)
        else:
            joined.append(part)
    return joined


def group_parts(parts: list[Part], rows: int) -> list[list[Part]]:
    """Group ranges of several clients that are scored at once, up to so many rows."""
    groups: list[list[Part]] = []
    room = 0
    for part in parts:
        size = part.last - part.first
        if not groups or size > room:
            groups.append([])
            room = rows
        groups[-1].append(part)
        room -= size
    return groups
