"""What a network drops, as a function of the step's key: the same in every engine."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from fedkeel.errors import ModelError
from fedkeel.kernels.composites import COMPOSITES
from fedkeel.kernels.in_place import rename
from fedkeel.randomness import keyed_bits


class KeyedDropout(TorchFunctionMode):
    """Takes over the functions with which a network of one client draws random numbers.

    Draws are counted: the first call of a pass has other numbers than the second.
    """

    def __init__(self, key: Tensor | None):
        super().__init__()
        self.key, self.calls = key, 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in DRAWING:
            made = DRAWING[func](self.draw, *args, **rename(kwargs))
            return args[0].copy_(made) if draws_in_place(func, args, kwargs) and made is not args[0] else made
        if func in COMPOSITES:  # those may drop something inside
            with self:
                made = COMPOSITES[func](*args, **kwargs)
            if made is not None:
                return made
        return func(*args, **kwargs)

    def next_key(self) -> Tensor:
        """Return the step's key for one more draw."""
        if self.key is None:
            raise ModelError(
                "this network draws random numbers and does not say so.", "set stochastic = True on the module"
            )
        self.calls += 1
        return self.key

    def draw(self, shape: tuple[int, ...], share: float) -> Tensor:
        """Draw a mask that is False with probability `share`."""
        bits = keyed_bits(self.next_key(), self.calls, prod(shape)).view(shape)
        return bits >= least_bits(share)


class Drop(torch.autograd.Function):
    """Dropout of stacked clients on a GPU, whose mask is made anew for the slopes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: Tensor, high: Tensor, share: float) -> Tensor:
        from fedkeel.kernels import triton_dropout

        ctx.save_for_backward(low, high)
        ctx.share = share
        return triton_dropout.drop(x, low, high, least_bits(share), scale_up(share))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        from fedkeel.kernels import triton_dropout

        low, high = ctx.saved_tensors
        return triton_dropout.drop(dy, low, high, least_bits(ctx.share), scale_up(ctx.share)), None, None, None


def least_bits(share: float) -> int:
    """Return the least 32-bit number, as int32, that is kept where a share is dropped."""
    return min(round(share * 2**32) - 2**31, 2**31 - 1)


def scale_up(share: float) -> float:
    """Return by what the rest is multiplied, so that means stay as they were."""
    return 1 / (1 - share) if share < 1 else 0.0


Draw = Callable[[tuple[int, ...], float], Tensor]


def dropout(draw: Draw, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Drop single numbers; what is left is scaled up."""
    return _drop(draw, x, tuple(x.shape), p) if training and p > 0 else x


def feature_dropout(draw: Draw, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Drop whole channels of samples `[batch, channels, …]`."""
    return _drop(draw, x, (*x.shape[:2], *(1,) * (x.dim() - 2)), p) if training and p > 0 else x


def _drop(draw: Draw, x: Tensor, shape: tuple[int, ...], p: float) -> Tensor:
    return x * (draw(shape, p).to(x.dtype) * scale_up(p))


def bernoulli(draw: Draw, x: Tensor, p: float = 0.5, **options: Any) -> Tensor:
    """Return ones with probability p, as `x.bernoulli_(p)` does, and zeros."""
    return draw(tuple(x.shape), 1 - p).to(x.dtype)


def draws_in_place(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function that draws writes into its argument too: a network need not use what it returns."""
    asked = func in (torch.dropout_, Tensor.bernoulli_) or args[3:4] == (True,) or kwargs.get("inplace") is True
    return asked and len(args) > 0


DRAWING: dict[Callable[..., Any], Callable[..., Tensor]] = {
    F.dropout: dropout,
    torch.dropout: dropout,
    torch.dropout_: dropout,
    F.dropout1d: feature_dropout,
    F.dropout2d: feature_dropout,
    F.dropout3d: feature_dropout,
    torch.feature_dropout: feature_dropout,
    Tensor.bernoulli_: bernoulli,
}
