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
WIDE = 1.5  # from this ratio of the sides on, products of the small side are fewer


@dataclass(frozen=True)
class Muon(Optimiser):
    """Step along the orthogonalised momentum of each matrix, O(U): all its singular values near 1. The rest: AdamW.

    M ← μ M + (1 − μ) G; U = μ M + (1 − μ) G with nesterov = True, else M. O by `steps` of Newton–Schulz,
    X ← a X + (b X Xᵀ + c (X Xᵀ)²) X from U / ‖U‖: singular values end in [0.68, 1.13]. A convolution is the matrix of
    its outputs times all else; vectors, and what one row holds, are no matrices; nor are parameters that match
    `without`. scale = match_rms_adamw steps by 0.2 √(longer side), so that AdamW's learning rates fit; original by
    √max(1, rows / columns). momentum = 0 orthogonalises the gradient. precision = full multiplies in the type of the
    model, bfloat16 faster and to a few per cent. beta1, beta2 and eps are those of the AdamW; other_rate = 1 gives it
    the same learning rate. moments = reset begins every round anew; keep goes on with the client's own; average has the
    server average and send them. The experiment's weight decay is decoupled: it stands behind.  (Muon, Jordan et al.
    2024; the scale: Liu et al. 2025)
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
    precision: Literal["full", "bfloat16"] = "full"
    slots: ClassVar[tuple[str, ...]] = ("muon_m", "muon_adamw_m", "muon_adamw_v")
    counter: ClassVar[str] = "muon_count"
    stackable: ClassVar[bool] = True

    @property
    def rates(self) -> tuple[float, ...]:  # type: ignore[override]
        return (3e-4, 1e-3, 3e-3, 1e-2) if self.scale == "match_rms_adamw" else (3e-3, 1e-2, 3e-2, 1e-1)

    def settled(self, setting: Setting) -> Rule:
        fitted = replace(self, without=names_of(self.without, setting, self))
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
    """Newton–Schulz on `[matrices, rows, columns]`, no more rows than columns.

    Where there are far more columns, all steps but the last product are made on P = X Xᵀ: X ← Q X with
    Q = a I + b P + c P² makes P ← Q P Q. That squares the singular values, so in float32 those below about 1e-3 of the
    norm are known less well; bfloat16 would lose those below 0.1.
    """
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=SMALLEST)
    if x.shape[-1] < WIDE * x.shape[-2] or x.dtype == torch.bfloat16:
        for _ in range(steps):
            p = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(p, p, p, beta=B, alpha=C), x, beta=A)
        return x
    diagonal = A * torch.eye(x.shape[-2], dtype=x.dtype, device=x.device)
    p = x @ x.mT
    product = q = torch.baddbmm(p, p, p, beta=B, alpha=C) + diagonal
    for _ in range(steps - 1):
        p = q @ p @ q
        q = torch.baddbmm(p, p, p, beta=B, alpha=C) + diagonal
        product = q @ product
    return product @ x
