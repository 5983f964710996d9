"""What the stacked engine does with a network, found out before anything is trained."""

from __future__ import annotations

import numpy as np
import torch

from fedkeel.core.objectives import Value
from fedkeel.engines.stacked.gradients_stacked import choose_workspace
from fedkeel.engines.stacked.stacked_batches import StackedBatch
from fedkeel.problems.task import Task


def describe_network(task: Task) -> dict[str, str]:
    """Say which functions of a network run stacked, by a pass of two clients with the first samples of one."""
    workspace = choose_workspace(task)
    if not workspace.by_kernels:
        client = int(task.clients.sizes.argmax())
        one = task.batch(client, np.arange(min(2, int(task.clients.sizes[client])))).tensors
        batch = StackedBatch(tuple(torch.stack([part, part]) for part in one), None, (len(one[0]),) * 2)
        if task.stochastic:
            batch = batch._replace(noise=torch.zeros(2, dtype=torch.int64, device=task.device))
        buffers = None if task.buffers is None else task.buffers.expand(2)
        workspace(task.initial.expand(2), batch, Value(), {}, buffers)
    return workspace.report.lines()
