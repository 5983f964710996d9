"""What a network drops, as a function of the step's key: the same in every engine."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedkeel.errors import ModelError
from fedkeel.kernels.composites import COMPOSITES
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
            return DRAWING[func](self.draw, *args, **kwargs)
        if func in COMPOSITES:  # those may drop something inside
            with self:
                made = COMPOSITES[func](*args, **kwargs)
            if made is not None:
                return made
        return func(*args, **kwargs)

    def draw(self, shape: tuple[int, ...], share: float) -> Tensor:
        """Draw a mask that is False with probability `share`."""
        if self.key is None:
            raise ModelError(
                "this network draws random numbers and does not say so.", "set stochastic = True on the module"
            )
        self.calls += 1
        bits = keyed_bits(self.key, self.calls, prod(shape)).view(shape)
        return bits >= round(share * 2**32) - 2**31


Draw = Callable[[tuple[int, ...], float], Tensor]


def dropout(draw: Draw, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Drop single numbers; what is left is scaled up."""
    return _drop(draw, x, tuple(x.shape), p) if training and p > 0 else x


def feature_dropout(draw: Draw, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Drop whole channels of samples `[batch, channels, …]`."""
    return _drop(draw, x, (*x.shape[:2], *(1,) * (x.dim() - 2)), p) if training and p > 0 else x


def _drop(draw: Draw, x: Tensor, shape: tuple[int, ...], p: float) -> Tensor:
    kept = draw(shape, p).to(x.dtype)
    return x * (kept / (1 - p) if p < 1 else torch.zeros_like(kept))


def bernoulli(draw: Draw, x: Tensor, p: float = 0.5, **options: Any) -> Tensor:
    """Return ones with probability p, as `x.bernoulli_(p)` does, and zeros."""
    return draw(tuple(x.shape), 1 - p).to(x.dtype)


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
