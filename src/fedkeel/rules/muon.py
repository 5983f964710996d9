"""Muon: steps of the clients along orthogonalised matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod, sqrt
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedkeel.core.layout import Layout, Shape, segments
from fedkeel.core.rule import Rule, Setting, State
from fedkeel.core.trees import Tree
from fedkeel.errors import MethodError
from fedkeel.ranges import Count, Positive, ShareBelowOne
from fedkeel.rules.layers import Patterns, matcher, names_of
from fedkeel.rules.optimisers import Moments, Optimiser, divide_moments, mix, mix_squares

__all__ = ["Muon"]

A, B, C = 3.4445, -4.7750, 2.0315  # of the polynomial that Newton–Schulz iterates: fast at small singular values
SMALLEST = 1e-7  # norm of a matrix
WIDE = 1.5  # from this ratio of the sides on, steps on the smaller one take less arithmetic
AT_ONCE = 3  # steps


@dataclass(frozen=True)
class Muon(Optimiser):
    """Step along the orthogonalised momentum of each matrix, O(U): all its singular values near 1. The rest: AdamW.

    M ← μ M + (1 − μ) G; U = μ M + (1 − μ) G with nesterov = True, else M. O by `steps` of Newton–Schulz,
    X ← a X + (b X Xᵀ + c (X Xᵀ)²) X from U / ‖U‖: singular values end in [0.68, 1.13]. A convolution is the matrix of
    its outputs times all else; vectors, and what one row holds, are no matrices; nor are parameters that match
    `without`. scale = match_rms_adamw steps by 0.2 √(longer side), so that AdamW's learning rates fit; original by
    √max(1, rows / columns). momentum = 0 orthogonalises the gradient. precision = full multiplies in the type of the
    model, bfloat16 faster and to a few per cent; auto takes bfloat16 where the network computes in it. beta1, beta2 and
    eps are those of the AdamW; other_rate = 1 gives it the same learning rate. moments = reset begins every round anew;
    keep goes on with the client's own; average has the server average and send them. The experiment's weight decay is
    decoupled: it stands behind.  (Muon, Jordan et al. 2024; the scale: Liu et al. 2025)
    """

    momentum: ShareBelowOne = 0.95
    nesterov: bool = True
    steps: Count = 5
    scale: Literal["match_rms_adamw", "original"] = "match_rms_adamw"
    moments: Moments = "reset"
    without: Patterns = ()
    beta1: ShareBelowOne = 0.9
    beta2: ShareBelowOne = 0.95
    eps: Positive = 1e-10
    other_rate: Positive = 1.0
    precision: Literal["auto", "full", "bfloat16"] = "auto"
    slots: ClassVar[tuple[str, ...]] = ("muon_m", "muon_adamw_m", "muon_adamw_v")
    counter: ClassVar[str] = "muon_count"
    stackable: ClassVar[bool] = True

    @property
    def rates(self) -> tuple[float, ...]:  # type: ignore[override]
        return (3e-4, 1e-3, 3e-3, 1e-2) if self.scale == "match_rms_adamw" else (3e-3, 1e-2, 3e-2, 1e-1)

    def settled(self, setting: Setting) -> Rule:
        precision = ("bfloat16" if setting.lowered else "full") if self.precision == "auto" else self.precision
        fitted = replace(self, without=names_of(self.without, setting, self), precision=precision)
        if not split_matrices(setting.layout, fitted.without)[0].shapes:
            raise MethodError("Muon steps along matrices, but the model has none.", 'optimizer = "adamw"')
        return fitted

    def first_moments(self, params: Tree) -> State:
        matrices, others = (params.only(part).zeros() for part in split_matrices(params.layout, self.without))
        return {"muon_m": matrices, "muon_adamw_m": others, "muon_adamw_v": others}

    def turn(self, tree: Tree, moments: State, count: Tensor) -> tuple[Tree, State]:
        matrices, others = (tree.only(part) for part in split_matrices(tree.layout, self.without))
        momentum = mix(moments["muon_m"], matrices, self.momentum)
        ahead = mix(matrices, momentum, 1 - self.momentum) if self.nesterov else momentum
        m = mix(moments["muon_adamw_m"], others, self.beta1)
        v = mix_squares(moments["muon_adamw_v"], others, self.beta2)
        rest = self.other_rate * divide_moments(m, v, self.beta1, self.beta2, self.eps, count)
        return join(tree.layout, self.orthogonalise(ahead), rest), {
            "muon_m": momentum, "muon_adamw_m": m, "muon_adamw_v": v,
        }  # fmt: skip

    def orthogonalise(self, tree: Tree) -> Tree:
        """O of all matrices, times the scale."""
        axes, given = tree.buffer.shape[:-1], []
        for offset, leaves, shape in tree.layout.blocks:
            rows = tree.buffer.narrow(-1, offset, leaves * prod(shape)).reshape((-1, shape[0], prod(shape[1:])))
            x = rows.to(torch.bfloat16) if self.precision == "bfloat16" else rows
            given.append(x.mT if is_tall(shape) else x)
        pieces = []
        for (_, leaves, shape), x in zip(tree.layout.blocks, orthogonalise_wide(given, self.steps), strict=True):
            high, wide = shape[0], prod(shape[1:])
            scale = 0.2 * sqrt(max(high, wide)) if self.scale == "match_rms_adamw" else sqrt(max(1, high / wide))
            turned = scale * (x.mT if is_tall(shape) else x)
            pieces.append(turned.reshape((*axes, leaves * high * wide)))
        # joined before they are widened: half as many bytes
        return Tree(torch.cat(pieces, -1).to(tree.buffer.dtype), tree.layout)


def is_tall(shape: Shape) -> bool:
    """Whether the matrix of a tensor has more rows than columns."""
    return shape[0] > prod(shape[1:])


def join(whole: Layout, inside: Tree, outside: Tree) -> Tree:
    """The tree of two that have its leaves between them: one pass, where `tree | outside | inside` takes two."""
    parts, done = [], 0
    for segment in segments(whole, inside.layout):
        tree, offset = (inside, segment.part_offset) if segment.inside else (outside, done)
        parts.append(tree.buffer.narrow(-1, offset, segment.length))
        done += 0 if segment.inside else segment.length
    return Tree(torch.cat(parts, -1), whole)


@cache
def split_matrices(layout: Layout, without: Patterns) -> tuple[Layout, Layout]:
    """Split a model into its matrices, those that match `without` left out, and the rest."""
    excluded = matcher(without)

    def is_matrix(name: str) -> bool:
        shape = layout.shapes[name]
        rows, size = (shape or (1,))[0], layout.spans[name][1]
        return not excluded(name) and 1 < rows < size

    return layout.only(is_matrix), layout.only(lambda name: not is_matrix(name))


def orthogonalise_wide(matrices: Sequence[Tensor], steps: int) -> list[Tensor]:
    """Newton–Schulz on stacks `[matrices, rows, columns]`, no more rows than columns, each matrix first divided by its
    norm: X ← Q X, Q = a I + b P + c P², P = X Xᵀ.

    Where there are more columns than rows, three steps and then two are made at once on the smaller P, which a step
    takes to Q P Q: half the arithmetic. P is then made anew from X: its small eigenvalues, squares of small singular
    values, are lost in rounding and grow tenfold with every step. The result is as accurate as that of single steps;
    with five at once it is not. Stacks with as many rows share the products of their P.
    """
    found = list(matrices)
    alike: dict[tuple[int, bool], list[int]] = {}
    for i, x in enumerate(found):
        alike.setdefault((x.shape[-2], x.shape[-1] >= WIDE * x.shape[-2]), []).append(i)
    for (_, wide), members in alike.items():
        stretches = [min(AT_ONCE, steps - done) for done in range(0, steps, AT_ONCE)] if wide else [1] * steps
        for number, stretch in enumerate(stretches):
            p = torch.cat([found[i] @ found[i].mT for i in members])
            if number == 0:
                square = p.diagonal(dim1=-2, dim2=-1).sum(-1, dtype=torch.promote_types(p.dtype, torch.float32))
                inverse = 1 / square.clamp(min=SMALLEST**2)[:, None, None]  # of ‖X‖² = tr X Xᵀ
                q = (inverse.sqrt() * make_polynomials((inverse * p).to(p.dtype), stretch)).to(p.dtype)
            else:
                q = make_polynomials(p, stretch)
            for i, part in zip(members, q.split([len(found[i]) for i in members]), strict=True):
                found[i] = part @ found[i]
    return found


def make_polynomials(p: Tensor, steps: int) -> Tensor:
    """The product of the Q of some steps, which all commute."""
    one = A * torch.eye(p.shape[-1], dtype=p.dtype, device=p.device)
    product = q = one + B * p + C * (p @ p)
    for _ in range(steps - 1):
        p = q @ p @ q
        q = one + B * p + C * (p @ p)
        product = q @ product
    return product
