"""Whether outputs are scores of classes: a loss may train on labels of which the network has no output.

Such are ordered classes, of which K have K − 1 outputs (one for each step from a class to the next), and counts that
two outputs describe, a mean and a spread. Scores are what a loss raises for a sample's own class, and no other. So they
stay scores if it ignores the label without an output, also with a penalty for all samples, or wants no class there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkeel.problems.class_labels import list_outside
from fedkeel.problems.module_state import Place, copy_whole, place_function
from fedkeel.problems.predictions import class_scores

if TYPE_CHECKING:
    from fedkeel.problems.task import Task

OF_CLASSES = (functional.cross_entropy, functional.nll_loss)
TRIED, CLASSES = 4, 64
"""So many labels without an output are tried, each beside so many classes."""
NOTHING = 1e-5
"""What is this small beside the largest gradient is a rounding error."""


@torch.no_grad()
def find_label_beyond(task: Task) -> int | None:
    """The first label of which the network has no output, where data in memory hold it and the loss trains on it, and
    not on scores of classes."""
    loss, size = task.problem.loss, task.clients.sizes.max()
    known = hasattr(loss, "batch_mean") or isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
    if task.module is None or known or getattr(loss, "func", loss) in OF_CLASSES or size == 0:
        return None
    with torch.random.fork_rng(devices=[]):
        try:
            first = np.zeros(2 if task.needs_pairs else 1, np.int64)
            sample = tuple(t.cpu() for t in task.prepare(task.clients.rows(int(task.clients.sizes.argmax()), first)))
            model = copy_whole(task.module).cpu().eval()
            output = task.predict(model, sample)
        except Exception:  # whoever trains on it says why
            return None
        if sample[-1].dim() != 1 or (scores := class_scores(output, sample[-1])) is None:
            return None
        placed = place_function(loss, Place(torch.device("cpu"), task.dtype, task.dtype))

        def compute(output: Tensor, label: int) -> Tensor:
            return task.compute_loss(placed, model, (*sample[:-1], torch.full_like(sample[-1], label)), output)

        labels = list_labels_beyond(task, scores.shape[-1])
        return next((label for label in labels[:TRIED] if is_no_class(compute, scores, label)), None)


def list_labels_beyond(task: Task, outputs: int) -> list[int]:
    """The labels of which the network has no output, in training data and test sets that are in memory."""
    parts = [data for data in (task.problem.data, task.test, task.tests) if data is not None]
    return sorted({label for data in parts for label in list_outside(data, outputs) if label >= 0})


def is_no_class(compute: Callable[[Tensor, int], Tensor], scores: Tensor, label: int) -> bool:
    """Whether a loss trains on a label, and raises other outputs for classes than their own.

    It does not where it refuses the label (such data are refused), or ignores it: its value there is 0, or 0 / 0.
    """
    try:
        losses = compute(scores.clone(), label)
        if not losses.isfinite().all() or not losses.any():
            return False
        of_classes = [differentiate(compute, scores, one) for one in range(min(scores.shape[-1], CLASSES))]
        gradients = torch.stack(of_classes) - differentiate(compute, scores, label)  # a penalty for all is in both
    except Exception:
        return False
    smallest = NOTHING * gradients.nan_to_num().abs().max()
    own = gradients.diagonal()
    others = gradients.sum(1) - own
    are_scores = (own < 0) & (others >= -smallest)
    ignored = ~gradients.isfinite().all(1) | (gradients.abs() <= smallest).all(1)  # as the label is
    return bool(ignored.all()) or not bool((are_scores | ignored).all())


@torch.enable_grad()
def differentiate(compute: Callable[[Tensor, int], Tensor], scores: Tensor, label: int) -> Tensor:
    """The gradient of the loss with respect to each output, if samples have that label."""
    leaf = scores.clone().requires_grad_()
    [gradient] = torch.autograd.grad(compute(leaf.clone(), label).sum(), leaf)  # a loss may write into outputs
    return gradient.sum(0)
