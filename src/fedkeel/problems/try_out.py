"""Put samples through a network and its loss before training begins, and refuse what does not fit together."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree

from fedkeel.data.clients import Sample, TensorClients, in_memory, is_at_hand
from fedkeel.errors import DataError, FedkeelError, ModelError
from fedkeel.problems.class_labels import WHOLE_FRACTIONS, are_whole_fractions, check_labels_that_fit, unwatch
from fedkeel.problems.gradients import REENTRANT
from fedkeel.problems.module_state import clone_tensors, copy_trained
from fedkeel.problems.network_calls import check_calls
from fedkeel.problems.own_samples import check_repeated, read_rows
from fedkeel.problems.predictions import class_scores
from fedkeel.problems.separability import SHOWN, train_but_norms
from fedkeel.problems.whole_metrics import check_label_sets, check_metrics
from fedkeel.randomness import list_gpus, seed_torch
from fedkeel.text import in_one_line, plural

if TYPE_CHECKING:
    from fedkeel.problems.task import Task

log = logging.getLogger("fedkeel")

FAILURES = (RuntimeError, ValueError, LookupError, TypeError, AttributeError, AssertionError)
"""What PyTorch and code of one's own raise about samples that they do not take."""


@torch.no_grad()
def try_out(task: Task) -> None:
    """Put a sample of each form through the model and the loss, and refuse what does not fit before training begins."""
    check_repeated(task)
    check_broadcast(task)
    model = task.initial.named() if task.module is None else copy_trained(task.module).eval()
    tensors: Sample | None = None
    for whose, sample in list_forms(task):
        tensors = try_sample(task, model, whose, sample)
    if tensors is not None:
        check_constant(task, model, tensors)
        warn_of_axis(task, model, tensors)
        check_trained(task, model, tensors)
        if isinstance(model, nn.Module):
            train_but_norms(model)
            check_trained(task, model, tensors)
    check_calls(task)
    check_metrics(task)
    check_label_sets(task)


def try_sample(task: Task, model: nn.Module | Mapping[str, Tensor], whose: str, sample: Sample) -> Sample:
    """Put a raw sample through the model and the loss; return it prepared, or refuse it."""
    tensors = task.prepare(sample)
    try:
        with torch.random.fork_rng(devices=[]):
            task.losses(model, clone_tensors(tensors), task.predict(model, tensors))
    except FedkeelError:
        raise
    except FAILURES as error:
        shapes = ", ".join(f"{tuple(part.shape[1:])} of {part.dtype}".replace("torch.", "") for part in tensors)
        said = f"KeyError: {error}" if isinstance(error, KeyError) else in_one_line(error)
        raise ModelError(
            f"the model or the loss does not take a sample of {whose} ({shapes}): {said}",
            "a module is moved to the device, layers in a plain list are not (nn.ModuleList); in a function "
            "of your own, write weights.to(output)"
            if "same device" in str(error)
            else WHOLE_FRACTIONS
            if takes_classes(task, model, tensors)
            else "do shapes and types of data, model and targets fit together? Classes are whole numbers from 0",
        ) from error
    return tensors


def takes_classes(task: Task, model: nn.Module | Mapping[str, Tensor], tensors: Sample) -> bool:
    """Whether the loss takes classes in place of targets that are fractions by their type alone."""
    *inputs, target = tensors
    if not inputs or not are_whole_fractions(target):
        return False
    classes = torch.zeros_like(target.squeeze(1) if target.shape[1:] == (1,) else target, dtype=torch.int64)
    try:
        with torch.random.fork_rng(devices=[]):
            task.losses(model, (*inputs, classes), task.predict(model, tensors))
    except FAILURES:
        return False
    return True


@contextmanager
def explain_by_rows(task: Task, clients: Sequence[int] | None = None, round: int | None = None) -> Iterator[None]:
    """Where clients fail in a round, or before the first, refuse the first of them whose rows do not fit.

    Else the error stays as it is. Rows that are at hand were looked at before training began. Without `clients` they
    are those on which a loss is tried.
    """
    try:
        yield
    except (DataError, *FAILURES) as error:
        if not is_of_device(error) and not is_at_hand(task.clients):
            when = "" if round is None else f" in round {round + 1}"
            for client in np.flatnonzero(task.clients.sizes)[:SHOWN].tolist() if clients is None else clients:
                refuse_unfit_rows(task, client, f"client {client}{when}")
        raise


def is_of_device(error: BaseException) -> bool:
    """Whether memory does not suffice, or a GPU has stopped, which then takes nothing more."""
    return isinstance(error, torch.OutOfMemoryError) or "CUDA" in str(error)


