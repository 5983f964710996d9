"""What losses and metrics do with samples: whether they take them at all, and whether they are means over them.

Others cannot be taken of filled-up batches, or added up.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree

from fedkeel.data.clients import Sample
from fedkeel.errors import ExperimentError, FedkeelError, ModelError

if TYPE_CHECKING:
    from fedkeel.problems.task import Task

SHOWN = 8  # clients, and samples of each, by which a loss is looked at


@torch.no_grad()
def loss_is_a_mean(task: Task) -> bool:
    """Whether the loss of some samples of several clients is the mean of what it is of each; with class weights, or
    where samples are left out, it is not."""
    there = np.flatnonzero(task.clients.sizes)[:SHOWN]
    some = [task.ready(task.clients.rows(int(c), np.arange(min(SHOWN, task.clients.sizes[c])))) for c in there]
    tensors = tuple(torch.cat(column) for column in zip(*some, strict=True))
    model = task.initial.named() if task.module is None else copy.deepcopy(task.module).eval()
    with torch.random.fork_rng(devices=[]):
        output = task.predict(model, tensors)
        whole = task.losses(model, tensors, output)
        return whole.dim() > 0 or near(whole, [task.losses(model, *one) for one in singly(tensors, output)])


@torch.no_grad()
def try_out(task: Task) -> None:
    """One sample through the model and the loss, so that what does not fit together is told before anything is trained
    or written."""
    client = int(task.clients.sizes.argmax())
    if task.clients.sizes[client] == 0:
        return  # told elsewhere
    tensors = task.ready(task.clients.rows(client, np.zeros(1, np.int64)))
    model = task.initial.named() if task.module is None else copy.deepcopy(task.module).eval()
    try:
        with torch.random.fork_rng(devices=[]):
            task.losses(model, tensors, task.predict(model, tensors))
    except FedkeelError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as error:
        shapes = ", ".join(f"{tuple(part.shape[1:])} of {part.dtype}".replace("torch.", "") for part in tensors)
        told = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(
            f"the model or the loss does not take a sample of client {client} ({shapes}): {told}",
            "do the shapes of data, model and targets fit together?",
        ) from error


def require_a_mean(task: Task, name: str, model: Any, tensors: Sample, output: Any) -> None:
    """Refuse a metric whose mean over stretches is not what it is of all samples."""
    metric = task.problem.metrics[name]
    whole, *each = (
        torch.as_tensor(task.call(metric, model, *some)) for some in ((tensors, output), *singly(tensors, output))
    )
    if not near(whole, each):
        raise ExperimentError(
            f"the metric {name!r} is no mean over samples, so it cannot be added up over stretches of them.",
            "return one value for each sample, or take it of run.model() afterwards",
        )
    task.known_means.add(name)


def singly(tensors: Sample, output: Any) -> Iterator[tuple[Sample, Any]]:
    """Samples and what was made of them, one by one."""
    for i in range(len(tensors[0])):

        def here(part: Any, i: int = i) -> Any:
            return part[i : i + 1] if isinstance(part, Tensor) else part

        yield tuple(map(here, tensors)), _pytree.tree_map(here, output)


def near(whole: Tensor, each: list[Tensor]) -> bool:
    """Whether it is their mean, but for rounding."""
    mean = torch.stack([one.to(torch.float64).mean() for one in each]).mean()
    return torch.allclose(whole.to(torch.float64).mean(), mean, rtol=1e-4, atol=1e-6)
