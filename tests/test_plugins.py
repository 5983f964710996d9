"""What installed packages bring is found by name, marked by package, and cannot harm what does not ask for it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedkeel as fk
from fedkeel import importing
from fedkeel.catalogue import cards
from fedkeel.cli import completion
from fedkeel.engines.choose import check_name
from fedkeel.importing import Trust
from fedkeel.methods import build, composition
from fedkeel.plugins import find_plugin
from fedkeel.runs.following import find_callback

THEIRS = '''
from dataclasses import dataclass, replace
from math import prod
import numpy as np
from torch import nn
import fedkeel as fk
from fedkeel.data.datasets.digits import DIGITS
from fedkeel.data.partition.partition import check_labels, collect
from fedkeel.engines.serial import SerialEngine

@dataclass(frozen=True)
class Pull(fk.Rule):
    """g + μ (w − w_t).  mu = 0 is FedAvg."""
    mu: float = 0.1
    def step(self, tree, client, at):
        return tree + self.mu * (at.params - at.start), client

def pulled(mu: float = 0.5) -> fk.Method:
    """FedAvg that is pulled back."""
    return fk.method("pulled", gradient=[Pull(mu)], weights=fk.Uniform())

@dataclass(frozen=True)
class Turns:
    clients: int = 2
    repeats = False
    def divide(self, labels, key, *, groups=None):
        check_labels(labels)
        return collect(np.arange(len(labels)) % self.clients, np.arange(len(labels)), self.clients, len(labels))

def line(shape: tuple, classes: int, bias: bool = True) -> nn.Module:
    """One layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes, bias=bias))

class Slow(SerialEngine):
    name = "slow"

class Note(fk.Callback):
    def round(self, at):
        return "enough" if at.record.round == 1 else None

