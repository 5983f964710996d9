"""Controls of the filters: each shares one property with the filter, and nothing else."""

from __future__ import annotations

import pytest
import torch
from for_each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

import fedkeel as fk
from fedkeel.papers import find
from fedkeel.papers.reproduce import experiment_of
from problems import CENTRE, CURVATURE, quadratic, small_problem


def through(rule, tree, key=0):
    zero = torch.tensor(0.0)
    at = fk.Local(tree, tree, {}, None, zero, zero, zero, torch.tensor(key))
    return rule.step(tree, {}, at)[0]


def drawn(seed, *shapes):
    generator = torch.Generator().manual_seed(seed)
    return fk.Tree.of(
        {f"w{i}": torch.randn(shape, dtype=torch.float64, generator=generator) for i, shape in enumerate(shapes)}
    )


shapes = st.lists(st.sampled_from([(3,), (40,), (41,), (8, 9), (4, 3, 3, 3), (120, 40)]), min_size=1, max_size=4)
ratios = st.sampled_from([0.0, 0.01, 0.05, 0.3, 0.9, 1.0])


@settings(max_examples=60, deadline=None)
@given(shapes, ratios, st.sampled_from([0, 2]), st.integers(0, 2**62), st.integers(0, 99))
def test_a_random_filter_removes_the_energy_of_the_low_band_from_each_tensor(shapes, ratio, min_dims, key, seed):
    tree = drawn(seed, *shapes)
    low, rand = through(fk.HighPass(ratio, min_dims), tree), through(fk.RandomEnergy(ratio, min_dims), tree, key)
    for name, leaf in tree.items():
        energy, goal, whole = (t.square().sum().item() for t in (rand[name], low[name], leaf))
        assert energy == pytest.approx(goal, abs=1e-12 * whole)
        # a filter with real gains in [0, 1]: what it removes never points against what it leaves
        assert (rand[name] * (leaf - rand[name])).sum() >= -1e-9


def test_the_random_filter_is_drawn_from_the_key_and_spares_no_band():
    tree = drawn(3, (64, 64))
    one, same, other = (through(fk.RandomEnergy(0.3), tree, key)["w0"] for key in (1, 1, 2**40))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    gone = (torch.fft.rfft(one.flatten()).abs() < 1e-9).double()
    lower, upper = gone.chunk(2)
    assert abs(lower.mean() - upper.mean()) < 0.1  # 1024 draws each, of about a third: two standard errors are 0.04


@settings(max_examples=40, deadline=None)
@given(shapes, ratios, st.sampled_from([0, 2]), st.integers(0, 99))
def test_rescaling_leaves_the_filters_norm_and_its_own_direction(shapes, ratio, min_dims, seed):
    tree = drawn(seed, *shapes)
    low = through(fk.HighPass(ratio, min_dims), tree)
    each, whole = through(fk.Rescale(ratio, min_dims), tree), through(fk.Rescale(ratio, min_dims, whole=True), tree)
    assert whole.norm().item() == pytest.approx(low.norm().item(), rel=1e-9, abs=1e-9)
    factor = (whole.norm() / tree.norm()).item()
    torch.testing.assert_close(whole.buffer, factor * tree.buffer)
    for name, leaf in tree.items():
        assert each[name].norm().item() == pytest.approx(low[name].norm().item(), rel=1e-9, abs=1e-9)
        torch.testing.assert_close(each[name], leaf * (each[name].norm() / leaf.norm()))


@pytest.mark.parametrize("rule", [fk.PoolDetrend(3, 2), fk.GaussianDetrend(0.5, 2), fk.ClipMedian(0.1, 2)])
def test_vectors_may_be_left_alone(rule):
    tree = drawn(0, (40,), (8, 9))
    found = through(rule, tree)
    assert torch.equal(found["w0"], tree["w0"])
    assert not torch.equal(found["w1"], tree["w1"])


