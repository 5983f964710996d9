"""Refuse data that no model can learn from: inputs that are not finite, labels outside the model's classes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree

from fedkeel.core.trees import all_finite
from fedkeel.data.clients import ClientData, Rows, in_memory
from fedkeel.data.tables import warn_of_untrained
from fedkeel.errors import DataError, ExperimentError, RunError
from fedkeel.problems.class_labels import check_labels, has_label, list_untrained
from fedkeel.problems.module_state import copy_whole

if TYPE_CHECKING:
    from fedkeel.core.rule import State
    from fedkeel.problems.problem import Problem
    from fedkeel.problems.task import Task

TRIED = 8  # samples with such targets on which a loss is tried
BATCH = 256  # samples with such inputs that a network is given at once
CLEAN = "leave such samples out, or fill what is missing"


def check_data(task: Task, *, begun: bool = False) -> None:
    """Refuse an empty test set, inputs and test targets that are not finite, and labels that the loss does not take.

    Targets to train on may have gaps, and a run that has `begun` leaves clients out, as it did. A warning names the
    classes that are tested and that no client trains on, but for the one that the loss ignores. Only data in memory are
    checked: others are read when their turn comes.
    """
    tests = {"the test set": task.test, "the clients' test sets": task.tests}
    parts = {"the training data": task.clients} | {name: data for name, data in tests.items() if data is not None}
    if task.test is not None and in_memory(task.test) and not task.test.sizes.any():
        raise DataError("the test set has no samples.", "give it some, or leave test= out")
    whole = task.problem.data  # with the validation share
    for name, data in (parts | {"the training data": whole}).items():
        is_test = name in tests
        for kind, find in (("inputs", find_wrong_input), ("targets", find_wrong_target)):
            looked_at = is_test or (kind == "inputs" and not begun)
            if looked_at and (wrong := find_unsound(data, partial(find, task))) is not None:
                raise DataError(f"the {kind} of {name} hold numbers that are not finite ({wrong}).", CLEAN)
    classes = check_labels(task, parts)
    if classes is not None and task.test is not None:
        untrained = list_untrained(task.clients, task.test, classes)
        warn_of_untrained([label for label in untrained if label != task.ignored])


def check_pairs(task: Task, clients: Sequence[int], batch_size: int) -> None:
    """Refuse clients that would train on one sample at a time, if the model compares samples with each other."""
    sizes = task.clients.sizes
    single = [client for client in clients if sizes[client] == 1]
    if not (single or batch_size == 1) or not task.needs_pairs:
        return
    norms, other = "too little for the model's batch norms, which compare samples", "a model with group norms"
    if batch_size == 1:
        raise ExperimentError(f"a batch_size of 1 is {norms}.", f"batch_size = 2 or more, or {other}")
    who = f"client {single[0]} has" if len(single) == 1 else f"{len(single)} clients (the first: {single[0]}) have"
    raise ExperimentError(
        f"{who} one sample to train on, {norms}.",
        "leave such clients out (partitions have min_size), set less of their data aside (validation, "
        f"evaluation.share), or take {other}",
    )


def find_unsound(data: ClientData, find: Callable[[ClientData, int, int], int | None]) -> str | None:
    """Say which row is the first to hold a number that is not finite; None where none in memory does."""
    if not in_memory(data):
        return None
    for client, size in enumerate(data.sizes.tolist()):
        if (row := find(data, client, size)) is not None:
            return f"row {row_as_given(data, client, row)}" + f" of client {client}" * (len(data.sizes) > 1)
    return None


def row_as_given(data: ClientData, client: int, row: int) -> int:
    """The number of a client's row before a share of the rows was set aside."""
    left = getattr(getattr(data, "clients", None), "left", None)
    return row if left is None else int(left[client][row])


@torch.no_grad()
def find_wrong_input(task: Task, data: ClientData, client: int, size: int) -> int | None:
    """The first row whose input is not finite, unless `prepare` and the network make finite outputs of it, or a loss
    without a module takes it."""
    parts = data.rows(client, np.arange(size))
    wrong = np.unique(np.concatenate([find_unsound_rows(part) for part in parts[:-1] or parts]))
    if not len(wrong):
        return None
    with torch.random.fork_rng(devices=[]):
        model = None if task.module is None else copy_whole(task.module).eval()
        for start in range(0, len(wrong), BATCH):
            rows = wrong[start : start + BATCH]
            try:
                tensors = task.prepare(data.rows(client, rows))
                if model is None:
                    output: Any = task.losses(task.initial.named(), tensors, None)
                else:
                    output = task.predict(model, tensors)
            except Exception:
                return int(rows[0])
            for part in _pytree.tree_leaves(output):
                if isinstance(part, Tensor) and len(found := find_unsound_rows(part)):
                    return int(rows[found[0] if part.shape[:1] == rows.shape else 0])
    return None


