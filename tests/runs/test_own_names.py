"""`module:name` for problems, partitions and engines: found from the current folder, saved by name, never unasked."""

import json
from pathlib import Path

import pytest

import fedkeel as fk
from fedkeel.data.partition.registry import parse_partition
from fedkeel.errors import ExperimentError, RequestError, UntrustedError

MINE = '''
import numpy as np
import torch
from dataclasses import dataclass, replace

import fedkeel as fk
from fedkeel.data.partition.partition import Partition
from fedkeel.engines.serial import SerialEngine


@dataclass(frozen=True)
class Slices:
    """Neighbouring samples belong to one client."""

    clients: int = 2
    repeats = False

    def divide(self, labels, key, *, groups=None):
        ends = np.linspace(0, len(labels), self.clients + 1).astype(np.int64)
        return Partition(np.arange(len(labels)), ends, len(labels))


three = Slices(3)
number = 3


class Counting(SerialEngine):
    name = "counting"


def sites() -> fk.Problem:
    generator = torch.Generator().manual_seed(0)

    def draw(samples):
        y = torch.arange(samples) % 3
        return torch.randn(samples, 6, generator=generator) + y[:, None], y

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Linear(6, 3)
    loss = torch.nn.functional.cross_entropy
    return fk.Problem(model=model, loss=loss, clients=[draw(9), draw(12)], test=draw(30), name="two sites")


ready = sites()
other = replace(ready, classes=3)
'''

SHORT = "--rounds 2 --set participation=1.0 --set epochs=1 --set batch_size=4 --set lr=0.1 --engine serial".split()


@pytest.fixture
def here(fedkeel, tmp_path):
    """The command line in a folder with a module."""
    (tmp_path / "my_own.py").write_text(MINE)
    return fedkeel


def run_json(here, *words):
    done = here("run", *words, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)["runs"]


def test_a_problem_by_name_is_trained_resumed_analysed_and_reported(here):
    words = ["--problem", "my_own:sites", "--method", "fedavg,scaffold", *SHORT, "--out", "a"]
    first, _ = run_json(here, *words)
    assert [run["state"] for run in run_json(here, *words)] == ["found", "found"]
    assert here("resume", "a", "--rounds", "4").code == 2, "a folder knows a problem by its digest"
    assert here("resume", "a", "--rounds", "4", "--problem", "my_own:sites").code == 0
    assert len(fk.load_run("a/fedavg/0").records) == 4
    assert "two sites" in repr(fk.load_run("a/fedavg/0"))
    again = fk.run(
        fk.Experiment(
            problem="my_own:ready", method="fedavg", rounds=2, participation=1.0, epochs=1, batch_size=4, lr=0.1
        ),
        engine="serial",
    )
    assert again.result == first["result"]
    analysed = here("analyse", "a/fedavg/0", "--drift", "--clients", "2", "--problem", "my_own:sites")
    assert analysed.code == 0, analysed.err
    assert here("report", "a", "-o", "page.html").code == 0
    page = Path("page.html").read_text(encoding="utf-8")
    assert "two sites" in page
    assert "Samples of every client" in page
    other = here("analyse", "a/fedavg/0", "--problem", "my_own:other", "--drift")
    assert (other.code, "was trained on another problem" in other.err) == (2, True)


def test_a_partition_by_name_is_saved_by_name(here):
    words = "--dataset digits --model logistic --method fedavg --set epochs=1 --set lr=0.1 --rounds 1 --engine serial"
    run_json(here, *words.split(), "--partition", "my_own:Slices,clients=4", "--out", "b")
    read = fk.load_run("b")
    assert read.experiment.save()["partition"] == {"kind": "my_own:Slices", "clients": 4}
    assert len(read.sizes) == 4
    with pytest.raises(UntrustedError, match="my_own:Slices"):
        read.plan.division.partition.divide([0], 0)
    assert here("resume", "b", "--rounds", "2").code == 2
    assert here("resume", "b", "--rounds", "2", "--trust").code == 0
    assert len(fk.load_run("b").records) == 2
    assert fk.Experiment(dataset="digits", partition="my_own:three").plan.division.partition.clients == 3
    tail = fk.Experiment(dataset="digits", partition="long-tail:imbalance=10,base=my_own:Slices,clients=5")
    assert tail.save()["partition"]["base"] == {"kind": "my_own:Slices", "clients": 5}


def test_a_partition_given_as_an_object_does_not_hide_its_run(here):
    import my_own

    made = fk.Experiment(dataset="digits", model="logistic", partition=my_own.Slices(2), rounds=1, participation=1.0)
    run = fk.run(made, out="c", engine="serial")
    read = fk.load_run("c")
    assert read.result == run.result
    assert here("report", "c", "-o", "page.html").code == 0
    with pytest.raises(ExperimentError, match="given from Python"):
        read.plan.division.partition.divide([0], 0)


def test_an_engine_by_name(here):
    words = "--dataset digits --model logistic --method fedavg --set epochs=1 --rounds 1 --out"
    (own,) = run_json(here, *words.split(), "d", "--engine", "my_own:Counting")
    (serial,) = run_json(here, *words.split(), "e", "--engine", "serial")
    assert own["result"] == serial["result"]
    assert json.loads(Path("d/environment.json").read_text())["engine"] == "counting"


def test_names_and_fields_are_told_apart():
    assert parse_partition("dirichlet:alpha=0.1") == {"kind": "dirichlet", "alpha": 0.1}
    assert parse_partition("a.b:C.d,x=1,y=no") == {"kind": "a.b:C.d", "x": 1, "y": "no"}
    with pytest.raises(ExperimentError, match="needs a value: alpha"):
        parse_partition("dirichlet:alpha")


WRONG = {
    "has no function divide": {"dataset": "digits", "partition": "my_own:number"},
    "cannot be made": {"dataset": "digits", "partition": "my_own:Slices,sites=3"},
    "cannot import problem nowhere:x": {"problem": "nowhere:x"},
    "of type int, not a problem": {"problem": "my_own:number"},
}


def test_what_does_not_fit_is_refused_in_a_line(here):
    for message, given in WRONG.items():
        with pytest.raises(RequestError, match=message):
            fk.Experiment(**given)
    with pytest.raises(UntrustedError):
        fk.Experiment.load({"problem": "my_own:sites"})