@torch.no_grad()
def refuse_unfit_rows(task: Task, client: int, whose: str) -> None:
    """Read a client's rows again; refuse labels that the loss does not take, and samples that the model does not."""
    first, clients = np.zeros(2 if task.needs_pairs else 1, np.int64), unwatch(task.clients)
    try:
        given = [(clients.rows(client, at), at) for at in (first, np.arange(clients.sizes[client]))]
    except Exception:  # the error tells it already
        return
    sample, rows = (read_rows(part, at, whose) for part, at in given)
    check_labels_that_fit(task, {f"the data of {whose}": TensorClients([rows])})
    try_sample(task, task.initial.named() if task.module is None else copy_trained(task.module).eval(), whose, sample)


def warn_of_axis(task: Task, model: nn.Module | Mapping[str, Tensor], tensors: Sample) -> None:
    """Say that the loss takes the classes from the last axis, where the accuracy takes them from the second."""
    if "accuracy" not in task.metrics and takes_last_axis(task, model, tensors):
        log.warning(
            "the loss takes the classes from the last axis of outputs %s, and the accuracy from the second, since both "
            'fit: put them on the second, or give metrics={"accuracy": function}',
            tuple(task.predict(model, tensors).shape),
        )


@torch.no_grad()
def takes_last_axis(task: Task, model: nn.Module | Mapping[str, Tensor], tensors: Sample) -> bool:
    """Whether the loss takes the classes from the last axis, where the second fits, too. A number added to all scores
    of one target changes no loss of classes: so it shows where they lie."""
    target, there = tensors[-1], tensors[-1].shape
    if task.module is None or target.dim() < 2:
        return False
    draw, differs = torch.Generator().manual_seed(0), False
    with torch.random.fork_rng(devices=list_gpus(task.device)):
        output = task.predict(model, tensors)
        if class_scores(output, target) is None or output.shape[:-1] != there or output.shape[2:] != there[1:]:
            return False
        for _ in range(3):  # one may change a loss by chance as little as rounding does
            added = 3 * torch.randn(there, generator=draw).to(output)
            both = (output, output + added.unsqueeze(1), output + added.unsqueeze(-1))
            plain, second, last = (task.losses(model, tensors, one).mean() for one in both)
            if not torch.isclose(last, plain, rtol=1e-4):
                return False
            differs |= not bool(torch.isclose(second, plain, rtol=1e-4))
    return differs


def check_constant(task: Task, model: nn.Module | Mapping[str, Tensor], tensors: Sample) -> None:
    """Refuse a loss, or a metric, that gives another value when it is called again, by what it has counted, or drawn
    with numpy; and a loss that writes into its targets."""
    with torch.random.fork_rng(devices=list_gpus(task.device)):
        output = task.predict(model, tensors)

        def call(function: Callable[..., Any], given: Sample = tensors) -> Tensor:
            seed_torch(0, task.device)
            return torch.as_tensor(task.apply(function, model, given, clone_tensors(output)))

        given = tuple(part.clone() for part in tensors)
        call(task.own_loss, given)
        if not all(are_same(one, other) for one, other in zip(given, tensors, strict=True)):
            raise ModelError("the loss writes into the samples that it is given.", "write target - 1, not target -= 1")
        changing = [] if are_same(*(call(task.own_loss) for _ in range(3))) else ["loss"]
        for name, metric in task.metrics.items():
            with suppress(Exception):  # one sample may be too few for it
                changing += [] if are_same(*(call(metric) for _ in range(3))) else [f"metric {name!r}"]
    if changing:
        raise ModelError(
            f"the {changing[0]} gives another value for the same sample when it is called again: no run could be "
            "repeated.",
            "keep what it counts in a rule; draw random numbers with torch, which fedkeel seeds in every step",
        )


def are_same(first: Tensor, *others: Tensor) -> bool:
    """Whether values are the same, but that a GPU may add in another order."""
    return all(torch.allclose(first, other, rtol=1e-5, atol=1e-7, equal_nan=True) for other in others)


