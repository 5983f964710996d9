"""Group and batch norms that wait for what follows: a shortcut that is added and a ReLU join them in one pass."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fedkeel.errors import ModelError
from fedkeel.kernels.gradient_slots import Into
from fedkeel.kernels.layers import BatchNormalise, Normalise
from fedkeel.kernels.operators import Operand, StackedPass
from fedkeel.kernels.plain import RunningMoments


class Norm(Protocol):
    """Norms images `[clients, batch, height, width, channels]`, adds a shortcut, and applies a ReLU.

    Where it `passes` the images on it returns them too, for their other uses.
    """

    weight: Operand | None
    bias: Operand | None

    def __call__(
        self, images: Tensor, shortcut: Tensor | None, relu: bool, passes: bool
    ) -> Tensor | tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class PendingNorm:
    """A norm that has not been computed, and a shortcut that is added to it; `given` is x as the network sees it.

    Whether gradients flow through it was decided where the network called it, not where its values are read.
    """

    x: Tensor  # [clients, batch, channels, …]
    norm: Norm
    shortcut: Tensor | None = None
    given: Tensor | None = None
    graded: bool = field(default_factory=torch.is_grad_enabled)

    def add(self, shortcut: Tensor) -> PendingNorm:
        return replace(self, shortcut=shortcut, given=None)  # the shortcut may be x itself

    @property
    def needs_gradient(self) -> bool:
        """Whether gradients flow through it: not where all that it is made of is frozen."""
        of_norm = (part.value for part in (self.norm.weight, self.norm.bias) if part is not None)
        return self.graded and any(part.requires_grad for part in (self.x, self.shortcut, *of_norm) if part is not None)

    @property
    def changes(self) -> tuple[Tensor, ...]:
        """The running moments that have still to follow."""
        return tuple(moment for moments in getattr(self.norm, "running", ()) for moment in moments.before)

    def compute(self, relu: bool = False) -> tuple[Tensor, Tensor | None]:
        """Return the norm, and x for later uses, whose slopes the norm's own gradient then adds."""
        with torch.set_grad_enabled(self.needs_gradient):
            images = as_images(self.x)
            beside = None if self.shortcut is None else as_images(self.shortcut.to(images.dtype))
            passes = self.given is not None and self.x.requires_grad and self.graded
            made = self.norm(images.contiguous(), beside, relu, passes)
            y, passed = made if isinstance(made, tuple) else (made, None)
            return self.as_given(y), None if passed is None else self.as_given(passed)

    def as_given(self, images: Tensor) -> Tensor:
        return images.view(*self.x.shape[:2], *self.x.shape[3:], -1).movedim(-1, 2)


def as_images(x: Tensor) -> Tensor:
    """View `[clients, batch, channels, …]` as images with channels last."""
    last = x.movedim(2, -1)
    if last.dim() == 5:
        return last
    return last.reshape(*last.shape[:2], 1, -1, last.shape[-1])


@dataclass
class GroupNorm:
    """A norm over groups of channels; its gradients have a place the first time that it is computed."""

    at: StackedPass
    groups: int
    epsilon: float
    weight: Operand | None
    bias: Operand | None

    def __call__(
        self, images: Tensor, shortcut: Tensor | None, relu: bool, passes: bool
    ) -> Tensor | tuple[Tensor, Tensor]:
        gain, bias = give_rows(self.at, self.weight, 1, images), give_rows(self.at, self.bias, 0, images)
        into: tuple[Into, Into] = (self.at.claim(self.weight), self.at.claim(self.bias))
        return Normalise.apply(
            images, self.at.anchor, shortcut, gain, bias, into, self.groups, self.epsilon, relu, passes
        )


@dataclass
class BatchNorm:
    """A norm over the samples of a client; running moments follow once, however often it is computed."""

    at: StackedPass
    epsilon: float
    weight: Operand | None
    bias: Operand | None
    running: list[RunningMoments] = field(default_factory=list)

    def __call__(
        self, images: Tensor, shortcut: Tensor | None, relu: bool, passes: bool
    ) -> Tensor | tuple[Tensor, Tensor]:
        mask = self.at.mask
        if mask is not None and mask.shape[1] != images.shape[1]:
            raise ModelError(
                "this model cannot be stacked: a batch norm sees another number of samples than the batch has.",
                "use --engine serial, or a batch_size that divides every client's samples",
            )
        gain, bias = give_rows(self.at, self.weight, 1, images), give_rows(self.at, self.bias, 0, images)
        into = (self.at.claim(self.weight), self.at.claim(self.bias))
        running = self.running.pop() if self.running else None
        return BatchNormalise.apply(
            images, self.at.anchor, shortcut, gain, bias, into, mask, self.epsilon, relu, running, passes
        )


def give_rows(at: StackedPass, weight: Operand | None, neutral: float, images: Tensor) -> Tensor:
    """Return one row of gains or biases for each client, also where they are shared or there are none."""
    if weight is not None and weight.stacked:
        return weight.value
    shape = (at.clients, images.shape[-1])
    if weight is None:
        return torch.full(shape, neutral, dtype=at.anchor.dtype, device=images.device)
    return weight.value.expand(shape).contiguous()


def group_norm(
    at: StackedPass, x: Operand, num_groups: int, weight: Operand | None = None, bias: Operand | None = None,
    eps: float = 1e-5, *rest: Any,
) -> PendingNorm | None:  # fmt: skip
    if x.axes < 2:
        return None
    return PendingNorm(at.stack(x), GroupNorm(at, num_groups, eps, weight, bias))


def batch_norm(
    at: StackedPass, x: Operand, running_mean: Operand | None, running_var: Operand | None,
    weight: Operand | None = None, bias: Operand | None = None, training: bool = False, momentum: float = 0.1,
    eps: float = 1e-5,
) -> PendingNorm | Tensor | None:  # fmt: skip
    if x.axes < 2:
        return None
    if not training:  # as frozen norms are: their samples form one batch
        parts = (running_mean, running_var, weight, bias)
        if not x.stacked or any(part is not None and part.stacked for part in parts):
            return None
        mean, variance, gain, lift = (None if part is None else at.low(part) for part in parts)
        y = F.batch_norm(at.low(x).flatten(0, 1), mean, variance, gain, lift, False, momentum, eps)
        return y.unflatten(0, x.value.shape[:2])
    running = []
    if running_mean is not None and running_var is not None:
        if not (running_mean.stacked and running_var.stacked):
            return None
        both = (running_mean.value, running_var.value)
        running = [RunningMoments(both, both, momentum)]
    return PendingNorm(at.stack(x), BatchNorm(at, eps, weight, bias, running))


def batch_norm_aten(
    at: StackedPass, x: Operand, weight: Operand | None, bias: Operand | None, running_mean: Operand | None,
    running_var: Operand | None, training: bool, momentum: float, eps: float, *rest: Any,
) -> PendingNorm | Tensor | None:  # fmt: skip
    """`torch.batch_norm`, which has another order of arguments."""
    return batch_norm(at, x, running_mean, running_var, weight, bias, training, momentum, eps)
