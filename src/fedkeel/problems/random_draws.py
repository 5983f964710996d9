"""Whether a problem draws random numbers in training: those then depend on the step's key."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedkeel.errors import DataError, FedkeelError
from fedkeel.kernels.composites import COMPOSITES
from fedkeel.kernels.keyed_dropout import DRAWING
from fedkeel.problems.module_state import copy_trained
from fedkeel.problems.separability import KEYS, spread, train_but_norms
from fedkeel.randomness import list_gpus
from fedkeel.text import in_one_line

if TYPE_CHECKING:
    from fedkeel.problems.task import Task


@torch.enable_grad()
def draws_when_trained(task: Task) -> bool:
    """Whether a network or the loss draws random numbers in training by functions such as F.dropout or torch.randn."""
    client = int(task.clients.sizes.argmax())
    if task.clients.sizes[client] == 0:
        return False
    if getattr(task.problem.loss, "stochastic", False):
        return True
    try:
        model = task.initial.named() if task.module is None else copy_trained(task.module)
        if isinstance(model, nn.Module):
            train_but_norms(model)
        gpus = list_gpus(task.device)
        with torch.random.fork_rng(devices=gpus):
            before = read_torch_generators(gpus)
            places = np.array([0, task.clients.sizes[client] - 1])  # two: a permutation of one draws nothing
            tensors = task.prepare(task.clients.rows(client, places))
            task.losses(model, tensors, task.predict(model, tensors))
            return any(not torch.equal(a, b) for a, b in zip(before, read_torch_generators(gpus), strict=True))
    except Exception:  # try_out says what is wrong with such a network
        return False


class NoteDraws(TorchFunctionMode):
    """Notes whether functions are called that may draw random numbers."""

    drawn = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        self.drawn |= func in DRAWING or func in COMPOSITES
        return func(*args, **(kwargs or {}))


@torch.enable_grad()
def draws_for_gradient(task: Task) -> bool:
    """Whether a network draws random numbers once more for the gradient: checkpoints compute their layers again."""
    client = int(task.clients.sizes.argmax())
    if task.module is None or task.clients.sizes[client] == 0:
        return False
    try:
        model = copy_trained(task.module)
        train_but_norms(model)
        with torch.random.fork_rng(devices=list_gpus(task.device)), warnings.catch_warnings(action="ignore"):
            tensors = task.prepare(task.clients.rows(client, np.array([0, task.clients.sizes[client] - 1])))
            loss = task.losses(model, tensors, task.predict(model, tensors)).sum()
            slope = (torch.ones_like(loss),)
            run: Any = torch.autograd.Variable._execution_engine  # loss.backward() would run outside of the mode
            with NoteDraws() as seen:
                run.run_backward((loss,), slope, False, False, (), allow_unreachable=True, accumulate_grad=True)
            return seen.drawn
    except Exception:  # try_out says what is wrong with such a network
        return False


def read_torch_generators(gpus: Iterable[torch.device]) -> list[Tensor]:
    """The states of PyTorch's generators: that of the CPU too, from which torch.randperm draws on any device."""
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, gpus)]


def augments_by_keys(task: Task) -> bool:
    """Whether a problem's own `prepare` gives other samples with keys than without."""
    client = int(task.clients.sizes.argmax())
    size = int(task.clients.sizes[client])
    if task.problem.prepare is None or size == 0:
        return False
    rows = spread(size)
    plain = task.prepare(task.clients.rows(client, rows), None)
    keyed = (np.arange(1, len(rows) + 1, dtype=np.uint64) * factor for factor in KEYS)
    try:
        others = [task.prepare(task.clients.rows(client, rows), keys) for keys in keyed]
        return any(not torch.equal(a, b) for other in others for a, b in zip(plain, other, strict=True))
    except FedkeelError:
        raise
    except Exception as error:
        raise DataError(
            f"prepare(raw, keys) fails with keys: {type(error).__name__}: {in_one_line(error)}",
            "keys are a numpy array of uint64, one for each sample; without any, nothing is drawn",
        ) from error
