"""A sweep on Ray chooses one engine for all that it compares; the cluster here is a stand-in that works at once."""

import contextlib
import json
from functools import partial
from types import SimpleNamespace

import pytest

from fedkeel.cli.main import call
from fedkeel.engines.choose import Choice, Contest
from fedkeel.studies import ray_cluster

SWEEP = """
dataset = "digits"
model = "logistic"
rounds = 1
epochs = 1
participation = 0.02
validation = 0.2
seeds = [0, 1]
[grid]
lr = [0.1, 0.2]
[methods.fedavg]
[methods.fedsam]
"""


class Remote:
    """A function that runs where it is called; `shares` notes what it takes of the cluster."""

    shares: list = []  # noqa: RUF012

    def __init__(self, function):
        self.function = function

    def options(self, **share):
        self.shares.append((self.function.__name__, share))
        return self

    def remote(self, *given):
        return partial(next, iter([self.function(*given)]))


@pytest.fixture
def at_once(monkeypatch):
    """A cluster without processes."""
    errors = {name: type(name, (Exception,), {}) for name in ("RayError", "WorkerCrashedError", "NodeDiedError")}
    ray = SimpleNamespace(
        remote=lambda function=None, **_: Remote if function is None else Remote(function),
        wait=lambda running, **_: (running[:1], running[1:]),
        get=lambda done: done(),
        cluster_resources=dict,
        exceptions=SimpleNamespace(**errors),
    )
    monkeypatch.setattr(ray_cluster, "connected", lambda cluster=None: contextlib.nullcontext(ray))
    monkeypatch.setattr(Remote, "shares", [])
    return ray


@pytest.fixture
def fickle(monkeypatch):
    """Measurements that are won by another engine each time."""
    calls = []

    def decided(self):
        calls.append(self.names)
        best = ("stacked", "serial")[len(calls) % 2]
        seconds = {"serial": 50.0, "stacked": 50.0, "processes": 50.0} | {best: 10.0}
        return None, Choice(best, "auto", {name: seconds[name] for name in self.names})

    monkeypatch.setattr(Contest, "decide", decided)
    return calls


def engines_in(folder):
    return [json.loads(path.read_text())["engine"] for path in sorted(folder.rglob("environment.json"))]


@pytest.mark.parametrize("workers", [(), pytest.param(("--workers", "2"), marks=pytest.mark.slow)])
def test_a_sweep_on_ray_chooses_one_engine(at_once, fickle, tmp_path, workers):
    (tmp_path / "sweep.toml").write_text(SWEEP)
    asked = ["sweep", str(tmp_path / "sweep.toml"), "--on", "ray", "--out", str(tmp_path / "out"), "--no-progress"]
    assert call([*asked, *workers]) == 0
    made = engines_in(tmp_path / "out")
    assert len(made) > 6
    assert len(set(made)) == 1
    assert len(fickle) == 1
    assert ("processes" in fickle[0]) == bool(workers)  # a run that has one core starts no workers
    assert [name for name, _ in at_once.remote().shares].count("choose") == 1
    assert {share["num_cpus"] for _, share in at_once.remote().shares} == {2 if workers else 1}


def test_a_run_that_was_begun_otherwise_keeps_its_engine(at_once, fickle, tmp_path):
    (tmp_path / "sweep.toml").write_text(SWEEP)
    asked = ["sweep", str(tmp_path / "sweep.toml"), "--on", "ray", "--out", str(tmp_path / "out"), "--no-progress"]
    assert call([*asked, "--engine", "stacked"]) == 0
    for path in (tmp_path / "out").rglob("result.json"):
        path.unlink()
    assert call(asked) == 0
    assert set(engines_in(tmp_path / "out")) == {"stacked"}
    assert fickle == []


def test_an_engine_that_cannot_be_measured_is_one_line(at_once, tmp_path, monkeypatch, capsys):
    def lost(done):
        raise at_once.exceptions.RayError("the node\nis gone")

    monkeypatch.setattr(at_once, "get", lost)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    assert call(["sweep", str(tmp_path / "sweep.toml"), "--on", "ray", "--out", str(tmp_path / "out")]) == 1
    assert "error: no engine could be measured on Ray: the node" in capsys.readouterr().err
