"""Whether losses and metrics take the samples at all, and whether they are means over them.

A loss that is not a mean cannot be taken of a padded batch, and a metric that gives one number cannot be added up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from enum import Enum
from types import NoneType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree

from fedkeel.data.clients import ClientData, HeldOut, Sample, TensorClients, in_memory, join_rows, to_tensors
from fedkeel.errors import FedkeelError
from fedkeel.kernels.keyed_dropout import KeyedDropout
from fedkeel.problems.module_state import copy_trained, is_plain
from fedkeel.randomness import list_gpus

if TYPE_CHECKING:
    from fedkeel.problems.task import Task

SHOWN = 8  # clients, and samples of each, on which a loss is tried
RARE = 64  # labels of which it is tried on a sample, too
LOOKED_AT = 2_000_000  # numbers of a client's targets, at most, among which they are looked for
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3}  # of a network's outputs on a CPU, at most
KEYS = np.array([0x9E3779B97F4A7C15, 0xD1B54A32D192ED03], dtype=np.uint64)  # of samples, with which `prepare` is tried
LOW = 0.05  # the same for bfloat16, and for TF32, in which GPUs convolve float32
PLAIN = (int, float, complex, str, bytes, Enum, torch.Size, torch.dtype, torch.device, NoneType)
"""What an output may hold besides tensors: no numbers of samples."""


@torch.no_grad()
def loss_is_a_mean(task: Task) -> bool:
    """Whether the loss of some samples of several clients is the mean of the losses of each sample.

    With class weights, or where samples are left out, it is not: the rarest labels are among those samples.
    """
    tensors = draw_samples(task)
    with torch.random.fork_rng(devices=[]):
        for model in list_models(task):
            if isinstance(model, nn.Module):
                model.eval()
            output = task.predict(model, tensors)
            whole = task.losses(model, tensors, output)
            try:
                shared = frozenset[int]()
                if isinstance(model, nn.Module) and not isinstance(output, Tensor):
                    shared = find_shared_parts(task, model, tensors)
                each = [task.losses(model, *one) for one in split_samples(tensors, output, shared)]
            except FedkeelError:
                raise
            except Exception:  # one sample alone may be none of its own
                return False
            if not (is_mean_of(whole, each) if whole.dim() == 0 else are_those_of(whole, each)):
                return False
            if whole.dim() == 0 and not is_mean_far_off(task, model, tensors, output):
                return False
    return True


def is_mean_far_off(task: Task, model: nn.Module | dict[str, Tensor], tensors: Sample, output: Any) -> bool:
    """Whether a loss is a mean over samples whose outputs are as unlike as those of a trained network.

    All losses of a new network are nearly the same, so that their weighted mean is nearly their mean.
    """
    if not isinstance(output, Tensor) or not output.is_floating_point() or output.shape[:1] != tensors[0].shape[:1]:
        return True
    draw, count = torch.Generator().manual_seed(0), len(output)
    lengths = torch.arange(count).remainder(5).reshape(-1, *(1,) * (output.dim() - 1))
    unlike = output + (lengths * torch.randn(output.shape, generator=draw)).to(output)
    try:
        whole = task.losses(model, tensors, unlike)
        each = [task.losses(model, *one) for one in split_samples(tensors, unlike, ())]
    except Exception:  # it may take chances alone
        return True
    return not all(bool(one.isfinite().all()) for one in (whole, *each)) or is_mean_of(whole, each)


def draw_samples(task: Task) -> Sample:
    """Some samples of several clients, and one for each of the rarest labels."""
    there = np.flatnonzero(task.clients.sizes)[:SHOWN]
    some = [task.prepare(task.clients.rows(int(c), spread(int(task.clients.sizes[c])))) for c in there]
    rare = [task.prepare(sample) for sample in find_rare_samples(task.clients)]
    some += [one for one in rare if [t.shape[1:] for t in one] == [t.shape[1:] for t in some[0]]]
    return tuple(join_rows(column) for column in zip(*some, strict=True))


@torch.no_grad()
def loss_is_one_number(task: Task) -> bool:
    """Whether the loss of two samples is one number and not two."""
    return bool(task.clients.sizes.max() > 0) and task.losses(*predict_copies(task, 2)).dim() == 0


def predict_copies(task: Task, count: int) -> tuple[nn.Module | dict[str, Tensor], Sample, Any]:
    """The model, so many times the first sample of the client that has most, and what the model gives for them."""
    tensors = task.prepare(task.clients.rows(int(task.clients.sizes.argmax()), np.zeros(count, np.int64)))
    model = dict(task.initial.named()) if task.module is None else copy_trained(task.module).eval()
    with torch.random.fork_rng(devices=[]):
        return model, tensors, task.predict(model, tensors)


def spread(size: int) -> np.ndarray:
    """The places of some samples from all over a client's data, which may be sorted by class."""
    return np.unique(np.linspace(0, size - 1, min(SHOWN, size)).round().astype(np.int64))


