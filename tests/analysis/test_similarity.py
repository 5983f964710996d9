"""CKA and projections: invariances, extremes, and closed forms."""

import numpy as np
import pytest
import torch

import fedkeel as fk
from fedkeel.analysis.embedding import pca, separation, spread, tsne
from fedkeel.analysis.similarity import layer_features, linear_cka, pairwise_cka


def features(samples, width, seed=0):
    return torch.randn(samples, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("samples", "width"), [(40, 6), (12, 50)])  # by features and by samples
def test_cka_does_not_see_rotation_scale_or_shift(samples, width):
    x = features(samples, width)
    rotation = torch.linalg.qr(features(width, width, 1)).Q
    assert linear_cka(x, 3 * x @ rotation + 2) == pytest.approx(1, rel=1e-12)
    assert 0 < linear_cka(x, features(samples, width, 2)) < 1


def test_cka_of_uncorrelated_and_of_constant_features_is_zero():
    x = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])
    y = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]])
    assert linear_cka(x, y) == pytest.approx(0, abs=1e-15)
    assert linear_cka(x, torch.ones(4, 3)) == 0
    for samples in (7, 49, 1000):  # the mean of equal numbers is not quite that number
        constant = torch.full((samples, 3), 0.1, dtype=torch.float64)
        assert linear_cka(constant, constant) == 0
        assert linear_cka(features(samples, 3), constant) == 0
    noise = (0.1 + 1e-8 * features(20, 3)).float()  # constant up to the rounding of float32
    assert len(noise.unique()) > 1
    assert linear_cka(noise, features(20, 3, 1)) == 0
    assert linear_cka(0.1 + 1e-8 * features(20, 3), features(20, 3)) == pytest.approx(1, abs=1e-5)  # float64 has more


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_cka_of_short_numbers_sees_what_they_can_tell_apart(dtype):
    signs = torch.tensor([[1.0], [-1.0], [-1.0], [1.0], [1.0]])
    assert linear_cka((1 + 2 * torch.finfo(torch.bfloat16).eps * signs).to(dtype), signs) == pytest.approx(1)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_have_no_similarity_and_no_plane(wrong):
    x, broken = features(20, 3), features(20, 3)
    broken[4, 1] = wrong
    for one, other in ((x, broken), (broken, x)):
        with pytest.raises(fk.RequestError, match="finite"):
            linear_cka(one, other)
    with pytest.raises(fk.RequestError, match="finite"):
        pca(broken)


def test_a_large_constant_feature_hides_no_small_one():
    small = torch.tensor([[1.0], [-1.0], [2.0], [0.5], [3.0]])
    assert linear_cka(torch.cat([torch.full((5, 1), 1e8), small], 1), small) == pytest.approx(1)


def test_cka_of_one_feature_is_the_squared_correlation():
    x, y = features(30, 1), features(30, 1, 1)
    correlation = np.corrcoef(x[:, 0].numpy(), y[:, 0].numpy())[0, 1]
    assert linear_cka(x, y) == pytest.approx(correlation**2, rel=1e-10)


def test_pairwise_cka_is_symmetric_with_ones():
    table = pairwise_cka([features(20, 5, seed) for seed in range(3)])
    assert torch.equal(table, table.mT)
    assert table.diagonal().tolist() == [1, 1, 1]
    with pytest.raises(fk.RequestError, match="same samples"):
        linear_cka(features(3, 2), features(4, 2))


def test_features_are_those_of_the_layers_with_parameters():
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Dropout(0.9), torch.nn.Linear(3, 2))
    inputs = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    found = layer_features(module, inputs)
    assert list(found) == ["0", "3"]
    assert torch.equal(found["0"], module[0](inputs).detach())
    assert torch.equal(found["3"], module[3](module[0](inputs).relu()).detach())  # dropout was off
    assert module.training
    assert not module[0]._forward_hooks
    layer_features(module.eval(), inputs)
    assert not module.training


def test_principal_components_find_the_plane_that_points_lie_in():
    plane = torch.linalg.qr(features(30, 2)).Q  # orthonormal columns
    centred = features(8, 2, 3)
    centred = centred - centred.mean(0)
    found = pca(centred @ plane.mT + 5, 3)
    assert found.explained[:2].sum() == pytest.approx(1)
    assert float(found.explained[2]) == pytest.approx(0, abs=1e-12)
    # distances in the plane are kept
    assert torch.allclose(torch.cdist(found.points[:, :2], found.points[:, :2]), torch.cdist(centred, centred))
    with pytest.raises(fk.RequestError, match="components"):
        pca(centred, 3)


def test_tsne_keeps_two_far_groups_apart_and_repeats_itself():
    rows = torch.cat([features(6, 20), features(6, 20, 1) + 50])
    points = tsne(rows, of=3)
    assert points.shape == (12, 2)
    assert np.array_equal(points, tsne(rows, of=3))
    centres = points[:6].mean(0), points[6:].mean(0)
    width = max(
        np.linalg.norm(points[:6] - centres[0], axis=1).max(), np.linalg.norm(points[6:] - centres[1], axis=1).max()
    )
    assert np.linalg.norm(centres[0] - centres[1]) > width
    with pytest.raises(fk.RequestError, match="at least four"):
        tsne(rows[:3])


def test_tsne_is_given_the_distances_between_rows(monkeypatch):
    """Principal components keep them: all of a few features, and fifty of many."""
    given = []

    class Looking:
        def __init__(self, **settings): ...

        def fit_transform(self, rows):
            given.append(torch.from_numpy(rows))
            return rows[:, :2]

    monkeypatch.setattr("sklearn.manifold.TSNE", Looking)
    few, many = features(12, 6), features(60, 70)
    tsne(few)
    tsne(many)
    torch.testing.assert_close(torch.cdist(given[0], given[0]), torch.cdist(few, few))
    assert given[1].shape == (60, 50)


def test_spread_is_the_mean_distance_from_the_middle_of_the_class():
    rows = torch.tensor([[0.0, 0.0], [0.0, 2.0], [10.0, 0.0], [10.0, 4.0]])
    assert spread(rows, [0, 0, 1, 1]) == pytest.approx((1 + 1 + 2 + 2) / 4)
    assert spread(rows[:2]) == pytest.approx(1)


def test_classes_far_apart_have_a_silhouette_near_one():
    tight = torch.cat([features(20, 3), 1000 + features(20, 3, 1)])
    assert separation(tight, [0] * 20 + [1] * 20) == pytest.approx(1, abs=0.01)
    assert abs(separation(features(40, 3), [0, 1] * 20)) < 0.1
    assert separation(tight, [0] * 40) is None  # one class is apart from nothing


def test_equal_rows_are_one_point():
    found = pca(torch.ones(4, 3), 2)
    assert not found.points.any()
    assert not found.explained.any()
