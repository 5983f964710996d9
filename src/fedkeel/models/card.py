"""What is known about a model before it is built: where it comes from, what it takes, what may be changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Numbers:
    """Real numbers in any shape."""

    def accepts(self, shape: Shape) -> bool:
        return len(shape) >= 1 and min(shape) >= 1

    def __str__(self) -> str:
        return "numbers in any shape"


@dataclass(frozen=True)
class Images:
    """Images (channels, height, width) with sides of at least `smallest` pixels, both multiples of `multiple`."""

    smallest: int = 1
    multiple: int = 1

    def accepts(self, shape: Shape) -> bool:
        return (
            len(shape) == 3
            and shape[0] >= 1
            and min(shape[1:]) >= self.smallest
            and all(side % self.multiple == 0 for side in shape[1:])
        )

    def __str__(self) -> str:
        sides = f", sides multiples of {self.multiple}" if self.multiple > 1 else ""
        return f"images (channels, height, width) of at least {self.smallest}×{self.smallest} pixels{sides}"


@dataclass(frozen=True)
class Tokens:
    """Texts as one row of integers below the vocabulary's size."""

    def accepts(self, shape: Shape) -> bool:
        return len(shape) == 1 and shape[0] >= 1

    def __str__(self) -> str:
        return "texts as one row of integers (length,)"


@dataclass(frozen=True)
class ModelCard:
    """`make(shape, classes, **defaults)` builds the module; `defaults` are the options that `build` accepts."""

    title: str
    paper: str
    about: str
    make: Callable[..., nn.Module]
    takes: Numbers | Images | Tokens
    defaults: Mapping[str, Any] = field(default_factory=dict)
    notes: str = ""