def find_rare_samples(data: ClientData) -> Iterator[Sample]:
    """Yield a sample for each of the rarest labels, where labels are whole numbers in memory."""
    while isinstance(data, HeldOut):
        data = data.clients
    if not isinstance(data, TensorClients) or not in_memory(data):
        return
    found: dict[int, tuple[int, int, int]] = {}  # how often there is a label; a client and a row that have it
    for client in np.flatnonzero(data.sizes):
        target = to_tensors(data.clients[int(client)], f"client {client}")[-1]
        if target.is_floating_point() or target.is_complex():
            return
        step, width = -(-target.numel() // LOOKED_AT) or 1, target.numel() // len(target) or 1
        labels, firsts, counts = np.unique(target[::step].cpu().numpy(), return_index=True, return_counts=True)
        for label, first, count in zip(labels.tolist(), firsts.tolist(), counts.tolist(), strict=True):
            known, owner, row = found.get(label, (0, int(client), step * (first // width)))
            found[label] = (known + count, owner, row)
    for _, owner, row in sorted(found.values())[:RARE]:
        yield data.rows(owner, np.array([row]))


@torch.no_grad()
def list_models(task: Task) -> Iterator[nn.Module | dict[str, Tensor]]:
    """Yield the initial model, and one with other weights: a head or a gate of zeros would hide a lot."""
    draw = torch.Generator().manual_seed(0)
    for size in (0.0, 0.1):
        model = {n: w.clone() for n, w in task.initial.items()} if task.module is None else copy_trained(task.module)
        weights = model if isinstance(model, dict) else dict(model.named_parameters())
        for name in task.initial if size else ():  # frozen weights are not copied
            weights[name] += size * torch.randn(weights[name].shape, generator=draw).to(weights[name])
        yield model


@torch.no_grad()
def samples_stay_apart(task: Task) -> bool:
    """Whether the output for a sample does not depend on what else is in its batch, as it does with x - x.mean(0).

    Nor may what is dropped, as it does where samples are not the first axis. Batch norms do not count: those of
    stacked clients leave out what fills a batch up.
    """
    client = int(task.clients.sizes.argmax())
    places = spread(int(task.clients.sizes[client]))
    if task.module is None or len(places) < 2:
        return True
    if any(getattr(part, "scale_grad_by_freq", False) for part in task.module.modules()):
        return False  # only gradients show it
    tensors = task.prepare(task.clients.rows(client, places))
    with torch.random.fork_rng(devices=[]):
        return all(
            stay_apart(task, model, tensors, turn)
            for model in list_models(task)
            for turn in (train_but_norms, nn.Module.eval)
            if isinstance(model, nn.Module)
        )


def stay_apart(task: Task, model: nn.Module, tensors: Sample, turn: Callable[[nn.Module], object]) -> bool:
    """Whether the model's outputs for some samples are those of half of them, and of one."""
    turn(model)

    def predict(count: int) -> list[Any]:
        key = torch.zeros((), dtype=torch.int64, device=task.device)
        with KeyedDropout(key) if task.stochastic else nullcontext():
            return _pytree.tree_leaves(task.predict(model, tuple(t[:count] for t in tensors)))

    exact = task.device.type == "cpu" or task.compute == torch.float64
    tolerance, whole = ROUNDING.get(task.compute, LOW) if exact else LOW, len(tensors[0])
    try:
        outputs = predict(whole)
        return all(
            is_of_samples(one, other, count, tolerance)
            for count in {whole // 2, 1}
            for one, other in zip(outputs, predict(count), strict=True)
        )
    except Exception:  # it does not take so few samples
        return False


def is_of_samples(one: Any, other: Any, count: int, tolerance: float) -> bool:
    """Whether a part of an output for all samples agrees with that for the first ones.

    A part without an axis of samples, such as a learned variance, must be the same: a mean over samples may be near.
    """
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return isinstance(one, PLAIN) and bool(one == other)
    if one.shape == other.shape:
        return are_near(one, other, 0.0)
    return one.dim() == other.dim() and are_near(one[:count], other, tolerance)


@torch.no_grad()
def find_shared_outputs(task: Task) -> frozenset[int]:
    """Find the parts of an output in training that have no axis of samples; one of their own may be as long."""
    if task.module is None or task.clients.sizes.max() < 2:
        return frozenset()
    model = copy_trained(task.module)
    train_but_norms(model)
    first = task.batch(int(task.clients.sizes.argmax()), np.zeros(1, np.int64)).tensors
    return find_shared_parts(task, model, first)


@torch.no_grad()
def find_shared_parts(task: Task, model: nn.Module, tensors: Sample) -> frozenset[int]:
    """Find the parts of an output that are as long for the first sample alone as for it twice."""
    with torch.random.fork_rng(devices=list_gpus(task.device)):
        alone, pair = (
            _pytree.tree_leaves(task.predict(model, tuple(t[:1].repeat_interleave(count, 0) for t in tensors)))
            for count in (1, 2)
        )
    both = enumerate(zip(alone, pair, strict=True))
    return frozenset(i for i, (one, two) in both if isinstance(one, Tensor) and one.shape == two.shape)


def train_but_norms(model: nn.Module) -> None:
    """Have the model compute as in training, but for PyTorch's batch norms, which take no batch of one."""
    model.train()
    for part in model.modules():
        if isinstance(part, _BatchNorm) and is_plain(part):
            part.eval()


def are_near(one: Tensor, other: Tensor, tolerance: float) -> bool:
    if one.is_complex() and other.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    if not one.is_floating_point():
        return torch.equal(one, other)
    one, other = one.nan_to_num(), other.nan_to_num()
    return one.shape == other.shape and bool((one - other).norm() <= tolerance * one.norm())


@torch.no_grad()
def find_whole_metrics(task: Task) -> frozenset[str]:
    """Find the metrics that give one number for two samples, be it in an array."""
    asked = {name: metric for name, metric in task.metrics.items() if not getattr(metric, "whole", False)}
    found = task.metrics.keys() - asked.keys()
    if not asked or task.clients.sizes.max() == 0:
        return frozenset(found)
    model, tensors, output = predict_copies(task, 2)

    def gives_one_number(metric: Callable[..., Any]) -> bool:
        try:
            return torch.as_tensor(task.apply(metric, model, tensors, output)).numel() == 1
        except Exception:  # two samples may be too few for it
            return True

    return frozenset(found | {name for name, metric in asked.items() if gives_one_number(metric)})


def split_samples(tensors: Sample, output: Any, shared: Collection[int]) -> Iterator[tuple[Sample, Any]]:
    """Yield the samples and their outputs one by one; what has no axis of samples, or is `shared`, belongs to each."""
    parts, form = _pytree.tree_flatten(output)
    count = len(tensors[0])
    mine = [i not in shared and isinstance(one, Tensor) and one.shape[:1] == (count,) for i, one in enumerate(parts)]
    for i in range(count):
        here = [part[i : i + 1] if own else part for part, own in zip(parts, mine, strict=True)]
        yield tuple(t[i : i + 1] for t in tensors), _pytree.tree_unflatten(here, form)


def are_those_of(whole: Tensor, each: list[Tensor]) -> bool:
    """Whether the losses of some samples are those of each alone, but for rounding."""
    alone = torch.cat([one.to(torch.float64).reshape(-1) for one in each])
    found = whole.to(torch.float64).reshape(-1)
    return found.shape == alone.shape and torch.allclose(found, alone, rtol=1e-4, atol=1e-6)


def is_mean_of(whole: Tensor, each: list[Tensor]) -> bool:
    """Whether `whole` is the mean of `each`, but for rounding."""
    mean = torch.stack([one.to(torch.float64).mean() for one in each]).mean()
    return torch.allclose(whole.to(torch.float64).mean(), mean, rtol=1e-4, atol=1e-6)
