"""`--engine auto` chooses once for all runs that a command compares."""

import json

import pytest
import torch

import fedkeel as fk
from fedkeel.cli.main import call
from fedkeel.engines.choose import Choice, Contest
from fedkeel.runs.shared_engine import Asked, choose_for_all

SMALL = ["--model", "logistic", "--rounds", "1", "--no-progress", "--set", "participation=0.02", "--set", "epochs=1"]


def records_in(folder):
    found = [json.loads(path.read_text())["engine"] for path in sorted(folder.rglob("environment.json"))]
    assert found
    return found


@pytest.fixture
def fickle(monkeypatch):
    """Measurements that are won by another engine each time."""
    calls = []

    def decided(self):
        calls.append(self.job.method.name)
        best = ("stacked", "serial")[len(calls) % 2]
        seconds = {"serial": 50.0, "stacked": 50.0, "processes": 90.0} | {best: 10.0}
        return None, Choice(best, "auto", {name: seconds[name] for name in self.names})

    monkeypatch.setattr(Contest, "decide", decided)
    return calls


def test_methods_and_seeds_of_one_command_share_an_engine(fickle, tmp_path):
    assert call(["run", "--method", "fedavg,fedsam", "--seeds", "0,1", "--out", str(tmp_path / "out"), *SMALL]) == 0
    assert len(records_in(tmp_path / "out")) == 4
    assert len(set(records_in(tmp_path / "out"))) == 1
    assert fickle == ["fedsam"]  # measured once, with the method that takes more passes


def test_a_command_goes_on_with_the_engine_of_the_runs_that_are_there(fickle, tmp_path):
    out = ["--out", str(tmp_path / "out"), *SMALL]
    assert call(["run", "--method", "fedavg,fedprox", "--engine", "stacked", *out]) == 0
    assert call(["run", "--method", "fedavg,fedprox,fedsam", *out]) == 0
    assert records_in(tmp_path / "out") == ["stacked"] * 3
    assert fickle == []


@pytest.mark.slow
def test_a_sweep_chooses_once(fickle, tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(
        'dataset = "digits"\nmodel = "logistic"\nrounds = 1\nepochs = 1\nparticipation = 0.02\nvalidation = 0.2\n'
        "seeds = [0]\n[grid]\nlr = [0.1, 0.2]\n[methods.fedavg]\n[methods.fedsam]\n"
    )
    assert call(["sweep", str(file), "--out", str(tmp_path / "out"), "--no-progress"]) == 0
    assert len(records_in(tmp_path / "out")) > 4
    assert len(set(records_in(tmp_path / "out"))) == 1


def test_an_engine_that_some_runs_cannot_take_is_not_chosen(monkeypatch, tmp_path):
    measured = []

    def decided(self):
        measured.append(self.names)
        seconds = {"serial": 50.0} | ({"stacked": 1.0} if len(measured) == 1 else {})  # the second cannot be stacked
        return None, Choice(min(seconds, key=seconds.get), "auto", seconds)

    monkeypatch.setattr(Contest, "decide", decided)
    asked = [
        Asked(fk.Experiment(dataset="digits", model=model, rounds=1), tmp_path / model) for model in ("logistic", "mlp")
    ]
    assert choose_for_all(asked[:1], torch.device("cpu"), torch.float32, 1) == "stacked"
    measured.clear()
    assert choose_for_all(asked, torch.device("cpu"), torch.float32, 1) == "serial"
    assert len(measured) == 2
