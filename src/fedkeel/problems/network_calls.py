"""What a network does to itself when it is called: refused where training would lose it, or mix it up."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree

from fedkeel.data.clients import Sample
from fedkeel.errors import ModelError
from fedkeel.problems.module_state import clone_tensors, copy_trained
from fedkeel.problems.separability import are_near, train_but_norms
from fedkeel.randomness import list_gpus, seed_torch

if TYPE_CHECKING:
    from fedkeel.problems.task import Task

REPEATED, ON_GPU = 1e-6, 1e-4  # by how much outputs may differ, of their length
DISTURBED = 1e-3  # by how much, of themselves: a copy that follows its original would else hide that it is written


@torch.no_grad()
def check_calls(task: Task) -> None:
    """Refuse a network that makes or replaces parts of itself, writes into its weights, or gives another output when it
    is called again."""
    client = int(task.clients.sizes.argmax())
    if task.module is None or task.clients.sizes[client] == 0:
        return
    network = copy_trained(task.module)
    draw = torch.Generator().manual_seed(0)
    for weight in (one for one in network.parameters() if one.requires_grad):
        weight.mul_(1 + DISTURBED * torch.rand(weight.shape, generator=draw).to(weight))
    parameters, buffers = dict(network.named_parameters()), dict(network.named_buffers())
    lasting = set(network.state_dict())
    # A detached weight holds its memory: what is put in the place of a weight could else lie where the weight lay.
    before = {name: (weight.detach(), weight._version, sum_up(weight)) for name, weight in parameters.items()}
    values = {name: buffer.clone() for name, buffer in buffers.items()}
    repeats = []
    for turn in (nn.Module.eval, train_but_norms):
        turn(network)
        repeats.append(repeats_outputs(task, network, client, values))
        check_weights(parameters, before)
    check_parts(parameters, dict(network.named_parameters()))
    check_parts(buffers, dict(network.named_buffers()))
    for name, buffer in network.named_buffers():
        if name in lasting and buffer is not buffers[name]:
            raise ModelError(
                f"the network puts another tensor in the place of its buffer {name} when it is called: engines, and a "
                "resumed run, would train other models.",
                f"write into the buffer: self.{name.rpartition('.')[2]}.copy_(…)",
            )
    if not all(repeats):
        raise ModelError(
            "the network gives another output for the same sample when it is called again: engines, and a resumed run, "
            "would train other models.",
            "keep what it counts in a buffer (register_buffer); draw random numbers with torch, without a generator of "
            "its own",
        )


def check_weights(parameters: Mapping[str, nn.Parameter], before: Mapping[str, tuple[Tensor, int, Tensor]]) -> None:
    """Refuse weights that lie elsewhere than before, or have other values."""
    for name, weight in parameters.items():
        held, version, total = before[name]
        moved = held.data_ptr() != weight.data_ptr()
        if moved or version != weight._version or not torch.equal(total, sum_up(weight)):
            raise ModelError(
                f"the network writes into its weight {name} when it is called, and that would be lost or mixed up.",
                "let torch.nn.utils.parametrize change weights as they are read; an embedding needs no max_norm",
            )


def check_parts(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> None:
    """Refuse parts that come, go, or grow."""
    changed = [name for name in before.keys() | now.keys() if not has_shape(now.get(name), before.get(name))]
    if changed:
        raise ModelError(
            f"the network makes its part {min(changed)} anew when it is called, and nobody would train or keep it.",
            "call it once with a sample, as long as any, before it is given: model(x[:1])",
        )


def has_shape(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and one.shape == other.shape


def sum_up(weight: Tensor) -> Tensor:
    """Two numbers that change with a weight; a version does not, where it is written through `.data`."""
    found, wide = weight.detach(), torch.float32 if weight.device.type == "mps" else torch.float64
    if not (found.is_floating_point() or found.is_complex()):
        return torch.stack([found.sum(dtype=torch.int64), found.count_nonzero()])
    return torch.stack([found.sum(dtype=wide), torch.linalg.vector_norm(found, dtype=wide)])


def repeats_outputs(task: Task, network: nn.Module, client: int, buffers: Mapping[str, Tensor]) -> bool:
    """Whether a network gives the same when it is called again, with another sample in between."""
    last = int(task.clients.sizes[client]) - 1
    given, other = (task.prepare(task.clients.rows(client, np.array(two))) for two in ([0, last], [last, last]))
    tolerance = ON_GPU if list_gpus(task.device) else REPEATED

    def call(sample: Sample) -> list[Any]:
        seed_torch(0, task.device)
        for name, value in buffers.items():
            network.get_buffer(name).copy_(value)
        return _pytree.tree_leaves(task.predict(network, clone_tensors(sample)))

    found: list[tuple[Any, Any]] = []
    cudnn = torch.backends.cudnn  # it may choose another algorithm, with other roundings, from call to call
    with torch.random.fork_rng(devices=list_gpus(task.device)), suppress(Exception):  # training says what is wrong
        with cudnn.flags(enabled=cudnn.enabled, deterministic=True, allow_tf32=cudnn.allow_tf32):
            first, _, again = (call(sample) for sample in (given, other, given))
        found += zip(first, again, strict=True)
    return all(are_near(one, other, tolerance) for one, other in found if isinstance(one, Tensor))
