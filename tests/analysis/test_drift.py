"""Drift, cosines and spreads on cases whose answer is known without computing."""

import math

import pytest
import torch

from fedkeel.analysis.drift import accuracy_spread, cosines, drift
from fedkeel.core.trees import Tree, layout


def moves(*rows):
    return Tree(torch.tensor(rows, dtype=torch.float64), layout((("w", (len(rows[0]),)),)))


def test_clients_that_move_at_right_angles():
    found = drift(moves([3.0, 0.0], [0.0, 4.0]))
    assert (found.mean, found.least, found.most) == (3.5, 3.0, 4.0)
    assert found.cosine == pytest.approx(0, abs=1e-15)
    assert found.agreement == pytest.approx(2.5 / 3.5)  # the mean move is (1.5, 2)
    assert found.spread == pytest.approx(2.5)  # each is (±1.5, ∓2) away from it


def test_clients_that_move_alike_and_clients_that_cancel():
    alike = drift(moves([1.0, 2.0], [2.0, 4.0], [0.5, 1.0]))
    assert alike.cosine == pytest.approx(1)
    assert alike.agreement == pytest.approx(1)
    against = drift(moves([1.0, 2.0], [-1.0, -2.0]))
    assert against.cosine == pytest.approx(-1)
    assert against.agreement == pytest.approx(0, abs=1e-12)


def test_the_spread_of_clients_that_nearly_agree_is_no_rounding():
    generator = torch.Generator().manual_seed(0)
    common, apart = torch.randn(2000, generator=generator), 1e-4 * torch.randn(5, 2000, generator=generator)
    rows = common + apart
    exact = (rows.double() - rows.double().mean(0)).norm(dim=1).square().mean().sqrt()
    found = drift(Tree(rows, layout((("w", (2000,)),))))
    assert found.spread == pytest.approx(float(exact), rel=1e-3)


def test_cosines_are_those_of_the_rows():
    generator = torch.Generator().manual_seed(0)
    tree = moves(*torch.randn(5, 30, generator=generator, dtype=torch.float64).tolist())
    expected = torch.nn.functional.cosine_similarity(tree.buffer[:, None], tree.buffer[None], dim=-1)
    assert torch.allclose(cosines(tree), expected, atol=1e-12)


def test_a_client_that_stays_is_not_nan():
    found = drift(moves([0.0, 0.0], [1.0, 0.0]))
    assert all(math.isfinite(value) for value in found.named().values())
    assert found.cosine == 0
    alone = drift(moves([0.0, 2.0]))
    assert (alone.mean, alone.cosine, alone.agreement, alone.spread) == (2, 1, 1, 0)


def test_spread_of_accuracies():
    found = accuracy_spread([0.1 * i for i in range(25)])
    assert found.least == 0
    assert found.worst_tenth == pytest.approx(0.05)  # the mean of 0.0 and 0.1
    assert found.mean == pytest.approx(1.2)
    assert found.deviation == pytest.approx(0.1 * math.sqrt((25**2 - 1) / 12))