theirs = replace(DIGITS, card=replace(DIGITS.card, name="theirs"))
'''
POINTS = """
[fedkeel.methods]
pulled = their_things:pulled
[fedkeel.rules]
Pull = their_things:Pull
[fedkeel.partitions]
turns = their_things:Turns
[fedkeel.models]
line = their_things:line
[fedkeel.engines]
slow = their_things:Slow
[fedkeel.callbacks]
note = their_things:Note
[fedkeel.datasets]
theirs = their_things:theirs
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """`install("package", entry_points, module=text)` into a folder of installed packages."""
    place = tmp_path / "site"
    place.mkdir()
    monkeypatch.setattr("site.getsitepackages", lambda: [str(place)])
    monkeypatch.setattr(sys, "path", [*sys.path, str(place)])
    before = set(sys.modules)

    def put(package, points, **modules):
        info = place / f"{package}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(points)
        for name, text in modules.items():
            (place / f"{name}.py").write_text(text)
        sys.path.append(str(info))  # another key for what is looked up once

    yield put
    for name in set(sys.modules) - before:
        if name.startswith("their_"):
            del sys.modules[name]


def test_names_of_every_group_are_found_when_they_are_asked_for(install):
    install("theirs", POINTS, their_things=THEIRS)
    assert find_plugin("methods", "pulled").package == "theirs"
    assert "turns" not in fk.PARTITIONS
    check_name("slow")
    assert completion.complete_methods("fedavg,pul") == ["fedavg,pulled"]
    assert "their_things" not in sys.modules  # nothing is imported before it is needed
    recalled = composition.load_rule({"rule": "Pull", "mu": 0.3}, Trust.NOTHING)
    assert "their_things" not in sys.modules
    assert composition.save_rule(recalled) == {"rule": "Pull", "mu": 0.3}
    rule = composition.load_rule({"rule": "Pull", "mu": 0.3}, Trust.INSTALLED)
    assert composition.save_rule(rule) == {"rule": "their_things:Pull", "mu": 0.3}
    assert build("pulled", {"mu": 0.25}).phases[0].gradient[0].mu == 0.25
    assert build("specgradfilter+pulled").name == "specgradfilter+pulled"
    assert fk.DATASETS["theirs"].name == "theirs"
    assert fk.MODELS["line"].defaults == {"bias": True}
    assert type(find_callback("note", Trust.TYPED)).__name__ == "Note"


def test_an_experiment_of_nothing_but_plugins_runs_from_a_file_without_trust(install, tmp_path):
    install("theirs", POINTS, their_things=THEIRS)
    data = {"dataset": "digits", "model": "line", "partition": {"kind": "turns", "clients": 5}, "rounds": 3, "lr": 0.05,
            "method": {"name": "pulled", "mu": 0.1}}  # fmt: skip
    experiment = fk.Experiment.load(data)
    run = fk.run(experiment, engine="slow", callbacks="note", out=tmp_path / "run")
    assert run.result["rounds"] == 1
    again = fk.Experiment.load(fk.load_run(tmp_path / "run").experiment.save())
    assert again.plan.division.partition.clients == 5
    assert again.fingerprint() == experiment.fingerprint()


def test_known_names_ask_no_package(monkeypatch):
    def refuse():
        raise AssertionError("packages were searched")

    monkeypatch.setattr(importing, "installed", refuse)
    experiment = fk.Experiment(
        dataset="digits", model="logistic", partition="iid:clients=5", method="fedprox", rounds=1
    )
    assert fk.run(experiment, engine="serial", callbacks="KeepBest").result["rounds"] == 1


@pytest.mark.slow
def test_lists_show_what_packages_bring(install, fedkeel, monkeypatch, constant_weights):
    one = cards.costs(fk.METHODS["fedavg"]())
    monkeypatch.setattr(cards, "costs", lambda method: one)
    install("theirs", POINTS, their_things=THEIRS)
    out = fedkeel("methods").out
    assert out.index("package theirs") < out.index("\npulled ")
    assert "package theirs" in fedkeel("methods", "pulled").out
    assert "One layer (package theirs)" in fedkeel("models").out
    assert "theirs: from the package theirs" in fedkeel("datasets").out
    for command, name in (("methods", "pulled"), ("models", "line"), ("datasets", "theirs")):
        listed = json.loads(fedkeel(command, "--json").out)[command]
        (entry,) = (entry for entry in listed if entry["name"] == name)
        assert "theirs" in entry.get("package", entry.get("family"))


def test_a_broken_package_is_told_in_a_line_and_stops_nothing_else(install, fedkeel, monkeypatch, constant_weights):
    one = cards.costs(fk.METHODS["fedavg"]())
    monkeypatch.setattr(cards, "costs", lambda method: one)
    groups = "".join(f"[fedkeel.{group}]\nbad = their_bad:bad\n" for group in ("methods", "models", "datasets"))
    install("broken", groups, their_bad="raise SystemExit('no licence')")
    for command, word in (("methods", "method"), ("models", "model"), ("datasets", "data set")):
        done = fedkeel(command)
        assert done.code == 0
        assert f"the {word} bad of the package broken fails: cannot import" in done.err
        assert len(done.err.splitlines()) == 1
    done = fedkeel("run", "--dataset", "digits", "--method", "bad")
    assert done.code == 2
    assert "SystemExit: no licence" in done.err
    assert "Traceback" not in done.err


def test_a_name_that_is_taken_is_refused_and_both_packages_are_named(install, fedkeel, monkeypatch):
    monkeypatch.setattr(cards, "cards", list)
    monkeypatch.setattr(cards, "costs", lambda method: None)
    install(
        "theirs", "[fedkeel.methods]\npulled = their_things:pulled\nfedavg = their_things:pulled\n", their_things=THEIRS
    )
    install("others", "[fedkeel.methods]\npulled = their_others:pulled\n")
    with pytest.raises(fk.RequestError, match="two packages bring a method named pulled: others and theirs") as caught:
        build("pulled")
    assert "their_others:pulled or their_things:pulled" in caught.value.hint
    assert build("fedavg") == fk.METHODS["fedavg"]()
    told = fedkeel("methods").err
    assert "the method fedavg of the package theirs is left out: the package fedkeel has one of that name" in told
    assert "the method pulled of the package theirs is left out: the package others has one of that name" in told


@pytest.mark.slow
def test_the_example_package_installs_and_passes_its_own_tests(tmp_path):
    example = Path(__file__).parents[1] / "examples" / "plugin"
    source = shutil.copytree(example, tmp_path / "plugin")  # a build leaves files beside it
    site = tmp_path / "user" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(site), str(source)], check=True)
    path = os.pathsep.join([str(Path(fk.__file__).parents[1]), str(site)])
    there = {**os.environ, "PYTHONUSERBASE": str(tmp_path / "user"), "PYTHONPATH": path, "COLUMNS": "200"}

    def call(*words):
        return subprocess.run(
            [sys.executable, "-m", *words], cwd=tmp_path, env=there, check=True, capture_output=True, text=True
        ).stdout

    assert "3 passed" in call("pytest", "-q", "-p", "no:cacheprovider", str(source / "tests"))
    assert "package fedkeel-example" in call("fedkeel", "methods", "tanhprox")
    made = call(
        "fedkeel", "run", "--dataset", "digits", "--method", "tanhprox", "--model", "narrow", "--partition",
        "two-sizes:clients=10,ratio=3", "--rounds", "1", "--engine", "serial", "--json",
    )  # fmt: skip
    assert json.loads(made)["runs"][0]["result"]["rounds"] == 1
