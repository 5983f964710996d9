"""Muon: steps of the clients along orthogonalised matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod, sqrt
from typing import Literal

import torch
from torch import Tensor

from fedkeel.core.layout import Layout, segments
from fedkeel.core.rule import Local, Rule, Setting, State, newer_field
from fedkeel.core.trees import Tree
from fedkeel.errors import MethodError
from fedkeel.kernels.newton_schulz import TOGETHER, orthogonalise
from fedkeel.ranges import Count, Positive, ShareBelowOne
from fedkeel.rules.layers import Patterns, matcher, names_of
from fedkeel.rules.optimisers import Moments, Optimiser, divide_moments, mix, mix_squares

__all__ = ["Muon"]


@dataclass(frozen=True)
class Muon(Optimiser, stackable=True):
    """Step along the orthogonalised momentum of each matrix, O(U): all its singular values near 1. The rest: AdamW.

    M ← μ M + (1 − μ) G; U = μ M + (1 − μ) G with nesterov = True, else M. O by `steps` of Newton–Schulz, X ← a X + (b X
    Xᵀ + c (X Xᵀ)²) X from U / ‖U‖: singular values of ‖U‖ / 100 or more end in [0.68, 1.13], smaller ones below 1.2. A
    convolution is the matrix of its outputs times all else; vectors, and what one row holds, are no matrices; nor are
    parameters that match `without`. scale = match_rms_adamw steps by 0.2 √(longer side), so that AdamW's learning rates
    fit; original by √max(1, rows / columns). momentum = 0 orthogonalises the gradient. precision = full multiplies in
    the type of the model, bfloat16 faster and to a few per cent; auto takes bfloat16 where the network computes in it.
    beta1, beta2 and eps are those of the AdamW; other_rate = 1 gives it the same learning rate. moments = reset begins
    every round anew; keep goes on with the client's own; average has the server average and send them. The experiment's
    weight decay is decoupled: it stands behind. others = same treats the AdamW's moments alike; reset begins them anew
    in every round. (Muon, Jordan et al. 2024; the scale: Liu et al. 2025)
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
    others: Literal["same", "reset"] = newer_field("same")
    slots = ("muon_m", "muon_adamw_m", "muon_adamw_v")
    counter = "muon_count"

    @property
    def rates(self) -> tuple[float, ...]:  # type: ignore[override]
        return (3e-4, 1e-3, 3e-3, 1e-2) if self.scale == "match_rms_adamw" else (3e-3, 1e-2, 3e-2, 1e-1)

    @property
    def lasting(self) -> tuple[str, ...]:
        return super().lasting[:1] if self.others == "reset" else super().lasting

    def count_step(self, client: State, at: Local) -> Tensor:
        # of the AdamW's moments, which alone are divided by it
        return super().count_step(client, at) if self.others == "same" else at.step.to(at.params.buffer.dtype) + 1

    def settled(self, setting: Setting) -> Rule:
        precision = ("bfloat16" if setting.lowered else "full") if self.precision == "auto" else self.precision
        fitted = replace(self, without=names_of(self.without, setting, self), precision=precision)
        if not split_matrices(setting.layout, fitted.without)[0].shapes:
            left = " left: `without` names them all" if self.without else ""
            raise MethodError(f"Muon steps along matrices, but the model has none{left}.", 'optimizer = "adamw"')
        return fitted

    def first_moments(self, params: Tree) -> State:
        matrices, others = (params.only(part).zeros() for part in split_matrices(params.layout, self.without))
        return {"muon_m": matrices, "muon_adamw_m": others, "muon_adamw_v": others}

    def turn(self, tree: Tree, moments: State, count: Tensor) -> tuple[Tree, State]:
        matrices, others = (tree.only(part) for part in split_matrices(tree.layout, self.without))
        mixed, ahead = [], []
        # block by block: a compiled step then reads gradient and momentum once, and not once more for the matrices
        for g, old in zip(cut_blocks(matrices), cut_blocks(moments["muon_m"]), strict=True):
            mixed.append(torch.lerp(old, g, 1 - self.momentum))
            ahead.append(torch.lerp(g, mixed[-1], self.momentum) if self.nesterov else mixed[-1])
        momentum = Tree(torch.cat(mixed, -1), matrices.layout)
        m = mix(moments["muon_adamw_m"], others, self.beta1)
        v = mix_squares(moments["muon_adamw_v"], others, self.beta2)
        rest = self.other_rate * divide_moments(m, v, self.beta1, self.beta2, self.eps, count)
        return join(tree.layout, self.orthogonalise(ahead, matrices.layout), rest), {
            "muon_m": momentum, "muon_adamw_m": m, "muon_adamw_v": v,
        }  # fmt: skip

    def orthogonalise(self, blocks: Sequence[Tensor], layout: Layout) -> Tree:
        """O of all matrices, times the scale."""
        given, scales = [], []
        for block, (_, leaves, shape) in zip(blocks, layout.blocks, strict=True):
            high, wide = shape[0], prod(shape[1:])
            short = block.to(torch.bfloat16) if self.precision == "bfloat16" else block
            given.append(short.reshape((-1, leaves, high, wide)))
            scales.append(0.2 * sqrt(max(high, wide)) if self.scale == "match_rms_adamw" else sqrt(max(1, high / wide)))
        found = orthogonalise(given, scales, self.steps, TOGETHER)
        return Tree(found.reshape((*blocks[0].shape[:-1], -1)).to(blocks[0].dtype), layout)


def cut_blocks(tree: Tree) -> list[Tensor]:
    """Cut a tree into its blocks of one shape: `[..., numbers]` each."""
    return [tree.buffer.narrow(-1, offset, leaves * prod(shape)) for offset, leaves, shape in tree.layout.blocks]


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
