"""Spectral drift against sums written out from the papers' formulas, and against laws of the transform."""

import math
from itertools import combinations, pairwise

import pytest
import torch

import fedkeel as fk
from fedkeel.analysis.filtered import by
from fedkeel.analysis.spectrum import (
    band_distances,
    band_drift,
    band_edges,
    band_variance,
    client_distances,
    heterogeneity,
    layer_divergence,
    summarise_bands,
)
from fedkeel.core.trees import Tree, stack

CLIENTS, BANDS = 4, 5


def draw(seed, shapes, clients=CLIENTS):
    generator = torch.Generator().manual_seed(seed)
    one = lambda: Tree.of(  # noqa: E731
        {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    )
    return stack([one() for _ in range(clients)])


SHAPES = {"b.weight": (6, 5), "a.weight": (5, 6), "c.weight": (7, 3), "c.bias": (7,), "scale": ()}


@pytest.fixture
def tree():
    return draw(0, SHAPES)


def by_the_formula(tree, bands):
    """SpecGradFilter eq. 4, pair by pair and layer by layer."""
    found = {name: [[] for _ in range(bands)] for name in tree}
    for name, leaf in tree.items():
        hat = torch.fft.rfft(leaf.reshape(len(leaf), -1))
        edges = [math.floor(m * hat.shape[1] / bands) for m in range(bands + 1)]
        for m in range(bands):
            for j, k in combinations(range(len(leaf)), 2):
                if edges[m] < edges[m + 1]:
                    found[name][m].append(float((hat[j] - hat[k])[edges[m] : edges[m + 1]].abs().square().sum().sqrt()))
    return found


def test_distance_and_deviation_are_equation_4(tree):
    expected = by_the_formula(tree, BANDS)
    drift = band_drift(tree, BANDS)
    for m in range(BANDS):
        every = [value for layer in expected.values() for value in layer[m]]
        mean = sum(every) / len(every)
        assert float(drift.distance[m]) == pytest.approx(mean, rel=1e-10)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in every) / len(every))
        assert float(drift.deviation[m]) == pytest.approx(deviation, rel=1e-10)
    assert list(drift.layers) == list(SHAPES)
    plain = summarise_bands(tree, BANDS)
    for name, layer in expected.items():
        for m, values in enumerate(layer):
            mean = sum(values) / len(values) if values else math.nan
            deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values)) if values else math.nan
            found = [plain["layers"][name][m], plain["layer_deviation"][name][m]]
            assert found == pytest.approx([mean, deviation], rel=1e-10, nan_ok=True)


def test_a_shift_of_one_client_by_a_constant_lies_in_the_lowest_band_alone():
    base = draw(1, {"w": (8, 8)}, clients=1)
    shifted = Tree(torch.cat([base.buffer, base.buffer + 2.0]), base.layout)
    drift = band_drift(shifted, 4)
    # the coefficient of frequency 0 is the sum: 64 · 2
    assert drift.distance.tolist() == pytest.approx([128.0, 0, 0, 0], abs=1e-10)


def test_bands_add_up_to_the_distance_of_the_clients():
    """Parseval: over all bands, with every coefficient but the first and the last counted twice, ‖g_j − g_k‖² · n."""
    tree = draw(2, {"w": (9, 7)})  # 63 is odd: the last coefficient counts twice
    apart = band_distances(tree, BANDS)[:, 0]
    rows = tree["w"].flatten(1)
    pairs = list(combinations(range(CLIENTS), 2))
    for number, (j, k) in enumerate(pairs):
        difference = rows[j] - rows[k]
        twice = 2 * float(apart[:, number].square().sum()) - float(difference.sum()) ** 2
        assert twice == pytest.approx(63 * float(difference.square().sum()), rel=1e-10)