@torch.enable_grad()
def check_trained(task: Task, model: nn.Module | Mapping[str, Tensor], tensors: Sample) -> None:
    """Refuse parameters that the loss depends on and that nobody would train: its own, or those of another network; and
    a loss that asks its arguments whether they require gradients, which those of stacked clients cannot say."""
    if not isinstance(model, nn.Module):
        model = {name: weight.detach().requires_grad_() for name, weight in model.items()}
    trained = [*(model.parameters() if isinstance(model, nn.Module) else model.values()), *tensors]
    try:
        with torch.random.fork_rng(devices=list_gpus(task.device)), warnings.catch_warnings():
            warnings.filterwarnings("error", "None of the inputs have requires_grad")  # of a re-entrant checkpoint
            output, again = (task.predict(model, tensors) for _ in range(2))
            detached = model if isinstance(model, nn.Module) else {n: w.detach() for n, w in model.items()}
            asked = [(model, output), (model, again), (detached, _pytree.tree_map(detach, output))]
            results = []
            for one, given in asked:
                seed_torch(0, task.device)
                results.append(task.losses(one, tensors, given))
    except UserWarning:
        raise ModelError(*REENTRANT) from None
    except Exception:  # of a loss or a network that takes no single sample: training says what is wrong
        return
    if not are_same(results[0].detach(), results[2].detach()):
        raise ModelError(
            "the loss depends on whether its arguments require gradients, which is not known of stacked clients.",
            "ask torch.is_grad_enabled(), not output.requires_grad",
        )
    first, second = map(list_leaves, results[:2])  # what is made in a call is another leaf in the next
    lasting = [leaf for leaf in first if any(leaf is other for other in second)]
    if foreign := [leaf for leaf in lasting if all(leaf is not known for known in trained)]:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in foreign[:4])
        raise ModelError(
            f"the network or the loss reads {plural(len(foreign), 'parameter')} that would not be trained ({shapes}).",
            "put them into the network, modules of a list into nn.ModuleList, a penalty on weights into a rule; what "
            "is not to be trained needs requires_grad False, points where slopes are taken x.detach().requires_grad_()",
        )


def detach(part: Any) -> Any:
    return part.detach() if isinstance(part, Tensor) else part


def list_leaves(result: Tensor) -> list[Tensor]:
    """The tensors that a result's gradient would be added to."""
    found, seen, left = [], set(), [result.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            found.append(leaf)
        left += [following for following, _ in node.next_functions]
    return found


def check_broadcast(task: Task) -> None:
    """Refuse outputs `[n, 1]` with targets `[n]`, or the reverse, where the loss would compare each with each.

    A loss that brings them to one shape itself gives the same without that axis.
    """
    client = int(task.clients.sizes.argmax())
    if task.module is None or task.clients.sizes[client] < 2:
        return
    try:
        tensors = task.prepare(task.clients.rows(client, np.array([0, task.clients.sizes[client] - 1])))
        model, target = copy_trained(task.module).eval(), tensors[-1]
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):  # PyTorch warns of some
            output = task.predict(model, tensors)
            if not isinstance(output, Tensor) or len(tensors) < 2 or {output.dim(), target.dim()} != {1, 2}:
                return
            found = task.losses(model, clone_tensors(tensors), output).mean()
            target_alone, output_alone = (part.reshape(2, -1)[:, 0] for part in (target, output))
            try:
                alike = task.losses(model, (*tensors[:-1], target_alone.clone()), output_alone).mean()
            except Exception:  # the loss takes the mean over an axis that is gone; one sample meets itself alone
                each = [tuple(part[i : i + 1] for part in (*tensors, output)) for i in range(2)]
                alike = torch.stack([task.losses(model, one[:-1], one[-1]).mean() for one in each]).mean()
    except Exception:  # a loss may refuse other shapes; try_out says what is wrong with a network
        return
    shapes = [str(list(part.shape)).replace("2", "n", 1) for part in (output, target)]
    if output.numel() == target.numel() == 2 and not torch.allclose(found, alike):
        raise ModelError(
            f"the network gives {shapes[0]} and targets are {shapes[1]}: the loss compares all with all.",
            "give targets a column, y[:, None], or let the network or the loss take that axis away",
        )


def list_forms(task: Task) -> Iterator[tuple[str, Sample]]:
    """Yield a sample of the largest client, and of each other part in memory whose samples have another form."""
    seen = set()
    sizes, first = task.clients.sizes, np.zeros(2 if task.needs_pairs else 1, np.int64)
    others = np.flatnonzero(sizes).tolist() if in_memory(task.clients) else []
    parts = [(f"client {c}", task.clients, c) for c in dict.fromkeys([int(sizes.argmax()), *others])]
    if task.test is not None and in_memory(task.test):
        parts.append(("the test set", task.test, 0))
    for whose, data, client in parts:
        if data.sizes[client]:  # that no client has data is refused elsewhere
            sample = data.rows(client, first)
            form = tuple((part.shape[1:], part.dtype) for part in sample)
            if form not in seen:
                seen.add(form)
                yield whose, sample
