"""A problem made of data as they come: divided by a partition, with the loss that their targets ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkeel.data.clients import take_rows, to_tensors
from fedkeel.data.forms import read_forms
from fedkeel.data.partition.iid import Iid, QuantitySkew
from fedkeel.data.partition.partition import Partitioner
from fedkeel.data.partition.partition import divide as divide_labels
from fedkeel.errors import ExperimentError, require_known
from fedkeel.models import build
from fedkeel.problems.problem import Problem
from fedkeel.randomness import key

PARTS = ("train", "test", "label", "name")
MODEL = 'model="logistic", or a torch.nn.Module'


@dataclass(frozen=True, eq=False)
class OwnData:
    """Data as they were given; equal to themselves alone, since tensors are not compared as values are."""

    given: Any


def make_problem(data: Any, model: Any, partition: Partitioner | None, partition_seed: int, seed: int) -> Problem:
    """Make a problem of `{"train": …, "test": …, "label": …, "name": …}`, or of training data alone.

    With a partition the training data are one pool, which it divides; without one they are the data of each client. The
    loss is cross-entropy of classes, binary cross-entropy of sets of labels (zeros and ones), else the squared error.
    """
    given = dict(data) if isinstance(data, Mapping) and "train" in data else {"train": data}
    for word in given:
        require_known(str(word), PARTS, "the data of an experiment have no part", "parts", ExperimentError)
    train, label = given["train"], given.get("label")
    if partition is not None and train is not None:
        forms = read_forms([train], given.get("test"), None, None, label)
        train, test = divide(forms.clients[0], partition, key(partition_seed, "partition")), forms.test
        label = None  # the target has its usual name now
    else:
        forms = read_forms(train, given.get("test"), None, None, label)
        train, test, label = forms.clients, forms.test, None
    parts = [to_tensors(one, "the data") for one in ([*train] if isinstance(train, list | tuple) else [])]
    parts += [] if test is None or hasattr(test, "rows") else [to_tensors(test, "the test set")]
    if not parts:
        raise ExperimentError("the data of an experiment hold no client.", "data=[(x0, y0), …]")
    targets = [one[-1] for one in parts if len(one[-1])]
    classes = count_classes(targets)
    if isinstance(model, str):
        shape, outputs = tuple(parts[0][0].shape[1:]), classes or max(1, targets[0][:1].numel())
        model = build(model, shape=shape, classes=outputs, seed=seed)
    if not isinstance(model, nn.Module):
        raise ExperimentError("data without a model cannot be learned from.", MODEL)
    return Problem(
        model=model, loss=choose_loss(targets), clients=train, test=test, classes=classes, name=given.get("name")
    )


def divide(pool: Any, partition: Partitioner, of: int) -> list[Any]:
    """Divide one pool of samples among clients."""
    target = to_tensors(pool, "the training data")[-1]
    are_classes = target.dim() == 1 and not target.is_floating_point()
    if not are_classes and not isinstance(partition, Iid | QuantitySkew):
        raise ExperimentError(
            f"targets without classes cannot be divided by class: {type(partition).__name__}.",
            'partition="iid:clients=10" or "quantity-skew:…"',
        )
    labels = target.to(torch.int64).numpy() if are_classes else np.zeros(len(target), np.int64)
    found = divide_labels(partition, labels, of)
    return [take_rows(pool, np.array(found[client]), "the training data") for client in range(found.clients)]


def count_classes(targets: list[Tensor]) -> int | None:
    """Count the classes of targets that are whole numbers; None where they are something else."""
    if not targets or any(one.is_floating_point() or one.dtype == torch.bool for one in targets):
        return None
    return int(max(int(one.max()) for one in targets)) + 1


def choose_loss(targets: list[Tensor]) -> Any:
    if count_classes(targets) is not None:
        return functional.cross_entropy
    sets = all(one.dim() == 2 and one.shape[1] > 1 and bool(((one == 0) | (one == 1)).all()) for one in targets)
    return functional.binary_cross_entropy_with_logits if sets else functional.mse_loss
