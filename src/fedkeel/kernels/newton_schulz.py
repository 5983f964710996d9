"""Newton–Schulz on the matrices of all clients: products that share what they can and write where results belong."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedkeel.kernels.custom_op import as_custom_op
from fedkeel.kernels.layers import GPU_TYPES
from fedkeel.kernels.side_stream import SideStream

A, B, C = 3.4445, -4.7750, 2.0315  # of the polynomial that Newton–Schulz iterates: fast at small singular values
SMALLEST = 1e-7  # norm of a matrix
WIDE = 1.5  # from this ratio of the sides on, steps on the smaller one take less arithmetic
AT_ONCE = 3  # steps; in bfloat16 two
TOGETHER = 128  # rows: on a GPU products of fewer take as long


class Matrices(NamedTuple):
    """Matrices of one shape, no more rows than columns, and where their result belongs."""

    x: Tensor  # [clients · leaves, rows, columns]
    place: Tensor  # [clients, leaves, rows, columns]
    scale: float


def empty_row(stacks: Sequence[Tensor], *others: object) -> Tensor:
    return stacks[0].new_empty((len(stacks[0]), sum(count_numbers(stacks))))


def count_numbers(stacks: Sequence[Tensor]) -> list[int]:
    """How many numbers of each stack a client has."""
    return [stack.shape[1:].numel() for stack in stacks]


def stack_clients(info: Any, axes: Any, stacks: Sequence[Tensor], *others: Any) -> tuple[Tensor, int]:
    """Under vmap: its axis becomes that of the clients."""
    moved = [
        stack.expand(info.batch_size, *stack.shape) if axis is None else stack.movedim(axis, 0)
        for stack, axis in zip(stacks, axes[0], strict=True)
    ]
    found = torch.ops.fedkeel.orthogonalise([stack.flatten(0, 1) for stack in moved], *others)
    return found.unflatten(0, moved[0].shape[:2]), 0


@as_custom_op(
    "orthogonalise(Tensor[] stacks, float[] scales, int steps, int together) -> Tensor", empty_row, stack_clients
)
def orthogonalise(stacks: Sequence[Tensor], scales: Sequence[float], steps: int, together: int) -> Tensor:
    """Orthogonalise matrices `[clients, leaves, rows, columns]`, times a scale for each stack: `[clients, numbers]`.

    Each matrix X is first divided by its norm; then X ← Q X, Q = a I + b P + c P², P = X Xᵀ. Where there are more
    columns than rows (or the other way round), three steps and then two (in bfloat16 two, two and one) are made at once
    on the smaller P, which a step takes to Q P Q: less arithmetic. P is then made anew from X: its small eigenvalues,
    squares of small singular values, are lost in rounding, may become negative, and grow tenfold with every step. The
    result is as accurate as that of single steps; with five at once, or three in bfloat16, it is not. Stacks with as
    many rows share the products of their P; so do all stacks of up to `together` rows, each P filled up with zeros. In
    a captured graph all but the longest chain of products are a branch beside it.
    """
    row = empty_row(stacks)
    alike: dict[tuple[int, bool], list[Matrices]] = {}
    for stack, scale, part in zip(stacks, scales, row.split(count_numbers(stacks), -1), strict=True):
        place = part.view(stack.shape)
        x, place = (stack.mT, place.mT) if stack.shape[-2] > stack.shape[-1] else (stack, place)
        rows, columns = x.shape[-2:]
        members = alike.setdefault((max(rows, together), columns >= WIDE * rows), [])
        members.append(Matrices(x.reshape(-1, rows, columns), place, scale))
    ways = [(members, cut_steps(steps, row.dtype) if wide else [1] * steps) for (_, wide), members in alike.items()]
    *others, longest = sorted(ways, key=lambda way: sum(one.x.numel() * one.x.shape[-2] for one in way[0]))
    side = SideStream(row.device)
    for members, stretches in others:  # chains of small products, which leave most of a GPU idle
        side.run(partial(orthogonalise_alike, members, stretches))
    orthogonalise_alike(*longest)
    side.join()
    return row


def cut_steps(steps: int, dtype: torch.dtype) -> list[int]:
    """Cut steps into stretches that are made at once: so few that what rounding makes of P = 0 stays small."""
    most = AT_ONCE if torch.finfo(dtype).bits >= 32 else 2
    return [min(most, steps - done) for done in range(0, steps, most)]


def orthogonalise_alike(members: Sequence[Matrices], stretches: Sequence[int]) -> None:
    """Orthogonalise stacks that share the products of their P, and put the results in their places."""
    found, counts = [one.x for one in members], [len(one.x) for one in members]
    heights = [x.shape[-2] for x in found]
    make = found[0].new_zeros if len(set(heights)) > 1 else found[0].new_empty
    p = make((sum(counts), max(heights), max(heights)))
    for number, stretch in enumerate(stretches):
        for x, part in zip(found, cut_parts(p, counts, heights), strict=True):
            torch.bmm(x, x.mT, out=part)
        if number == 0:
            square = p.diagonal(dim1=-2, dim2=-1).sum(-1, dtype=torch.promote_types(p.dtype, torch.float32))
            inverse = square.clamp(min=SMALLEST**2).reciprocal()  # of ‖X‖² = tr X Xᵀ
            q = multiply_polynomials(combine(p, None, inverse), stretch, inverse.sqrt())
        else:
            q = multiply_polynomials(p, stretch, None)
        parts = cut_parts(q, counts, heights)
        if number < len(stretches) - 1:
            found = [part @ x for part, x in zip(parts, found, strict=True)]
    for part, x, (_, place, scale) in zip(parts, found, members, strict=True):
        leaves = place.shape[1]
        for leaf in range(leaves):  # the places of one leaf are as far apart as the rows of two clients
            place[:, leaf].baddbmm_(part[leaf::leaves], x[leaf::leaves], beta=0, alpha=scale)


def cut_parts(p: Tensor, counts: Sequence[int], heights: Sequence[int]) -> list[Tensor]:
    """The matrices of each stack without what they were filled up with."""
    return [part[:, :rows, :rows] for part, rows in zip(p.split(list(counts)), heights, strict=True)]


def multiply_polynomials(p: Tensor, steps: int, factor: Tensor | None) -> Tensor:
    """The product of the Q of some steps, which all commute, times a factor."""
    product: Tensor | None = None
    for left in reversed(range(steps)):
        q = combine(p, p @ p, None if left else factor)
        product = q if product is None else product @ q
        p = q @ p @ q if left else p
    assert product is not None
    return product


def combine(p: Tensor, squared: Tensor | None, factor: Tensor | None) -> Tensor:
    """(a I + b P + c P²) f, or P f without a square, by one pass; f is a number for each matrix."""
    if p.is_cuda and p.dtype in GPU_TYPES:
        from fedkeel.kernels import triton_polynomial

        return triton_polynomial.combine(p, squared, factor, (A, B, C))
    if squared is not None:
        p = A * torch.eye(p.shape[-1], dtype=p.dtype, device=p.device) + B * p + C * squared
    return p if factor is None else (factor[:, None, None] * p).to(p.dtype)
