"""Filters against worked-out vectors, and the laws of projections."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter1d

import fedkeel as fk
from fedkeel.core.contract import name_of
from fedkeel.methods.composition import load_rule, save_rule
from fedkeel.rules import RULES
from fedkeel.rules.filters import ORDERS

EIGHT = torch.arange(1.0, 9, dtype=torch.float64)


def through(rule, leaf, key=0):
    tree = fk.Tree.of({"w": leaf})
    zero = torch.tensor(0.0)
    at = fk.Local(tree, tree, {}, None, zero, zero, zero, torch.tensor(key))
    return rule.step(tree, {}, at)[0]["w"]


def close(found, expected, atol=1e-6):
    torch.testing.assert_close(found.flatten(), torch.tensor(expected, dtype=found.dtype), atol=atol, rtol=0)


LOW_TWO = [-2.5, -0.08578644, 0.91421356, 0.5, -0.5, -0.91421356, 0.08578644, 2.5]


def test_high_pass_of_eight_and_of_seven_numbers():
    close(through(fk.HighPass(0.2), EIGHT), [-3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5])
    close(through(fk.HighPass(0.4), EIGHT), LOW_TWO)
    close(through(fk.HighPass(0.25), EIGHT[:7]), [-3.0, -2, -1, 0, 1, 2, 3])
    close(through(fk.HighPass(0.5), EIGHT[:7]), [-2, 0.24697960, 0.80193774, 0, -0.80193774, -0.24697960, 2])
    close(through(fk.HighPass(0.4), EIGHT[:4]), [-1.5, -0.5, 0.5, 1.5])


def test_low_pass_removes_the_highest_bins():
    close(through(fk.LowPass(0.2), EIGHT), [1.5, 1.5, 3.5, 3.5, 5.5, 5.5, 7.5, 7.5])


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("0123", LOW_TWO),
        ("1230", [-3, -1.292893, -2, -1.707107, 1.707107, 2, 1.292893, 3]),
        ("3210", [-3.25, -2.75, -0.896447, -1.103553, 1.103553, 0.896447, 2.75, 3.25]),
    ],
)
def test_orders_of_flattening(order, expected):
    close(through(fk.HighPass(0.4, order=order), EIGHT.reshape(2, 2, 2, 1)), expected)


@pytest.mark.parametrize("order", ["0123", "1230"])
def test_tensors_of_just_enough_axes_are_filtered_and_those_of_fewer_are_not(order):
    for dims, shape in ((0, (8,)), (1, (8,)), (2, (2, 4))):
        close(through(fk.HighPass(0.4, dims, order), EIGHT.view(shape)), LOW_TWO)
    assert torch.equal(through(fk.HighPass(0.4, 2, order), EIGHT), EIGHT)


def test_a_share_that_numbers_round_down_to_just_below_a_coefficient_counts_it():
    assert 0.29 * 100 < 29
    left = torch.fft.rfft(through(fk.HighPass(0.29), torch.arange(198, dtype=torch.float64)))
    assert int((left.abs() < 1e-9).sum()) == 29  # of 100


def test_moving_averages():
    close(through(fk.PoolDetrend(3), EIGHT[:5]), [-0.5, 0, 0, 0, 0.5])
    ramp = torch.arange(200.0, dtype=torch.float64)
    inside = through(fk.GaussianDetrend(2.0), ramp)[20:-20]
    torch.testing.assert_close(inside, torch.zeros_like(inside), atol=1e-9, rtol=0)
    drawn = torch.randn(60, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean = gaussian_filter1d(drawn.numpy(), 2.0, mode="mirror", truncate=4.0)  # mirrored at the ends
    torch.testing.assert_close(through(fk.GaussianDetrend(2.0), drawn), drawn - torch.from_numpy(mean))
    for rule in (fk.PoolDetrend(25), fk.GaussianDetrend(7.5)):
        torch.testing.assert_close(through(rule, EIGHT), EIGHT)  # shorter than the window


def test_two_dimensional_filter_removes_each_kernels_mean_and_leaves_points():
    kernels = torch.randn(2, 3, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = through(fk.HighPass2d(0.05), kernels)
    torch.testing.assert_close(found, kernels - kernels.mean((-2, -1), keepdim=True))
    torch.testing.assert_close(through(fk.HighPass2d(0.05), kernels[..., :1, :1]), kernels[..., :1, :1])


def test_two_dimensional_filter_removes_a_share_of_the_coefficients_that_are_nearest_to_the_origin():
    """A real kernel of 5 × 5 has 5 × 3 coefficients: ⌊0.4 · 15⌋ = 6 of them are removed."""
    kernel = torch.randn(1, 1, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    left = torch.fft.rfft2(through(fk.HighPass2d(0.4), kernel))[0, 0]
    near = torch.hypot(torch.fft.fftfreq(5)[:, None], torch.fft.rfftfreq(5)[None]) < 0.3
    assert int(near.sum()) == 6
    assert torch.equal(left.abs() < 1e-9, near)


def test_limits_on_coordinates_and_lengths():
    close(through(fk.ClipMedian(2.0), torch.tensor([1.0, -1.0, 1.0, 9.0, -9.0])), [1, -1, 1, 2, -2])
    shortened = through(fk.Rescale(0.4), EIGHT)
    torch.testing.assert_close(shortened.norm(), torch.tensor(3.83227, dtype=torch.float64), atol=1e-5, rtol=0)
    assert torch.cosine_similarity(shortened, EIGHT, dim=0).item() == pytest.approx(1.0)


def test_on_touches_only_what_matches():
    tree = fk.Tree.of({"body": EIGHT, "fc": EIGHT.clone()})
    zero = torch.tensor(0.0)
    at = fk.Local(tree, tree, {}, None, zero, zero, zero, zero)
    found = fk.On("f*", fk.HighPass(0.4)).step(tree, {}, at)[0]
    close(found["fc"], LOW_TWO)
    assert torch.equal(found["body"], EIGHT)
    with pytest.raises(fk.MethodError, match="without memory"):
        fk.On("f*", fk.ControlVariates())


@dataclass(frozen=True)
class Doubles(fk.Rule):
    """Doubles what another rule keeps."""

    reads = ("c_i",)

    def step(self, tree, client, at):
        return tree + client["c_i"], client | {"c_i": 2 * client["c_i"]}


@pytest.mark.parametrize("patterns", ["f*", "*"])
@pytest.mark.parametrize(
    "rule", [fk.DistilAscent(0.1), fk.SharedLayers(0.1), fk.PredictedPosition(0.1), Doubles()], ids=name_of
)
def test_on_narrows_what_the_rule_reads_of_the_whole_model(rule, patterns):
    """The model that the server sent, and slots of other rules: what matches is as in a model that has no more."""
    draw = torch.Generator().manual_seed(1)
    tree, params, start, sent, momentum, c, c_i = (
        fk.Tree.of({name: torch.randn(2, 3, generator=draw) for name in ("body", "fc")}) for _ in range(7)
    )
    message, alpha, zero = {"params": sent, "momentum": momentum, "c": c}, {"alpha": torch.tensor(0.1)}, torch.tensor(0)

    def step(one, narrow):
        at = fk.Local(narrow(params), narrow(start), {n: narrow(t) for n, t in message.items()} | alpha, narrow(tree),
                      zero, zero + 1, zero, zero)  # fmt: skip
        return one.step(narrow(tree), {"c_i": narrow(c_i)}, at)

    part = tree.layout.only(lambda name: patterns == "*" or name == "fc")
    (found, client), (expected, slots) = step(fk.On(patterns, rule), lambda t: t), step(rule, lambda t: t.only(part))
    assert torch.equal(found.only(part).buffer, expected.buffer)
    assert torch.equal(client["c_i"].only(part).buffer, slots["c_i"].buffer)
    if patterns == "f*":
        assert torch.equal(found["body"], torch.zeros(2, 3) if rule.needs_gradient else tree["body"])
        assert torch.equal(client["c_i"]["body"], c_i["body"])


PROJECTIONS = [lambda r, order: fk.HighPass(r, order=order), lambda r, order: fk.LowPass(r, order=order)]


@pytest.mark.parametrize("make", PROJECTIONS)
@settings(max_examples=40, deadline=None)
@given(length=st.integers(1, 200), ratio=st.floats(0, 1), order=st.sampled_from(ORDERS), seed=st.integers(0, 99))
def test_bands_are_orthogonal_projections(make, length, ratio, order, seed):
    v = torch.randn(length, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    once = through(make(ratio, order), v)
    torch.testing.assert_close(through(make(ratio, order), once), once, atol=1e-12, rtol=0)
    assert once.norm() <= v.norm() * (1 + 1e-12)
    assert (once @ v).item() == pytest.approx((once @ once).item(), abs=1e-9)


@pytest.mark.parametrize("name", ["HighPass", "LowPass", "RandomBand"])
def test_the_ends_of_the_ratio(name):
    torch.testing.assert_close(through(RULES[name](0.0), EIGHT), EIGHT)
    assert through(RULES[name](1.0), EIGHT).abs().max() < 1e-12
    assert through(RULES[name](0.5), EIGHT[:1]).shape == (1,)


def test_what_filters_makes_nothing_of_nothing():
    filters = [rule for rule in RULES.values() if rule.filters and "round" not in rule.reads]
    assert {fk.HighPass, fk.PoolDetrend, fk.ClipNorm, fk.Rescale} <= set(filters)
    given = {"ratio": 0.5, "max_norm": 1.0, "patterns": ("w",)}
    for kind in filters:
        rule = kind(**{field.name: given[field.name] for field in fields(kind) if field.name in given})
        assert not through(rule, torch.zeros(4, 2, 3, 3)).any(), kind
        assert through(rule, torch.randn(4, 2, 3, 3)).any(), kind


def test_a_random_band_is_drawn_from_the_key():
    one, same, other = (through(fk.RandomBand(0.4), EIGHT, key) for key in (1, 1, 2**40))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    spectrum = torch.fft.rfft(one).abs()
    assert int((spectrum < 1e-9).sum()) == 2


def test_tensors_of_different_lengths_lose_different_random_coefficients():
    lost = [
        torch.fft.rfft(through(fk.RandomBand(0.4), torch.arange(1.0, n + 1, dtype=torch.float64))).abs() < 1e-9
        for n in (64, 65)
    ]
    assert [len(one) for one in lost] == [33, 33]
    assert [int(one.sum()) for one in lost] == [13, 13]
    assert not torch.equal(*lost)


def test_a_rule_inside_a_rule_survives_a_file():
    rule = fk.On(("fc.*",), fk.HighPass(0.1))
    assert load_rule(save_rule(rule)) == rule
