"""Scores on a GPU: prepared samples stay there, batches are large, and the host waits once."""

from __future__ import annotations

import torch
from torch import nn

from fedkeel.data.clients import Sample
from fedkeel.gradients import Workspace
from fedkeel.task import Part, Scores
from fedkeel.trees import Tree

ROWS = 2500  # scored at once
KEPT_BYTES = 2 << 30  # of prepared samples


class Scorer:
    """Scores models on stretches of evaluation data."""

    def __init__(self, workspace: Workspace):
        self.workspace, self.task = workspace, workspace.task
        self.kept: dict[Part, Sample] = {}
        self.room = KEPT_BYTES

    def __call__(self, params: Tree, buffers: Tree | None, split: str) -> list[Scores]:
        self.workspace.load(params, buffers)
        model = self.workspace.model
        if isinstance(model, nn.Module):
            model.eval()
        try:
            parts = merged(list(self.task.parts(split)))
            found = [self.task.measured(model, self.samples(part)) for part in parts]
        finally:
            if isinstance(model, nn.Module):
                model.train()
        if not found:
            return []
        means = torch.stack([value.to(self.task.device) for measured in found for value in measured.values()]).tolist()
        names, scores = list(found[0]), []
        for number, part in enumerate(parts):
            count, mine = part.last - part.first, means[number * len(names) : (number + 1) * len(names)]
            scores.append({name: (mean * count, count) for name, mean in zip(names, mine, strict=True)})
        return scores

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


def merged(parts: list[Part]) -> list[Part]:
    """Neighbouring stretches joined, up to `ROWS`."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last and last.client == part.client and last.last == part.first and part.last - last.first <= ROWS:
            joined[-1] = last._replace(last=part.last)
        else:
            joined.append(part)
    return joined
