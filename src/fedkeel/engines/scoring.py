"""Scores on a GPU: prepared samples stay there, batches are large, and the host waits once."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import starmap

import torch
from torch import Tensor, nn

from fedkeel.data.clients import Sample
from fedkeel.engines.engine import Model
from fedkeel.gradients import Workspace
from fedkeel.kernels.layers import Frame
from fedkeel.kernels.network import forward
from fedkeel.task import CLIENT, Part, Scores
from fedkeel.trees import Tree

ROWS = 2500  # scored at once
KEPT_BYTES = 2 << 30  # of prepared samples


class Lowered(nn.Module):
    """The network of a workspace by the kernels that train it, as a stack of one, in the arithmetic of the gradients.

    Half as wide as float32, and norm, shortcut and ReLU in one pass: more samples fit, and they take less time.
    """

    def __init__(self, workspace: Workspace):
        super().__init__()
        task, weights = workspace.task, workspace.weights
        assert task.module is not None
        self.network, self.dtype = task.module, task.dtype
        alone = Tree(weights.buffer.unsqueeze(0), weights.layout)  # a view: what the workspace loads is seen here
        self.frame = Frame(alone, alone, torch.zeros((), device=task.device), task.compute)

    def forward(self, x: Tensor) -> Tensor:
        return forward(self.network, self.frame, x.unsqueeze(0)).squeeze(0).to(self.dtype)


class Scorer:
    """Scores models on stretches of evaluation data; `lowered` where kernels know every layer of the network."""

    def __init__(self, workspace: Workspace, lowered: bool = False):
        self.workspace, self.task = workspace, workspace.task
        self.kept: dict[Part, Sample] = {}
        self.room = KEPT_BYTES
        self.model = Lowered(workspace) if lowered else workspace.model
        self.rows = ROWS * (4 if lowered else 1)

    def __call__(self, params: Tree, buffers: Tree | None, split: str) -> list[Scores]:
        return self.many([Model(params, buffers, split)])[0]

    def many(self, models: Iterable[Model]) -> list[list[Scores]]:
        """Scores of several models, which are taken one at a time; the host waits for all of them together."""
        asked = list(starmap(self.measured, models))
        values = [value.to(self.task.device) for found in asked for _, means in found for value in means.values()]
        read = iter(torch.stack(values).tolist() if values else ())
        return [[{name: (next(read) * count, count) for name in means} for count, means in found] for found in asked]

    def measured(self, params: Tree, buffers: Tree | None, split: str) -> list[tuple[int, dict[str, Tensor]]]:
        """Of each stretch: how many samples it has, and their means, which may still be on their way."""
        self.workspace.load(params, buffers)
        parts, model = list(self.task.parts(split)), self.model
        # batches of a client's own test set may each count, however short
        parts = parts if split.startswith(CLIENT) else merged(parts, self.rows)
        if isinstance(model, nn.Module):
            model.eval()
        try:
            return [(part.last - part.first, self.task.measured(model, self.samples(part))) for part in parts]
        finally:
            if isinstance(model, nn.Module):
                model.train()

    def samples(self, part: Part) -> Sample:
        """Prepared rows, kept on the device while there is room."""
        if part in self.kept:
            return self.kept[part]
        made = self.task.ready(self.task.raw(part))
        size = sum(t.numel() * t.element_size() for t in made)
        if size <= self.room:
            self.room -= size
            self.kept[part] = made
        return made


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
