"""Take clients that have finished out of the stack, so that they do not slow down the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree

from fedkeel.core.local_step import Body, Carry, PhaseContext
from fedkeel.core.method import Phase
from fedkeel.engines.stacked.client_mapping import add_client_axis
from fedkeel.engines.stacked.stacked_batches import StackedSteps

Scan = Callable[..., tuple[Carry, Tensor]]

LEAST_SHARE = 0.05  # of a phase's steps: a shorter part is not worth another size of stack


class Cut(NamedTuple):
    """Steps `first` to `last` of a phase, with the first `clients` of the stack."""

    first: int
    last: int
    clients: int


def stack_sizes(clients: int) -> list[int]:
    """List the sizes a stack may shrink to: halves, so that few sizes are compiled and captured."""
    sizes = [clients]
    while sizes[-1] > 2:
        sizes.append(sizes[-1] // 2)
    return sizes


def plan_cuts(lengths: Sequence[int]) -> list[Cut]:
    """Decide where a stack shrinks. `lengths` are the clients' steps, the longest first."""
    total = lengths[0]
    cuts = [Cut(0, total, len(lengths))]
    for size in stack_sizes(len(lengths))[1:]:
        first = lengths[size]  # from there on only `size` clients are left
        if total - first < LEAST_SHARE * total:
            break
        if len(cuts) > 1 and first - cuts[-1].first < LEAST_SHARE * total:
            cuts.pop()
        cuts[-1] = cuts[-1]._replace(last=first)
        cuts.append(Cut(first, total, size))
    return [cut for cut in cuts if cut.first < cut.last]


def drop_finished(
    scan: Scan, phase: Phase, body: Body, carry: Carry, context: PhaseContext, steps: StackedSteps
) -> tuple[Carry, Tensor]:
    """Scan a phase in parts, each with the clients that still train.

    The clients of a stack are ordered by their steps, the longest first; where they are not, nothing is dropped.
    """
    lengths = (steps.sizes > 0).sum(0).tolist()
    plan = plan_cuts(lengths) if lengths == sorted(lengths, reverse=True) else []
    if len(plan) < 2:
        return scan(phase, body, carry, context, steps)
    task, clients = steps.store.task, len(lengths)
    losses = torch.zeros((clients, len(steps.sizes)), dtype=task.dtype, device=task.device)
    carry, finished = add_client_axis(carry, clients), []  # those who leave, the last of the stack first
    for first, last, width in plan:
        if width < clients:
            finished.append(slice_clients(carry, width, clients))
            carry, context, clients = slice_clients(carry, 0, width), slice_context(context, width), width
        carry, part_losses = scan(phase, body, carry, context, steps.part(first, last, width))
        losses[:width, first:last] = part_losses
        carry = add_client_axis(carry, width)
    return concatenate([carry, *reversed(finished)]), losses


def slice_clients(state: Any, first: int, last: int) -> Any:
    """Cut some clients out of a stacked state."""
    return _pytree.tree_map(lambda leaf: leaf[first:last], state)


def slice_context(context: PhaseContext, clients: int) -> PhaseContext:
    """Cut the first clients out of a phase's context; the message may be the same for all."""
    start, message, lr, steps = context
    shared = message["params"].buffer.dim() == 1
    return PhaseContext(
        slice_clients(start, 0, clients),
        message if shared else slice_clients(message, 0, clients),
        lr if lr.dim() == 0 else lr[:clients],
        steps[:clients],
    )


def concatenate(states: list[Any]) -> Any:
    """Join stacked states of some clients, one behind the other."""
    return _pytree.tree_map(lambda *leaves: torch.cat(leaves), *states)
