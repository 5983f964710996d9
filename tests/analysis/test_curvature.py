"""Curvature by Hessian-vector products against dense Hessians and closed forms."""

import math

import numpy as np
import pytest
import torch

import fedkeel as fk
from fedkeel.analysis.curvature import gradient, hessian_product, loss_value, sharpness, top_eigenvalues, trace
from fedkeel.analysis.landscape import filter_normalised, line, plane, random_direction
from fedkeel.core.trees import Tree, layout


def flat(values):
    return Tree(torch.tensor(values, dtype=torch.float64), layout((("w", (len(values),)),)))


def quadratic(matrix):
    """½ wᵀ A w: the Hessian is A."""
    return [lambda tree: 0.5 * tree.buffer @ matrix @ tree.buffer]


def symmetric(size, seed=0):
    a = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return a + a.mT


@pytest.fixture
def network():
    """A small network's loss in two parts, at a point, and its dense Hessian."""
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(30, 4, generator=generator, dtype=torch.float64), torch.arange(30) % 3
    shapes = (("first", (5, 4)), ("second", (3, 5)))
    at = Tree(0.7 * torch.randn(35, generator=generator, dtype=torch.float64), layout(shapes))

    def part(rows):
        def loss(tree):
            output = torch.tanh(x[rows] @ tree["first"].mT) @ tree["second"].mT
            return torch.nn.functional.cross_entropy(output, y[rows], reduction="sum") / 30

        return loss

    loss = [part(slice(0, 10)), part(slice(10, 30))]
    dense = torch.autograd.functional.hessian(lambda w: sum(f(Tree(w, at.layout)) for f in loss), at.buffer)
    return loss, at, dense


def test_products_with_the_hessian_of_a_network(network):
    loss, at, dense = network
    product = hessian_product(loss, at)
    columns = torch.stack([product(unit) for unit in torch.eye(35, dtype=torch.float64)])
    assert torch.allclose(columns, dense, atol=1e-12)


def test_top_eigenvalues_of_a_network_are_those_of_its_dense_hessian(network):
    loss, at, dense = network
    expected = torch.linalg.eigvalsh(dense).flip(0)
    found = top_eigenvalues(hessian_product(loss, at), at, count=4, steps=35)
    assert found.values == pytest.approx(expected[:4].tolist(), rel=1e-8)
    for value, vector in zip(found.values, found.vectors.buffer, strict=True):
        assert float(vector.norm()) == pytest.approx(1, rel=1e-10)
        assert float((dense @ vector - value * vector).norm()) < 1e-7


def test_few_steps_bound_the_eigenvalue_from_below_and_the_residual_says_how_far(network):
    loss, at, dense = network
    expected = torch.linalg.eigvalsh(dense)
    found = top_eigenvalues(hessian_product(loss, at), at, count=1, steps=5)
    assert found.values[0] <= float(expected[-1]) + 1e-12
    nearest = float((expected - found.values[0]).abs().min())
    assert nearest <= found.residuals[0] * (1 + 1e-6) + 1e-12
    residual = dense @ found.vectors.buffer[0] - found.values[0] * found.vectors.buffer[0]
    assert float(residual.norm()) == pytest.approx(found.residuals[0], rel=1e-6)


def test_eigenvalues_of_a_hessian_of_low_rank():
    matrix = torch.diag(torch.tensor([9.0, 4.0] + [0.0] * 18, dtype=torch.float64))
    found = top_eigenvalues(hessian_product(quadratic(matrix), flat([1.0] * 20)), flat([1.0] * 20), 2, steps=20)
    assert found.values == pytest.approx([9, 4], rel=1e-10)


def test_an_eigenvalue_that_repeats_is_found_as_often_as_it_is_there():
    matrix = torch.diag(torch.tensor([5.0, 5.0, 5.0, 2.0, 1.0, 1.0], dtype=torch.float64))
    found = top_eigenvalues(hessian_product(quadratic(matrix), flat([1.0] * 6)), flat([1.0] * 6), 4)
    assert found.values == pytest.approx([5, 5, 5, 2], rel=1e-10)
    rows = found.vectors.buffer
    assert torch.allclose(rows @ rows.mT, torch.eye(4, dtype=torch.float64), atol=1e-10)
    assert torch.allclose(rows @ matrix, torch.tensor(found.values, dtype=torch.float64)[:, None] * rows, atol=1e-10)
    flatland = top_eigenvalues(lambda v: 0 * v, flat([1.0] * 6), 2)
    assert flatland.values == [0, 0]


def test_there_are_as_many_eigenvalues_as_asked_for_however_few_the_steps():
    product = hessian_product(quadratic(symmetric(6)), flat([1.0] * 6))
    assert len(top_eigenvalues(product, flat([1.0] * 6), count=5, steps=2).values) == 5


@pytest.mark.slow
def test_trace_is_exact_for_a_diagonal_hessian_and_within_its_error_for_another():
    diagonal = torch.diag(torch.arange(1.0, 13.0, dtype=torch.float64))
    at = flat([0.3] * 12)
    exact = trace(hessian_product(quadratic(diagonal), at), at, probes=2)
    assert exact.value == pytest.approx(78, rel=1e-12)
    assert exact.error == pytest.approx(0, abs=1e-12)
    matrix = symmetric(12)
    found = trace(hessian_product(quadratic(matrix), at), at, probes=1000, seed=3)
    assert abs(found.value - float(matrix.trace())) < 4 * found.error
    # Var(zᵀ A z) = 2 Σ_{i≠j} A_ij² for random signs
    off = matrix - torch.diag(matrix.diagonal())
    assert found.error == pytest.approx(float((2 * off.square().sum()).sqrt()) / 1000**0.5, rel=0.1)
    # of two probes x and y it is |x − y| / 2
    x, both = (trace(lambda v: matrix @ v, at, probes=n) for n in (1, 2))
    y = 2 * both.value - x.value
    assert abs(x.value - y) > 1
    assert both.error == pytest.approx(abs(x.value - y) / 2)


