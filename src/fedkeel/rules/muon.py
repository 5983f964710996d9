"""Muon: steps of the clients along orthogonalised matrices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import prod, sqrt
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedkeel.core.layout import Layout, Shape
from fedkeel.core.rule import Rule, Setting, State
from fedkeel.core.trees import Tree
from fedkeel.errors import MethodError
from fedkeel.ranges import Count, Positive, ShareBelowOne
from fedkeel.rules.layers import Patterns, matcher, names_of
from fedkeel.rules.optimisers import Moments, Optimiser, divide_moments, mix, mix_squares

__all__ = ["Muon"]

A, B, C = 3.4445, -4.7750, 2.0315  # of the polynomial that Newton–Schulz iterates: fast at small singular values
SMALLEST = 1e-7  # norm of a matrix
WIDE = 1.5  # from this ratio of the sides on, pairs of steps take less arithmetic


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
        rest = divide_moments(m, v, self.beta1, self.beta2, self.eps, count)
        turned = tree | (self.other_rate * rest) | ahead.map_by_shape(self.orthogonalise)
        return turned, {"muon_m": momentum, "muon_adamw_m": m, "muon_adamw_v": v}

    def orthogonalise(self, leaves: Tensor, shape: Shape) -> Tensor:
        """O of matrices or convolutions of one shape, times the scale."""
        rows = leaves.reshape((-1, shape[0], prod(shape[1:])))
        tall, columns = rows.shape[-2], rows.shape[-1]
        x = rows.to(torch.bfloat16) if self.precision == "bfloat16" else rows
        x = orthogonalise_wide(x.mT, self.steps).mT if tall > columns else orthogonalise_wide(x, self.steps)
        scale = 0.2 * sqrt(max(tall, columns)) if self.scale == "match_rms_adamw" else sqrt(max(1, tall / columns))
        return (scale * x.to(leaves.dtype)).reshape(leaves.shape)


@cache
def split_matrices(layout: Layout, without: Patterns) -> tuple[Layout, Layout]:
    """Split a model into its matrices, those that match `without` left out, and the rest."""
    excluded = matcher(without)

    def is_matrix(name: str) -> bool:
        shape = layout.shapes[name]
        rows, size = (shape or (1,))[0], layout.spans[name][1]
        return not excluded(name) and 1 < rows < size

    return layout.only(is_matrix), layout.only(lambda name: not is_matrix(name))


def orthogonalise_wide(x: Tensor, steps: int) -> Tensor:
    """Newton–Schulz on `[matrices, rows, columns]`, no more rows than columns: X ← Q X, Q = a I + b P + c P², P = X Xᵀ.

    Where there are more columns than rows, two steps are made at once on the smaller P, which the first takes to Q P Q:
    a third less arithmetic. P is then made anew from X: its small eigenvalues, squares of small singular values, are
    lost in rounding and would grow tenfold with every step. The result is as accurate as that of single steps.
    """
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=SMALLEST)
    pairs = steps // 2 if x.shape[-1] >= WIDE * x.shape[-2] else 0
    for _ in range(pairs):
        p = x @ x.mT
        first = make_polynomial(p)
        x = (make_polynomial(first @ p @ first) @ first) @ x
    for _ in range(steps - 2 * pairs):
        p = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(p, p, p, beta=B, alpha=C), x, beta=A)
    return x


def make_polynomial(p: Tensor) -> Tensor:
    """a I + b P + c P²."""
    return torch.baddbmm(p, p, p, beta=B, alpha=C) + A * torch.eye(p.shape[-1], dtype=p.dtype, device=p.device)