def find_unsound_rows(part: Tensor) -> Rows:
    """The rows of a tensor that hold a number that is not finite."""
    if not part.is_floating_point():
        return np.empty(0, np.int64)
    sound = torch.isfinite(part)
    return np.flatnonzero(~(sound.flatten(1).all(1) if sound.dim() > 1 else sound).cpu().numpy())


@torch.no_grad()
def find_wrong_target(task: Task, data: ClientData, client: int, size: int) -> int | None:
    """The first row whose target is not finite, unless the loss leaves out those that are not."""
    *inputs, target = data.rows(client, np.arange(size))
    wrong = find_unsound_rows(target)
    if task.module is None or not inputs or not len(wrong):
        return None
    tensors = task.prepare(data.rows(client, wrong[:TRIED]))
    with torch.random.fork_rng(devices=[]):
        model = copy_whole(task.module).eval()
        losses = task.losses(model, tensors, task.predict(model, tensors))
    return None if bool(torch.isfinite(losses).all()) else int(wrong[0])


class DivergedError(RunError):
    """A loss, a model or the server's memory is not finite, and the run cannot go on."""


def explain_by_data(task: Task, clients: Sequence[int]) -> str:
    """Say whose data explain that clients diverged, to be put behind the error; empty where none do."""
    for kind, find in (("input data", find_wrong_input), ("targets", find_wrong_target)):
        for client in clients:
            if find(task, task.clients, client, int(task.clients.sizes[client])) is not None:
                return f": the {kind} of client {client} hold NaN or infinite numbers"
    return ""


def explain_divergence(task: Task, clients: Sequence[int], trained: int, round: int) -> DivergedError:
    """The error of a run that cannot go on because these clients diverged."""
    among = f" ({len(clients)} of {trained} clients)" if trained > 1 else ""
    why = explain_by_data(task, clients)
    return DivergedError(
        f"the loss or the model of client {clients[0]} is not finite in round {round}{among}{why}.",
        CLEAN if why else "lower lr or set clip; the rounds before this one are kept",
    )


def explain_server_divergence(server: State, round: int) -> DivergedError:
    """The error of a run whose server is not finite after a round, though the clients are."""
    what = "model is" if not all_finite(server["params"]) else "memory is"
    return DivergedError(
        f"the server's {what} not finite after round {round}, though the clients' reports are.",
        "look at the weights of the clients, the server's rules and server_lr; the rounds before are kept",
    )


def find_ignored(problem: Problem) -> tuple[Problem, int | None]:
    """The label that the loss ignores, where training data in memory have it, and the problem whose loss of a batch is
    the mean over the other samples."""
    loss = problem.loss
    if problem.model is None or not has_ignored(loss, [problem.data]):
        return problem, None
    return replace(problem, loss=getattr(loss, "batch_mean", loss)), ignored_by(loss)


def ignored_by(loss: Any) -> int:
    """The label that a loss of classes ignores; a function's that does not say so is -100, as in PyTorch."""
    label = getattr(loss, "ignore_index", getattr(loss, "keywords", {}).get("ignore_index", -100))
    try:
        return operator.index(label)  # numpy's whole numbers, too, which PyTorch takes
    except TypeError:
        return -100


def ignored_class(loss: Any) -> int | None:
    """That label where it may be a class of the network's, such as the padding of texts."""
    label = ignored_by(loss)
    return label if label >= 0 else None


def has_ignored(loss: Any, parts: Iterable[ClientData | None]) -> bool:
    """Whether a target of data in memory is the label that the loss ignores."""
    return any(has_label(data, ignored_by(loss)) for data in parts if data is not None)


def leave_out(loss: Callable[..., Any], label: int, output: Any, target: Tensor) -> Any:
    """The loss of a batch; 0, not 0 / 0, where it ignores every target."""
    losses = loss(output, target)
    if not isinstance(losses, Tensor):
        return losses
    return torch.where((target == label).all() & losses.isnan(), torch.zeros_like(losses), losses)
