"""What a user's module keeps besides its weights, how many samples it needs, and the weights that it starts from."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd

from fedkeel.data.clients import Sample
from fedkeel.errors import ExperimentError


def read_counters(module: nn.Module | None) -> dict[str, Tensor]:
    """The first values of a module's whole-number buffers; those of norms are left out, as they change nothing."""
    norms = {} if module is None else {n: m for n, m in module.named_modules() if isinstance(m, _NormBase)}
    if any(norm.track_running_stats and norm.momentum is None for norm in norms.values()):
        raise ExperimentError("a norm with momentum=None averages over the batches of all clients.", "momentum=0.1")
    idle = {f"{name}.num_batches_tracked".lstrip(".") for name in norms}
    buffers = {} if module is None else dict(module.named_buffers())
    return {n: b.detach().clone() for n, b in buffers.items() if not b.is_floating_point() and n not in idle}


@torch.no_grad()
def only_norms_remember(module: nn.Module | None, samples: Callable[[], Sample]) -> bool:
    """Whether a module keeps nothing of its samples but running moments of batch norms; tables do not change."""
    if module is None:
        return True
    norms = [name for name, part in module.named_modules() if isinstance(part, _BatchNorm)]
    moments = {f"{name}.{kind}".lstrip(".") for name in norms for kind in ("running_mean", "running_var")}
    others = [n for n, buffer in module.named_buffers() if buffer.is_floating_point() and n not in moments]
    if not others:
        return True
    twin = copy.deepcopy(module).train()
    before = {name: (buffer := twin.get_buffer(name), buffer._version) for name in others}
    with torch.random.fork_rng(devices=[]):
        twin(*samples())
    return all(twin.get_buffer(n) is buffer and buffer._version == version for n, (buffer, version) in before.items())


def draws_numbers(module: nn.Module | None) -> bool:
    """Whether a module draws random numbers while it trains: dropout of any kind, or one that says so."""

    def draws(part: nn.Module) -> bool:
        if isinstance(part, _DropoutNd):
            return part.p > 0
        if isinstance(part, nn.MultiheadAttention | nn.RNNBase):
            return float(part.dropout) > 0
        if type(part).__name__ in ("DropPath", "StochasticDepth"):  # of timm and torchvision
            return float(getattr(part, "drop_prob", None) or getattr(part, "p", None) or 0.0) > 0
        return bool(getattr(part, "stochastic", False))

    return module is not None and any(map(draws, module.modules()))


@torch.no_grad()
def compares_samples(module: nn.Module | None, sample: Callable[[], Sample]) -> bool:
    """Whether one sample is too few: batch norms over maps of 1×1 would see one value of each channel."""
    if module is None or not any(isinstance(part, _BatchNorm) for part in module.modules()):
        return False
    try:
        with torch.random.fork_rng(devices=[]):
            copy.deepcopy(module).train()(*sample())
    except ValueError as error:
        return "more than 1 value per channel" in str(error)
    return False


def replace_weights(start: Mapping[str, Tensor], leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Take the start weights in place of the initial ones; names and shapes must match."""
    for name, leaf in leaves.items():
        if name not in start:
            raise ExperimentError(
                f"the start weights lack parameter: {name}", "were they exported from the same model?"
            )
        if start[name].shape != leaf.shape:
            raise ExperimentError(
                f"start weight {name} has shape {tuple(start[name].shape)}, the model's has {tuple(leaf.shape)}.",
                "were they exported from the same model?",
            )
    return {name: start[name].to(leaf) for name, leaf in leaves.items()}
