"""Clients that have finished leave the stack, so that the others are not held up by them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree

from fedkeel.core.method import Phase
from fedkeel.core.round import Body, Carry, PhaseContext
from fedkeel.engines.stacked.client_mapping import spread
from fedkeel.engines.stacked.stacked_batches import Steps

Scan = Callable[..., tuple[Carry, Tensor]]

LEAST = 0.05  # of a phase's steps: a shorter stretch is not worth another size of stack


class Cut(NamedTuple):
    """Steps `first` to `last` of a phase, taken by the first `clients` of the stack."""

    first: int
    last: int
    clients: int


def widths(clients: int) -> list[int]:
    """The sizes a stack may shrink to: halves, so that few steps are compiled and captured."""
    found = [clients]
    while found[-1] > 2:
        found.append(found[-1] // 2)
    return found


def cuts(lengths: Sequence[int]) -> list[Cut]:
    """Where a stack shrinks. `lengths` are the clients' steps, the longest first."""
    total = lengths[0]
    found = [Cut(0, total, len(lengths))]
    for width in widths(len(lengths))[1:]:
        first = lengths[width]  # from there on only `width` clients are left
        if total - first < LEAST * total:
            break
        if len(found) > 1 and first - found[-1].first < LEAST * total:
            found.pop()
        found[-1] = found[-1]._replace(last=first)
        found.append(Cut(first, total, width))
    return [cut for cut in found if cut.first < cut.last]


class Dropping:
    """A scan that calls another one for stretches of steps, each with the clients that still train.

    The clients of a stack are ordered by their steps, the longest first; where they are not, nothing is dropped.
    """

    def __init__(self, scan: Scan):
        self.scan = scan

    def __call__(
        self, phase: Phase, body: Body, carry: Carry, fixed: PhaseContext, steps: Steps
    ) -> tuple[Carry, Tensor]:
        lengths = (steps.sizes > 0).sum(0).tolist()
        plan = cuts(lengths) if lengths == sorted(lengths, reverse=True) else []
        if len(plan) < 2:
            return self.scan(phase, body, carry, fixed, steps)
        task, clients = steps.store.task, len(lengths)
        losses = torch.zeros((clients, len(steps.sizes)), dtype=task.dtype, device=task.device)
        carry, left = spread(carry, clients), []  # those who leave, the last of the stack first
        for first, last, width in plan:
            if width < clients:
                left.append(rows(carry, width, clients))
                carry, fixed, clients = rows(carry, 0, width), of_first(fixed, width), width
            carry, found = self.scan(phase, body, carry, fixed, steps.part(first, last, width))
            losses[:width, first:last] = found
            carry = spread(carry, width)
        return joined([carry, *reversed(left)]), losses


def rows(state: Any, first: int, last: int) -> Any:
    """Some clients of a stacked state."""
    return _pytree.tree_map(lambda leaf: leaf[first:last], state)


def of_first(fixed: PhaseContext, clients: int) -> PhaseContext:
    """What stays, for the first clients of a stack; what the server sent may be the same for all."""
    start, message, lr, steps = fixed
    shared = message["params"].buffer.dim() == 1
    return PhaseContext(
        rows(start, 0, clients),
        message if shared else rows(message, 0, clients),
        lr if lr.dim() == 0 else lr[:clients],
        steps[:clients],
    )


def joined(states: list[Any]) -> Any:
    """Stacked states of some clients, one after another."""
    return _pytree.tree_map(lambda *leaves: torch.cat(leaves), *states)