def test_variance_of_a_band_is_the_mean_variance_of_its_coefficients(tree):
    found = band_variance(tree, 3)
    assert list(found) == list(SHAPES)
    hat = torch.fft.rfft(tree["c.weight"].flatten(1))
    spread = (hat - hat.mean(0)).abs().square().mean(0)
    edges = band_edges(len(spread), 3)
    expected = [float(spread[a:b].mean()) for a, b in pairwise(edges)]
    assert found["c.weight"].tolist() == pytest.approx(expected, rel=1e-10)


def test_the_distance_of_a_client_is_its_mean_over_layers():
    """D_k(m) = mean_l ‖M_m ⊙ (F g_l^k − F ḡ_l)‖."""
    tree, expected = draw(3, {"a": (6, 5), "b": (7, 3), "c": (12,)}), torch.zeros(CLIENTS, 3, dtype=torch.float64)
    for name in tree:
        hat = torch.fft.rfft(tree[name].flatten(1))
        for m, (begin, end) in enumerate(pairwise(band_edges(hat.shape[1], 3))):
            expected[:, m] += (hat - hat.mean(0))[:, begin:end].abs().square().sum(1).sqrt() / 3
    torch.testing.assert_close(client_distances(tree, 3), expected)


def test_equal_clients_do_not_drift(tree):
    same = Tree(tree.buffer[:1].expand(3, -1), tree.layout)
    assert float(band_drift(same, BANDS).distance.nan_to_num().max()) == pytest.approx(0, abs=1e-12)
    assert heterogeneity(same, by(fk.HighPass(0.3))).total == pytest.approx(0, abs=1e-24)


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.3, 0.77, 1.0])
def test_heterogeneity_below_and_above_the_cut_adds_up(tree, ratio):
    found = heterogeneity(tree, by(fk.HighPass(ratio)))
    apart = tree - tree.mean().expand(CLIENTS)
    total = float(apart.dot(apart).mean())
    assert found.low + found.high == pytest.approx(total, rel=1e-12)
    assert (found.low == 0) == (ratio == 0)
    if ratio == 1:
        assert found.high == pytest.approx(0, abs=1e-20)
    assert found.low_share == pytest.approx(found.low / total)


def test_layer_divergence_is_equation_5(tree):
    high_pass = by(fk.HighPass(0.2))
    before, after = layer_divergence(tree), layer_divergence(tree, high_pass)
    for name in SHAPES:
        rows = tree[name].reshape(CLIENTS, -1)
        expected = (rows - rows.mean(0)).norm(dim=1).mean()
        assert before[name] == pytest.approx(float(expected), rel=1e-12)
        hat = torch.fft.rfft(rows)
        hat[:, : math.floor(0.2 * hat.shape[1])] = 0
        filtered = torch.fft.irfft(hat, n=rows.shape[1])
        expected = (filtered - filtered.mean(0)).norm(dim=1).mean()
        assert after[name] == pytest.approx(float(expected), rel=1e-10)
        assert after[name] <= before[name] * (1 + 1e-12)
        squared = (rows**2 - rows.mean(0) ** 2).norm(dim=1).mean()  # Φ need not be linear
        assert layer_divergence(tree, lambda t: t * t)[name] == pytest.approx(float(squared), rel=1e-10)


def test_one_client_is_refused(tree):
    with pytest.raises(fk.RequestError, match="at least two"):
        band_drift(Tree(tree.buffer[:1], tree.layout))
    with pytest.raises(fk.RequestError, match="at least one band"):
        band_edges(10, 0)


def test_the_variance_of_all_layers_is_the_mean_over_those_that_have_the_band():
    """A layer too short for a band has no variance there: it does not count as one without."""
    tree = draw(5, {"long": (40,), "short": (2,)})
    layers = torch.stack([*band_variance(tree, BANDS).values()])
    there = ~layers.isnan()
    assert not there.all()
    expected = [float(column[some].mean()) for column, some in zip(layers.T, there.T, strict=True)]
    assert summarise_bands(tree, BANDS)["variance"] == pytest.approx(expected, rel=1e-12)
