"""The compiler's pass around a filter changes where numbers are multiplied, not what comes out."""

from __future__ import annotations

import operator
from typing import Any

import torch
from for_each import for_each
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fedkeel.kernels.band import high_pass

SPANS = [0, 2, 40, 3, 80, 1, 20, 0]
HIGH, ONTO = torch.ops.fedkeel.high_pass.default, torch.ops.fedkeel.high_pass_onto.default


def norm(g: Tensor) -> Tensor:
    return torch.linalg.vector_norm(g, dim=-1, keepdim=True)


def climb(g: Tensor, w: Tensor) -> Tensor:
    return w + torch.ops.fedkeel.high_pass(g / (norm(g) + 1e-7) * 0.1, SPANS)


CASES = {
    "as FedFFT climbs": (climb, True),
    "added on the other side": (lambda g, w: torch.ops.fedkeel.high_pass(norm(g) * 2 * g, SPANS) + w, False),
    "scaled after": (lambda g, w: torch.ops.fedkeel.high_pass(g * norm(g), SPANS) + w, True),
    "not scaled": (lambda g, w: w + torch.ops.fedkeel.high_pass(g, SPANS), False),
    "by a number": (lambda g, w: w + torch.ops.fedkeel.high_pass(g * 0.5, SPANS), False),
    "not by client": (lambda g, w: w + torch.ops.fedkeel.high_pass(g * w, SPANS), False),
    "used twice": (lambda g, w: operator.mul(*(2 * [torch.ops.fedkeel.high_pass(g * norm(g), SPANS)])) + w, False),
    "scaled input used elsewhere": (
        lambda g, w: (lambda s: w + torch.ops.fedkeel.high_pass(s, SPANS) + s)(g * norm(g)),
        False,
    ),
}


@for_each("name", CASES)
def test_the_rewritten_graph_computes_the_same(name: str) -> None:
    f, rewritten = CASES[name]
    draw = torch.Generator().manual_seed(0)
    g, w = torch.randn(2, 3, 100, generator=draw, dtype=torch.float64)
    traced: Any = make_fx(f, tracing_mode="fake")(g, w)
    from fedkeel.kernels.fuse_filter_pass import FuseFilter  # importing the compiler takes a second

    FuseFilter()(traced.graph)
    traced.recompile()
    targets = [node.target for node in traced.graph.nodes]
    assert (ONTO in targets) == rewritten
    assert (HIGH in targets) != rewritten
    wanted = f(g, w)  # type: ignore[operator]
    assert float((traced(g, w) - wanted).norm() / wanted.norm()) < 1e-14


def test_the_filter_is_linear_in_what_is_absorbed() -> None:
    g = torch.randn(3, 100, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    scale = torch.tensor([[2.0], [0.5], [-3.0]], dtype=torch.float64)
    assert float((high_pass(scale * g, SPANS) - scale * high_pass(g, SPANS)).abs().max()) < 1e-13
