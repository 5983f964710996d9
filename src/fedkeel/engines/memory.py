"""How much fits into memory, planned before a round, so that no round ends for want of memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedkeel.core.method import Method
from fedkeel.core.round import init_client, init_round
from fedkeel.core.trees import state_bytes
from fedkeel.engines.engine import Training, plan_rows
from fedkeel.engines.machine import free_memory
from fedkeel.errors import RunError
from fedkeel.problems.task import Task

SPARE = 0.8  # of what is free
TREES = 12  # parameters, gradients and the values between them that live at once during a step
CPU_TOGETHER = 64  # a longer stack gains nothing on a CPU
CPU_DATA = 64 << 20  # gathering few rows anew in each round takes longer than keeping them all


def free_bytes(device: torch.device) -> int:
    """Return the bytes that can still be allocated."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free_memory()


def state_budget(device: torch.device) -> int:
    """Return how many bytes of client states may stay in memory: half of what is free on the device."""
    return free_bytes(device) // 2


@contextmanager
def explain_device_errors(device: torch.device) -> Iterator[None]:
    """Turn a GPU's errors into one line and a hint: no memory, after smaller portions were tried, or a bad index."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        left = f": {free_bytes(device) / 2**30:.1f} GiB are free" if device.type == "cuda" else ""
        raise RunError(
            f"the memory of {device} does not suffice{left}.",
            "do other programs use it? Wait for them, or run fewer at once; a smaller batch_size or "
            "--precision bfloat16 needs less. Rounds made so far are kept: the same command goes on from there",
        ) from error
    except RuntimeError as error:
        if "device-side assert" not in str(error):
            raise
        raise RunError(
            f"{device} has stopped: a label or another index is out of range.",
            "--device cpu says which; this process cannot use the GPU any more, rounds made so far are kept",
        ) from error


def data_budget(device: torch.device) -> int:
    """Return how many bytes of raw data may stay on the device; a CPU has them in memory already and copies few."""
    return free_bytes(device) // 4 if device.type == "cuda" else CPU_DATA


def clients_that_fit(task: Task, method: Method, training: Training) -> int:
    """Estimate from the bytes of one client: its trees, its slots, and what a forward pass keeps for the backward."""
    held = init_client(method, task.initial, task.buffers) | init_round(method, task.initial)
    tree, slots = task.initial.buffer.nbytes, state_bytes(held)
    client_bytes = TREES * tree + 2 * slots + 2 * activation_bytes(task, method, training)
    count = max(1, int(SPARE * free_bytes(task.device) / client_bytes))
    return min(count, CPU_TOGETHER) if task.device.type == "cpu" else count


def activation_bytes(task: Task, method: Method, training: Training) -> int:
    """Measure what autograd saves in one forward pass of the largest batch, once for each storage.

    Frozen weights are not counted: they are held anyway, and once for all clients.
    """
    client = int(task.clients.sizes.argmax())
    rows = max(
        (rows for i, phase in enumerate(method.phases) for rows in plan_rows(task, training, 0, client, i, phase)),
        key=len,
    )
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is torch.strided:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    model = task.module if task.module is not None else {n: t.requires_grad_() for n, t in task.initial.named().items()}
    buffers = None if task.module is None else [b.clone() for b in task.module.buffers()]
    tensors = task.batch(client, rows).tensors
    try:
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            task.losses(model, tensors, task.predict(model, tensors))
    except RuntimeError as error:
        if not any(words in str(error) for words in ("saved tensor hooks", "python storage")):
            raise  # networks that call torch.func.grad take no hooks, those of jvp show no memory: nothing is known
    for buffer, before in zip(() if task.module is None else task.module.buffers(), buffers or (), strict=True):
        buffer.data.copy_(before)
    for parameter in () if task.module is None else task.module.parameters():
        if not parameter.requires_grad:
            saved.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(saved.values())


def frozen_bytes(task: Task) -> int:
    """Count the bytes of a network's frozen weights, which are held once for all clients."""
    return 0 if task.module is None else sum(p.nbytes for p in task.module.parameters() if not p.requires_grad)