def test_the_mean_step_is_measured_anew_in_each_round():
    """Against a walk by hand: w ← w − η (clip(H (w − b)) + λ w), two steps a round."""
    lr, decay, clip = 0.1, 0.01, 0.5
    method = fk.method("measured", gradient=[fk.ClipHere(), fk.DecayHere(), fk.MeasureStep()], weights=fk.Uniform())
    problem = fk.Problem(
        params={"w": torch.ones(2, dtype=torch.float64)}, loss=quadratic, clients=[(CURVATURE[:1], CENTRE[:1])]
    )
    exp = fk.Experiment(
        problem=problem, method=method, rounds=3, epochs=2, batch_size=1, lr=lr, weight_decay=decay, clip=clip,
        participation=1.0,
    )  # fmt: skip
    run = fk.run(exp, dtype=torch.float64, track=("state",))
    w, expected = torch.ones(2, dtype=torch.float64), []
    for _ in range(3):
        lengths = []
        for _ in range(2):
            g = CURVATURE[0] * (w - CENTRE[0])
            g = g * min(1.0, clip / (g.norm().item() + 1e-6)) + decay * w
            lengths.append(lr * g.norm().item())
            w = w - lr * g
        expected.append(sum(lengths) / 2)
    assert run.curve("report/step_length") == pytest.approx(expected, rel=1e-5)
    plain = fk.run(exp.with_(method="uniform"), dtype=torch.float64)
    assert torch.equal(plain.params["w"], run.params["w"])


FORMS = {
    "energy": [fk.RandomEnergy(0.3)],
    "l2": [fk.Rescale(0.3)],
    "norm": [fk.Rescale(0.3, 2, whole=True)],
    "measured": [fk.HighPass(0.3), fk.ClipHere(), fk.DecayHere(), fk.MeasureStep()],
}


@pytest.mark.slow
@for_each("form", FORMS)
def test_engines_agree_on_the_controls(form):
    method = fk.method(form, gradient=FORMS[form], weights=fk.Uniform())
    exp = fk.Experiment(
        problem=small_problem(), method=method, rounds=2, participation=0.7, epochs=2, batch_size=4, lr=0.1, clip=1.0
    )
    serial, stacked = (
        fk.run(exp, engine=engine, dtype=torch.float64, track=("state",)) for engine in ("serial", "stacked")
    )
    torch.testing.assert_close(stacked.server["params"].buffer, serial.server["params"].buffer, rtol=1e-9, atol=1e-12)
    assert [r.extra for r in stacked.records] == [pytest.approx(r.extra) for r in serial.records]


# ---- the questions -------------------------------------------------------------------------------------------------
def chains(spec, row):
    (cell,) = (c for c in find(spec) if c.row == row and c.column in ("cifar10, 0.1", "FedFFT's setting"))
    (phase,) = experiment_of(cell, 0).plan.method.phases
    return phase.perturb, phase.gradient


def test_the_questions_change_one_thing_each():
    sam, band = fk.Sam(0.1), fk.HighPass(0.05, 2)
    end = (fk.ClipHere(), fk.DecayHere(), fk.MeasureStep())
    assert chains("questions:radius", "FedSAM") == ((sam,), ())
    assert chains("questions:radius", "FedFFT") == ((sam, fk.HighPass(0.01)), ())
    assert chains("questions:radius", "FedSAM, FedFFT's norm") == ((sam, fk.Rescale(0.01, whole=True)), ())
    assert chains("questions:radius", "FedSAM, FedFFT's norm by tensor") == ((sam, fk.Rescale(0.01)), ())
    assert chains("questions:energy", "random, FedFFT's energy") == ((sam, fk.RandomEnergy(0.01)), ())
    assert chains("questions:step", "FedAvg") == chains("questions:step", "FedAvg, matched lr") == ((), end)
    assert chains("questions:step", "SpecGradFilter") == ((), (band, *end))
    assert chains("questions:step", "FedAvg, SpecGradFilter's norm") == ((), (fk.Rescale(0.05, 2, whole=True),))
    assert chains("questions:step", "random, SpecGradFilter's energy") == ((), (fk.RandomEnergy(0.05, 2),))
    assert chains("questions:vectors", "FedFFT, not the 1-D ones") == ((sam, fk.HighPass(0.01, 2)), ())
    assert chains("questions:vectors", "SpecGradFilter, all tensors") == ((), (fk.HighPass(0.05),))
    for base, rest in (("FedAvg", ()), ("FedDyn", (fk.DynamicDual(0.1),))):
        assert chains("questions:resnet18", base) == ((), rest)
        assert chains("questions:resnet18", f"{base}, ratio 0.05") == ((), (band, *rest))
