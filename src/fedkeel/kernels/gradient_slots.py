"""Where an operator writes the gradient of a weight: into the flat gradient, or into memory that autograd takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Slot:
    """Where the gradient of a leaf is written, and the names of all leaves whose gradient has been."""

    name: str
    tensor: Tensor
    written: set[str]

    def flatten(self, first: int) -> Slot:
        return replace(self, tensor=self.tensor.flatten(first))


Into = Tensor | Slot | None
Described = tuple[torch.Size, torch.dtype, torch.device]


def describe(weight: Tensor) -> Described:
    return weight.shape, weight.dtype, weight.device


def place(into: Into, weight: Described) -> tuple[Tensor, Tensor | None]:
    """Return where a weight's gradient is written, and what autograd gets: None where it is written there already."""
    if isinstance(into, Slot):
        into.written.add(into.name)
        return into.tensor, None
    if into is not None:
        return into, None
    made = torch.empty(weight[0], dtype=weight[1], device=weight[2])
    return made, made


def place_both(
    into: tuple[Into, Into], gain: Tensor
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor | None, Tensor | None]]:
    """Do the same for gain and bias of a norm."""
    (first, slope), (second, other) = (place(part, describe(gain)) for part in into)
    return (first, second), (slope, other)
