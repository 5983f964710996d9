"""Without Flower, or without Ray, one line says what to install."""

import sys

import pytest

import fedkeel as fk
from fedkeel.engines.ray_connection import import_ray
from fedkeel.errors import RequestError
from problems import small_problem


def forget(monkeypatch, package):
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith("fedkeel.engines.flower")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)


def test_the_engine_flower_without_flower(monkeypatch):
    forget(monkeypatch, "flwr")
    exp = fk.Experiment(problem=small_problem(), rounds=1)
    with pytest.raises(RequestError, match="the engine flower needs a package that is not installed: flwr") as caught:
        fk.run(exp, engine="flower")
    assert caught.value.hint == 'pip install "fedkeel[flower]"'


def test_the_engine_ray_without_ray(monkeypatch):
    forget(monkeypatch, "ray")
    with pytest.raises(RequestError, match="not installed: ray"):
        fk.run(fk.Experiment(problem=small_problem(), rounds=1), engine="ray")


def test_sweeps_without_ray(monkeypatch):
    forget(monkeypatch, "ray")
    with pytest.raises(RequestError, match="not installed: ray") as caught:
        import_ray()
    assert caught.value.hint == 'pip install "fedkeel[ray]"'
