"""Evaluation data, prepared once for all evaluations."""

from __future__ import annotations

import torch

from fedkeel.core.trees import state_bytes
from fedkeel.data.clients import Sample
from fedkeel.problems.task import Part, Task

KEPT_BYTES = 2 << 30  # of prepared samples


class PreparedSamples:
    """Rows of evaluation data as models see them, kept on the device while there is room."""

    def __init__(self, task: Task):
        self.task, self.room = task, KEPT_BYTES
        self.kept: dict[tuple[Part, ...], Sample] = {}

    def __call__(self, *parts: Part) -> Sample:
        """Return the rows of one or more ranges, one behind the other."""
        if parts in self.kept:
            return self.kept[parts]
        ranges = [self.task.prepare(self.task.read_part(part)) for part in parts]
        sample = ranges[0] if len(ranges) == 1 else tuple(map(torch.cat, zip(*ranges, strict=True)))
        if (size := state_bytes(sample)) <= self.room:
            self.room -= size
            self.kept[parts] = sample
        return sample

    def forget(self) -> None:
        self.room = KEPT_BYTES
        self.kept.clear()
