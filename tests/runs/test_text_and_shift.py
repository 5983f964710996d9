"""Experiments on other kinds of data than clean images: text, and images that each client sees in its own way."""

import numpy as np
import pytest

import fedkeel as fk
from fedkeel.data import data_root
from fedkeel.data.partition.feature_shift import FeatureShift
from fedkeel.runs.prepare import problem_of


@pytest.mark.skipif(
    not (data_root() / "shakespeare").exists(), reason="shakespeare is not in the data folder (set FEDKEEL_DATA)"
)
def test_roles_of_shakespeare_are_clients():
    exp = fk.Experiment(dataset="shakespeare", rounds=1, participants=[[3, 5]], epochs=1, batch_size=50)
    problem = problem_of(exp.plan)
    assert len(problem.clients.sizes) == 1130
    x, y = problem.prepare(problem.clients.rows(3, np.arange(2)), None)
    assert x.shape == (2, 80)
    assert problem.model(x).shape == (2, 80)
    assert y.shape == (2,)


@pytest.mark.parametrize("name", ["digits"])
def test_clients_see_the_same_digits_through_different_lenses(name):
    iid = fk.Iid(clients=10)
    plain = problem_of(fk.Experiment(dataset=name, partition=iid, model="logistic").plan)
    shifted = problem_of(fk.Experiment(dataset=name, partition=FeatureShift(iid), model="logistic").plan)
    rows = np.arange(20)
    changed = [not np.array_equal(plain.clients.rows(c, rows)[0], shifted.clients.rows(c, rows)[0]) for c in range(10)]
    assert all(changed)
    assert all(np.array_equal(plain.clients.rows(c, rows)[1], shifted.clients.rows(c, rows)[1]) for c in range(10))


def test_a_shift_that_a_module_names_is_the_same_shift(tmp_path, monkeypatch):
    (tmp_path / "lenses.py").write_text("import fedkeel as fk\nthrough = fk.FeatureShift(fk.Iid(clients=10))\n")
    monkeypatch.syspath_prepend(tmp_path)
    asked = fk.Experiment(dataset="digits", partition=FeatureShift(fk.Iid(clients=10)), model="logistic")
    made, named = (problem_of(one.plan).clients for one in (asked, asked.with_(partition="lenses:through")))
    rows = np.arange(20)
    assert all(np.array_equal(made.rows(c, rows)[0], named.rows(c, rows)[0]) for c in range(10))
    with pytest.raises(fk.FedkeelError, match="shifted already cannot be shifted again"):
        asked.with_(partition="feature-shift:base=lenses:through")


def test_data_of_ones_own_are_not_shifted_in_silence():
    pictures = np.zeros((40, 8, 8), np.uint8), np.arange(40) % 4
    with pytest.raises(fk.FedkeelError, match="changes the pictures of a data set by name"):
        fk.Experiment(data=pictures, model="mlp", partition="feature-shift:base=iid:clients=4")
