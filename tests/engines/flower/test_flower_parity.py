"""The same round inside Flower's client apps gives the bits of the serial engine, for every method."""

import pytest

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

from federations import experiment, same, train
from federations import problem as make_problem

import fedkeel as fk


@pytest.fixture
def problem():
    return make_problem()


@pytest.mark.parametrize("method", [*sorted(fk.METHODS), "adamw+scaffold"])
def test_every_method_is_bitwise_equal_to_serial(problem, tmp_path, method):
    exp = experiment(problem, method, participation=0.6)
    serial = fk.run(exp, engine="serial")
    flower = train(exp, tmp_path / "run")
    same(serial, flower)
    assert serial.result == flower.result


def test_rates_of_steps_and_averaged_models_are_those_of_serial(problem, tmp_path):
    schedule = {"name": "cosine", "by": "step", "warmup": 1}
    changes = {"lr_decay": None, "schedule": schedule, "server_schedule": "linear", "epochs": None, "steps": 3}
    exp = experiment(problem, "ema+scaffold", **changes)
    serial, flower = fk.run(exp, engine="serial"), train(exp, tmp_path / "run")
    same(serial, flower)
    assert serial.result == flower.result


def test_client_slots_begin_at_the_first_model_however_late_a_client_joins(problem, tmp_path):
    exp = experiment(problem, "feddyn", participants=[[0, 1], [0, 1], [5]])
    same(fk.run(exp, engine="serial"), train(exp, tmp_path / "run"))


def test_buffers_of_a_model_travel(problem, tmp_path):
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    clients = [c for c in problem.clients if len(c[0]) > 4]
    problem = fk.Problem(model=module, loss=problem.loss, clients=clients, test=problem.test)
    for buffers in ("average", "keep"):
        exp = experiment(problem, "scaffold", epochs=1, batch_size=100, buffers=buffers)
        same(fk.run(exp, engine="serial"), train(exp, tmp_path / buffers))


def test_a_run_of_this_machine_goes_on_as_a_federation(problem, tmp_path):
    """Engines are not part of a run's identity: its checkpoint has no trace of them."""
    exp = experiment(problem, "fedfft-d")
    fk.run(exp.with_(rounds=2), out=tmp_path / "run", engine="serial")
    same(train(exp, tmp_path / "run"), fk.run(exp, engine="serial"))
