"""The Triton kernels of rows and weights against plain PyTorch: on a GPU, or in Triton's interpreter without one."""

from __future__ import annotations

import importlib
import importlib.util

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedkeel.core.layout import layout
from fedkeel.core.trees import Tree
from fedkeel.kernels.row_norms import NormaliseRows
from fedkeel.kernels.shortened import UNIT, align, shorten
from support.interpreter import run_interpreted

WHERE = layout((("a", (3, 5)), ("b", (10,)), ("c", (90, 100)), ("d", ()), ("e", (64, 2))))


def check_shortened(device: str, dtype: torch.dtype) -> None:
    for rows in (torch.randn(3, WHERE.size), torch.randn(WHERE.size).expand(3, -1)):
        params = Tree(rows.to(device), WHERE)
        found = align(params, dtype)
        assert found.buffer.stride(0) % UNIT == 0
        for name, leaf in params.items():
            assert torch.equal(found[name], leaf.to(dtype)), name
            assert found[name].storage_offset() % UNIT == 0, name


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def check_close(tolerance: float, **pairs: tuple[Tensor, Tensor]) -> None:
    for name, (found, wanted) in pairs.items():
        assert found.shape == wanted.shape, name
        assert float((found.double() - wanted).detach().norm() / wanted.detach().norm()) < tolerance, name


def leaf(clients: int, features: int, seed: int, device: str) -> Tensor:
    """A leaf in a flat buffer: at an odd place, with clients apart."""
    return drawn(clients, features + 5, seed=seed).to(device, torch.float32)[:, 3 : 3 + features]


def check_layer_norm(device: str, dtype: torch.dtype, tolerance: float) -> None:
    for rows, features, biased in ((37, 24, True), (300, 7, True), (1, 192, False), (9, 1000, True), (3, 4100, False)):
        x, dy = ((drawn(2, rows, features, seed=s) + s).to(device, dtype) for s in (1, 2))
        gain, bias = (leaf(2, features, s, device) for s in (3, 4))
        into = leaf(2, features, 5, device), leaf(2, features, 6, device)
        y = NormaliseRows.apply(x.requires_grad_(), x.new_zeros(()), gain, bias if biased else None, into, 1e-5)
        (dx,) = torch.autograd.grad(y, x, dy)
        given = [t.double().detach().requires_grad_() for t in (x, gain, bias)]
        wanted = F.layer_norm(given[0], (features,)) * given[1][:, None] + given[2][:, None] * biased
        slopes = torch.autograd.grad(wanted, given, dy.double())
        check_close(tolerance, y=(y, wanted), dx=(dx, slopes[0]), gain=(into[0], slopes[1]))
        if biased:
            check_close(tolerance, bias=(into[1], slopes[2]))


def check_bias(device: str, dtype: torch.dtype, tolerance: float) -> None:
    kernels = importlib.import_module("fedkeel.kernels.triton_rows")
    for shape in ((2, 300, 192), (3, 5, 4, 10), (2, 3000, 7), (2, 3, 1000), (1, 1, 1)):
        x, bias, into = drawn(*shape, seed=1).to(device, dtype), *(leaf(shape[0], shape[-1], s, device) for s in (2, 3))
        lift = bias.double().view(shape[0], *(1,) * (len(shape) - 2), shape[-1])
        kernels.sum_rows(x, into)
        sums = x.double().flatten(1, -2).sum(1)
        check_close(tolerance, y=(kernels.add_bias(x, bias), x.double() + lift), sums=(into, sums))


def check_all(device: str, dtype: torch.dtype, tolerance: float) -> None:
    check_shortened(device, dtype)
    check_layer_norm(device, dtype, tolerance)
    check_bias(device, dtype, tolerance)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_kernels_of_rows_equal_plain_pytorch_on_the_gpu(dtype: torch.dtype, tolerance: float) -> None:
    check_all("cuda", dtype, tolerance)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="checked on the GPU itself")
def test_kernels_of_rows_equal_plain_pytorch_in_the_interpreter() -> None:
    code = "import torch, test_row_kernels as t; t.check_all('cpu', torch.float32, 1e-5)"
    run_interpreted(code)


def test_shortened_weights_on_a_cpu_are_those_of_the_tree() -> None:
    params = Tree(torch.randn(2, WHERE.size), WHERE)
    for name, leaf in params.items():
        assert torch.equal(shorten(params, torch.bfloat16)[name], leaf.bfloat16()), name
