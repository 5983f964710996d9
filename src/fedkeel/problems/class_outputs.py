"""Whether outputs are scores of classes: a loss may train on labels of which the network has no output.

Such are ordered classes, of which K have K − 1 outputs (one for each step from a class to the next), and counts that
two outputs describe, a mean and a spread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedkeel.problems.module_state import Place, copy_whole, place_function
from fedkeel.problems.predictions import class_scores
from fedkeel.problems.sound_data import read_labels

if TYPE_CHECKING:
    from fedkeel.problems.task import Task

OF_CLASSES = (functional.cross_entropy, functional.nll_loss)


@torch.no_grad()
def find_label_beyond(task: Task) -> int | None:
    """The first label of which the network has no output, where data in memory hold it and the loss trains on it.

    None where outputs may be scores of classes: the loss refuses that label, or ignores it (its value there is 0, or
    0 / 0).
    """
    loss, size = task.problem.loss, task.clients.sizes.max()
    known = hasattr(loss, "batch_mean") or isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
    if task.module is None or known or getattr(loss, "func", loss) in OF_CLASSES or size == 0:
        return None
    try:
        first = np.zeros(2 if task.needs_pairs else 1, np.int64)
        sample = tuple(t.cpu() for t in task.prepare(task.clients.rows(int(task.clients.sizes.argmax()), first)))
        model = copy_whole(task.module).cpu().eval()
        with torch.random.fork_rng(devices=[]):
            output = task.predict(model, sample)
            if sample[-1].dim() != 1 or (scores := class_scores(output, sample[-1])) is None:
                return None
            here, label = Place(torch.device("cpu"), task.dtype, task.dtype), scores.shape[-1]
            given = (*sample[:-1], torch.full_like(sample[-1], label))
            losses = task.compute_loss(place_function(loss, here), model, given, output)
    except Exception:  # the loss does not take that label: where data hold it, they are refused
        return None
    if not losses.isfinite().all() or not losses.any():
        return None
    parts = [data for data in (task.problem.data, task.test, task.tests) if data is not None]
    labels = [found for found in map(read_labels, parts) if found is not None]
    return label if any(bool((one == label).any()) for one in labels) else None
