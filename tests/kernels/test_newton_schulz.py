"""Newton–Schulz of stacked clients on a GPU: its kernel against its twin, and as a captured graph."""

from __future__ import annotations

import importlib

import pytest
import torch

from fedkeel.kernels.newton_schulz import A, B, C, combine, orthogonalise

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def check_polynomial(device: str, dtype: torch.dtype, tolerance: float) -> None:
    triton_polynomial = importlib.import_module("fedkeel.kernels.triton_polynomial")
    for rows in (7, 64, 72):
        p = torch.randn(3, rows, rows, generator=torch.Generator().manual_seed(rows)).to(device, dtype)
        factors = torch.tensor([2.0, 0.5, 3.0], device=device)
        for squared in (None, p @ p):
            for factor in (None, factors):
                found = triton_polynomial.combine(p, squared, factor, (A, B, C))
                wide = [None if x is None else x.cpu().double() for x in (squared, factor)]
                wanted = combine(p.cpu().double(), *wide)
                assert (found.cpu().double() - wanted).norm() < tolerance * wanted.norm(), rows


@needs_gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_the_polynomials_kernel_equals_its_twin_on_the_gpu(dtype: torch.dtype, tolerance: float) -> None:
    check_polynomial("cuda", dtype, tolerance)


@needs_gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-3)])
def test_a_captured_graph_orthogonalises_as_the_cpu_does(dtype: torch.dtype, tolerance: float) -> None:
    """Replayed on new numbers, also where groups of matrices are branches of the graph."""
    shapes, generator = ((2, 10, 64), (1, 160, 96), (3, 192, 400)), torch.Generator().manual_seed(0)
    drawn = [[torch.randn(4, *shape, generator=generator, dtype=torch.float64) for shape in shapes] for _ in range(3)]
    given, scales = [x.to("cuda", dtype) for x in drawn[0]], [1.0, 2.0, 0.5]
    orthogonalise(given, scales, 5, 128)  # kernels are made outside a capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once = orthogonalise(given, scales, 5, 128)
        found = once + orthogonalise(given, scales, 5, 128)
    for stacks in drawn:
        for place, stack in zip(given, stacks, strict=True):
            place.copy_(stack)
        graph.replay()
        wanted = 2 * orthogonalise(stacks, scales, 5, 128)
        assert (found.cpu().double() - wanted).norm() < tolerance * wanted.norm()


@pytest.mark.parametrize("dtype", [pytest.param(torch.bfloat16, marks=pytest.mark.slow), torch.float32])
def test_no_singular_value_grows_beyond_what_newton_schulz_allows(dtype: torch.dtype) -> None:
    """Of small matrices with falling singular values, of which rounding may make negative squares."""
    for rows, columns in ((32, 9), (10, 128), (16, 27), (24, 200)):
        inner = min(rows, columns)
        generator = torch.Generator().manual_seed(rows)
        left = torch.linalg.qr(torch.randn(60, rows, inner, generator=generator)).Q
        right = torch.linalg.qr(torch.randn(60, columns, inner, generator=generator)).Q
        for fall in (1.0, 2.0):
            values = torch.arange(1, inner + 1) ** -fall * (0.5 + torch.rand(60, inner, generator=generator))
            given = (left * values[:, None]) @ right.mT
            found = orthogonalise([given[:, None].to(dtype)], [1.0], 5, 128).view(60, rows, columns)
            assert torch.linalg.matrix_norm(found.double(), 2).max() < 1.25
