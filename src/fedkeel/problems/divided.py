"""A problem made of data as they come: divided by a partition, with the loss that their targets ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkeel.data.clients import DividedList, names_of, take_rows, to_tensors
from fedkeel.data.forms import copy_containers, read_forms
from fedkeel.data.partition.feature_shift import find_shift
from fedkeel.data.partition.iid import Iid, QuantitySkew
from fedkeel.data.partition.partition import Partitioner
from fedkeel.data.partition.partition import divide as divide_labels
from fedkeel.data.prepare import widen_labels
from fedkeel.errors import DataError, ExperimentError, require_known
from fedkeel.models import build
from fedkeel.problems.class_labels import WHOLE_FRACTIONS, are_whole_fractions
from fedkeel.problems.problem import Problem
from fedkeel.randomness import in_turn, key

PARTS = ("train", "test", "label", "name")
MODEL = 'model="logistic", or a torch.nn.Module'
FEW = 20  # classes in tables are seldom more
IGNORED = -100  # a label that cross-entropy leaves out


@dataclass(frozen=True, eq=False)
class OwnData:
    """Data as they were given; equal to themselves alone, since tensors are not compared as values are."""

    given: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "given", copy_containers(self.given))


def make_problem(data: Any, model: Any, partition: Partitioner | None, partition_seed: int, seed: int) -> Problem:
    """Make a problem of `{"train": …, "test": …, "label": …, "name": …}`, or of training data alone.

    With a partition the training data are one pool, which it divides; without one they are the data of each client. The
    loss is cross-entropy of classes, binary cross-entropy of sets of labels (zeros and ones), else the squared error.
    Targets get the type that it takes and, where the model is built here, the shape of its outputs.
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
        if isinstance(train, Mapping):
            raise DataError(
                "without a partition the data of an experiment are a list of clients, not a dict.",
                'clients have numbers: data=list(d.values()); one pool takes partition="iid:clients=10"',
            )
        forms = read_forms(train, given.get("test"), None, None, label)
        train, test, label = forms.clients, forms.test, None
    many, named = isinstance(train, list | tuple), isinstance(model, str)
    targets = read_targets([*train] if many else [], test)
    if not targets:
        raise ExperimentError("the data of an experiment hold no client with samples.", "data=[(x0, y0), …]")
    loss = choose_loss(targets, named)
    if many:
        fitted = [fit_target(one, loss, named, "the data") for one in train]
        train = DividedList(fitted, train.partition) if isinstance(train, DividedList) else fitted
        test = test if test is None or hasattr(test, "rows") else fit_target(test, loss, named, "the test data")
        targets = read_targets(train, test)
    classes = count_classes(targets, named) if loss is functional.cross_entropy else None
    if isinstance(model, str):
        first = to_tensors([*train, test][0] if many else test, "the data")[0]
        outputs = classes or max(1, targets[0][:1].numel())
        with in_turn():
            model = build(model, shape=tuple(first.shape[1:]), classes=outputs, seed=seed)
    if not isinstance(model, nn.Module):
        raise ExperimentError("data without a model cannot be learned from.", MODEL)
    return Problem(model=model, loss=loss, clients=train, test=test, classes=classes, name=given.get("name"))


def read_targets(clients: list[Any], test: Any) -> list[Tensor]:
    """The targets of clients and of the test set, of those that have samples and are in memory."""
    parts = [to_tensors(one, "the data") for one in clients]
    parts += [] if test is None or hasattr(test, "rows") else [to_tensors(test, "the test set")]
    return [widen_labels(one)[-1] for one in parts if len(one[-1])]


def divide(pool: Any, partition: Partitioner, of: int) -> DividedList:
    """Divide one pool of samples among clients."""
    if find_shift(partition) is not None:
        raise ExperimentError(
            "a feature shift changes the pictures of a data set by name, not data of your own.",
            'shift them yourself, and divide them by another partition: "iid:clients=10"',
        )
    target = to_tensors(pool, "the training data")[-1]
    are_classes = target.shape[1:].numel() == 1 and not target.is_floating_point()
    if not are_classes and not isinstance(partition, Iid | QuantitySkew):
        raise ExperimentError(
            f"targets without classes cannot be divided by class: {type(partition).__name__}.",
            WHOLE_FRACTIONS
            if target.shape[1:].numel() == 1 and are_whole_fractions(target)
            else 'partition="iid:clients=10" or "quantity-skew:…"',
        )
    # a copy: a partition of one's own may write into it
    labels = target.to(torch.int64, copy=True).flatten().numpy() if are_classes else np.zeros(len(target), np.int64)
    found = divide_labels(partition, labels, of)
    parts = (take_rows(pool, np.array(found[client]), "the training data") for client in range(found.clients))
    return DividedList(parts, found)


def choose_loss(targets: list[Tensor], named: bool) -> Any:
    """The loss that targets ask for; to a module of one's own, whole numbers in several columns may be classes."""
    sets = all(one.dim() == 2 and one.shape[1] > 1 and bool(((one == 0) | (one == 1)).all()) for one in targets)
    fractions = any(one.is_floating_point() for one in targets)
    if sets and (named or fractions or any(one.dtype == torch.bool for one in targets)):
        return functional.binary_cross_entropy_with_logits
    return functional.mse_loss if fractions else functional.cross_entropy


def are_classes_in_fractions(problem: Problem) -> bool:
    """Whether the targets of a squared error are few numbers, and all are whole, as where classes are written 1.0."""
    if problem.loss is not functional.mse_loss or not isinstance(problem.clients, list):
        return False
    values = torch.cat([one.flatten().unique() for one in read_targets(problem.clients, problem.test)]).unique()
    return len(values) <= FEW and bool((values == values.round()).all())


def fit_target(data: Any, loss: Any, named: bool, whose: str) -> Any:
    """Data with their target as the loss takes it: classes are whole numbers, all else are fractions.

    To the outputs of a network that is built for them, classes are flat and fractions have columns.
    """
    *inputs, target = to_tensors(data, whose)
    if not inputs:
        raise DataError(
            f"{whose} hold no target beside the inputs.",
            'data=[(x0, y0), …] of each client, or one pool (x, y) and partition="iid:clients=10"',
        )
    fitting, are_classes = target, loss is functional.cross_entropy
    if are_classes and target.dtype == torch.bool:
        fitting = target.to(torch.int64)
    elif not are_classes and not target.is_floating_point():
        fitting = target.to(torch.float32)
    if named and are_classes and target.dim() == 2 and target.shape[1] == 1:
        fitting = fitting.squeeze(1)
    elif named and not are_classes and target.dim() == 1:
        fitting = fitting.unsqueeze(1)
    if fitting is target:
        return data
    names = names_of(data, whose)
    return (*inputs, fitting) if names is None else dict(zip(names, (*inputs, fitting), strict=True))


def count_classes(targets: list[Tensor], named: bool) -> int:
    """Count the classes of targets that are whole numbers; refuse amounts, which would ask for an output each."""
    low = min(int(torch.where(one == IGNORED, 0, one).min()) for one in targets)
    high, labels = max(int(one.max()) for one in targets), sum(one.numel() for one in targets)
    if high == IGNORED:
        raise DataError(f"all targets are {IGNORED}, which no loss of classes trains on.", "number the classes from 0")
    if low < 0 or (named and high >= labels):
        why = "classes count from 0" if low < 0 else f"{labels} samples are too few for so many classes"
        raise DataError(
            f"the targets are whole numbers from {low} to {high}, but {why}.",
            'number the classes from 0; for a regression give fractions: y.float(), frame.astype({"price": float})',
        )
    return high + 1