def test_a_loss_without_curvature():
    slope = torch.tensor([3.0, 4.0], dtype=torch.float64)
    loss, at = [lambda tree: slope @ tree.buffer], flat([0.5, -1.0])
    assert torch.equal(hessian_product(loss, at)(slope), torch.zeros(2, dtype=torch.float64))
    assert sharpness(loss, at, rho=0.1) == pytest.approx(0.5)  # ρ ‖slope‖
    assert torch.equal(gradient(loss, at).buffer, slope)


def test_sharpness_of_a_bowl_is_found_by_ascent():
    """At the minimum of ½ (w_0² + 9 w_1²) the worst point at radius ρ is along w_1: 9/2 ρ²."""
    matrix = torch.diag(torch.tensor([1.0, 9.0], dtype=torch.float64))
    near = flat([1e-4, 1e-4])
    found = sharpness(quadratic(matrix), near, rho=0.2, steps=20)
    assert found == pytest.approx(4.5 * 0.2**2, rel=1e-2)
    assert sharpness(quadratic(matrix), near, rho=0.2, steps=1) <= found
    assert sharpness(quadratic(matrix), near, rho=0.0) == pytest.approx(0, abs=1e-15)
    with pytest.raises(fk.RequestError, match="radius"):
        sharpness(quadratic(matrix), near, rho=-1)


def test_sharpness_of_a_saddle_is_that_of_the_way_up():
    """Of ½ (w_0² − 3 w_1²) it is ½ ρ², along w_0; the gradient's own direction is drawn to w_1 and falls."""
    matrix = torch.diag(torch.tensor([1.0, -3.0], dtype=torch.float64))
    assert sharpness(quadratic(matrix), flat([1e-4, 1e-4]), rho=0.2, steps=20) == pytest.approx(0.5 * 0.2**2, rel=0.05)


def test_a_curvature_that_is_not_finite_has_no_eigenvalues():
    with pytest.raises(fk.RequestError, match="no finite curvature"):  # which `analyse` leaves out, and goes on
        top_eigenvalues(lambda v: v * float("nan"), flat([1.0] * 6))


def test_sharpness_never_falls_with_more_steps():
    """On a slope cut by waves the ascent steps over the crest that it found first."""
    waves = [lambda tree: (torch.sin(20 * tree.buffer) * torch.tensor([1.0, 0.7], dtype=torch.float64)).sum()]
    rises = [sharpness(waves, flat([0.0, 0.0]), rho=0.1, steps=steps) for steps in range(1, 8)]
    assert rises == sorted(rises)


@pytest.mark.parametrize("start", [-1.0, 0.05])  # not a number here, or after the first step of ascent
def test_where_the_loss_is_not_a_number_the_sharpness_is_none(start):
    assert math.isnan(sharpness([lambda tree: -tree.buffer.sum().sqrt()], flat([start]), rho=0.1, steps=3))


def test_landscapes_of_a_bowl():
    matrix = torch.diag(torch.tensor([2.0, 8.0], dtype=torch.float64))
    at, loss = flat([0.0, 0.0]), quadratic(matrix)
    across = line(loss, at, flat([1.0, 0.0]), radius=2.0, points=5)
    assert across.values.tolist() == pytest.approx([4, 1, 0, 1, 4])
    square = plane(loss, at, flat([1.0, 0.0]), flat([0.0, 1.0]), radius=1.0, points=3)
    assert np.allclose(square.values, [[5, 4, 5], [1, 0, 1], [5, 4, 5]])  # rows are the second direction
    assert square.values[1, 1] == loss_value(loss, at)
    with pytest.raises(fk.RequestError, match="odd number"):
        line(loss, at, at, points=4)


def test_filter_normalised_directions_have_the_lengths_of_the_models_filters():
    generator = torch.Generator().manual_seed(0)
    shapes = (("conv.weight", (6, 3, 2, 2)), ("conv.bias", (6,)), ("head.weight", (4, 6)))
    params = Tree(torch.randn(6 * 12 + 6 + 24, generator=generator, dtype=torch.float64), layout(shapes))
    direction = random_direction(params, seed=5)
    for name in ("conv.weight", "head.weight"):
        own, theirs = direction[name].flatten(1), params[name].flatten(1)
        assert torch.allclose(own.norm(dim=1), theirs.norm(dim=1), rtol=1e-12)
    assert not direction["conv.bias"].any()
    assert torch.equal(direction.buffer, random_direction(params, seed=5).buffer)
    assert not torch.equal(direction.buffer, random_direction(params, seed=5, number=1).buffer)
    # a model whose filters are twice as long has the same landscape along its own direction
    again = filter_normalised(3 * direction, 2.0 * params)
    assert torch.allclose(again.buffer, 2 * direction.buffer, rtol=1e-12)


def test_a_model_of_vectors_has_a_landscape():
    params = Tree(torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64), layout((("one", ()), ("two", (2,)))))
    direction = random_direction(params)
    assert [float(direction[name].norm()) for name in ("one", "two")] == pytest.approx([2, 5])
    assert len(set(line(quadratic(torch.eye(3, dtype=torch.float64)), params, direction, points=5).values)) > 1
