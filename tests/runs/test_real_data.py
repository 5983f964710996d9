"""Training on the real sets, where they are present: $FEDKEEL_DATA."""

import os

import pytest

import fedkeel as fk
from fedkeel.data import data_root

PRESENT = {name: (data_root() / name / "train_images.npy").exists() for name in ("cifar10", "fashion-mnist")}


def real(name, *marks):
    reason = f"{name} is not in the data folder (set FEDKEEL_DATA)"
    return pytest.param(name, marks=[pytest.mark.skipif(not PRESENT[name], reason=reason), *marks])


@pytest.mark.parametrize("name", [real("cifar10", pytest.mark.slow), real("fashion-mnist")])
def test_a_linear_model_learns_from_real_images(name):
    """One pass of ten clients over their share beats chance by far; the same twice."""
    exp = fk.Experiment(
        dataset=name,
        model="logistic",
        partition=fk.Iid(clients=100),
        rounds=2,
        participation=0.1,
        epochs=1,
        batch_size=50,
        lr=0.01,
        evaluate_every=2,
        augment="crop-flip-half" if name == "cifar10" else "none",
    )
    run = fk.run(exp, engine="serial")
    assert run.best > (0.2 if name == "cifar10" else 0.55)
    assert fk.run(exp, engine="serial").result == run.result


def test_the_data_folder_is_where_the_variable_says():
    if "FEDKEEL_DATA" in os.environ:
        assert str(data_root()) == os.environ["FEDKEEL_DATA"]
