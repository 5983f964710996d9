"""Code of one's own that was edited between runs of one experiment is told; what was edited beside it is not."""

import importlib
import sys

import pytest
import torch

import fedkeel as fk
from fedkeel.runs.own_code import sources

TEXT = """
import torch
import fedkeel as fk
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return {net} * self.layer(x)

def loss(output, target):
    return {loss} * F.cross_entropy(output, target)

def right(output, target):
    return {metric} * (output.argmax(-1) == target).float()

SETTING = {beside}
"""


@pytest.fixture
def problem(tmp_path, monkeypatch):
    """Make the same problem from an edited file."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(net=1.0, loss=1.0, metric=1.0, beside=0):
        sys.modules.pop("my_code", None)
        importlib.invalidate_caches()
        (tmp_path / "my_code.py").write_text(TEXT.format(net=net, loss=loss, metric=metric, beside=beside))
        code = importlib.import_module("my_code")
        torch.manual_seed(0)
        data = [(torch.randn(8, 3), torch.randint(2, (8,))) for _ in range(2)]
        return fk.Problem(model=code.Net(), loss=code.loss, clients=data, test=data[0], metrics={"right": code.right})

    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two texts of one second would be taken for one
    yield make
    sys.modules.pop("my_code", None)


@pytest.mark.parametrize(
    ("edit", "told"), [("net", "my_code:Net"), ("loss", "my_code:loss"), ("metric", "my_code:right"), ("beside", None)]
)
def test_an_edited_network_loss_or_metric_is_told(problem, tmp_path, caplog, edit, told):
    def run(rounds, made, folder, seed=0):
        settings = {"rounds": rounds, "participation": 1.0, "epochs": 1, "batch_size": 4, "lr": 0.1, "seed": seed}
        return fk.run(fk.Experiment(problem=made, **settings), out=tmp_path / folder, engine="serial")

    run(1, problem(), "one")
    run(1, problem(**{edit: 2}), "two", seed=1)
    edited = fk.compare([tmp_path / "one", tmp_path / "two"]).document()["edited"]
    assert [line.partition(" was edited")[0] for line in edited] == ([told] if told else [])
    caplog.clear()
    run(2, problem(**{edit: 2}), "one")
    assert (f"{told} has been edited since this run started" in caplog.text) == bool(told)


def test_partitions_and_objectives_of_ones_own_count_and_those_of_packages_do_not(problem):
    class Mine(fk.Partitioner):
        pass

    assert sources([torch.nn.Linear(2, 2), torch.nn.Linear, fk.Sam(0.1), torch.nn.functional.relu]) == {}
    assert list(sources([object.__new__(Mine), "my_code_that_is_not_there"])) == [__name__]
    problem()
    assert list(sources(["my_code"])) == ["my_code"]
