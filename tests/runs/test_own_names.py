"""`module:name` for problems, partitions and engines: found from the current folder, saved by name, never unasked."""

import json
from pathlib import Path

import pytest

import fedkeel as fk
from fedkeel.data.partition.registry import parse_partition
from fedkeel.errors import ExperimentError, FolderError, RequestError, UntrustedError
from fedkeel.runs.experiment import fingerprint_of

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


@dataclass(frozen=True, kw_only=True)
class Waves(fk.Schedule):
    """1 and `height` in turn."""

    height: float = 2.0

    def shape(self, time):
        return self.height if int(time) % 2 else 1.0


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


@pytest.mark.slow
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


LOGISTIC = "--dataset digits --model logistic --method fedavg --set epochs=1 --set lr=0.1 --engine serial".split()


def test_a_schedule_by_name_is_saved_by_name(here):
    """It is read, compared and exported by its name alone, and goes on where someone vouches for it."""
    words = [*LOGISTIC, "--set", "schedule=my_own:Waves", "--set", "schedule.height=3"]
    (whole,) = run_json(here, *words, "--rounds", "3", "--out", "whole")
    run_json(here, *words, "--rounds", "2", "--out", "f")
    import my_own

    assert list(json.loads(Path("f/environment.json").read_text())["sources"]) == ["my_own"]
    given = fk.Experiment(
        dataset="digits", model="logistic", epochs=1, lr=0.1, rounds=3, schedule=my_own.Waves(height=3)
    )
    assert given.save() == fk.load_run("whole").experiment.save()
    assert given.plan.lr_at(1) == pytest.approx(0.3)
    read = fk.load_run("f")
    assert read.experiment.save()["schedule"] == {"name": "my_own:Waves", "warmup": 0, "by": "round", "height": 3.0}
    with pytest.raises(UntrustedError, match="my_own:Waves"):
        read.plan.lr_at(0)
    for words in (["compare", "f", "whole"], ["export", "model", "f", "f.safetensors"]):
        assert here(*words).code == 0
    refused = here("resume", "f", "--rounds", "3")
    assert (refused.code, "the schedule 'my_own:Waves'" in refused.err) == (2, True)
    assert here("resume", "f", "--rounds", "3", "--trust").code == 0
    assert fk.load_run("f").result == whole["result"]
    assert here("export", "flower", "f", "app", "--trust").code == 0
    assert Path("app/my_own.py").read_text() == MINE


def test_a_run_of_version_1_0_0_that_names_the_class_of_its_schedule_alone_goes_on(here):
    short = fk.Experiment(dataset="digits", model="logistic", epochs=1, rounds=1, schedule="my_own:Waves")
    saved = short.save()
    older = saved | {"schedule": saved["schedule"] | {"name": "Waves"}}
    assert fingerprint_of(older) == short.fingerprint()
    fk.run(short, out="g", engine="serial")
    Path("g/experiment.toml").write_text(Path("g/experiment.toml").read_text().replace("my_own:Waves", "Waves"))
    assert fk.load_run("g").experiment.save() == older
    refused = here("resume", "g")
    assert (refused.code, "unknown schedule: Waves" in refused.err) == (2, True)
    again = fk.run(short.with_(rounds=3), out="g", engine="serial")
    assert again.result == fk.run(short.with_(rounds=3), engine="serial").result
    with pytest.raises(FolderError, match="differs in: schedule"):
        fk.run(short.with_(schedule="constant"), out="g", engine="serial")


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
    "of type int, not a schedule": {"dataset": "digits", "schedule": "my_own:number"},
    "the my_own:Waves schedule has no field: hight": {
        "dataset": "digits",
        "schedule": {"name": "my_own:Waves", "hight": 2},
    },
}


def test_what_does_not_fit_is_refused_in_a_line(here):
    for message, given in WRONG.items():
        with pytest.raises(RequestError, match=message):
            fk.Experiment(**given)
    with pytest.raises(UntrustedError):
        fk.Experiment.load({"problem": "my_own:sites"})
