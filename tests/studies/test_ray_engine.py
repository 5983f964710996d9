"""A sweep on Ray chooses one engine for all that it compares; the cluster here is a stand-in that works at once."""

import contextlib
import json

import pytest

from fedkeel.cli.main import call
from fedkeel.engines.choose import Choice, Contest
from fedkeel.engines.pool import ATTEMPTS, WorkerDied
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


class AtOnce:
    """One worker that works where it is called; `calls` notes what it was asked."""

    cpus = 1.0

    def __init__(self):
        self.calls, self.shares, self.fails, self.answers = [], [], None, []

    @contextlib.contextmanager
    def hire(self, device, workers):
        self.shares.append((device, workers))
        self.cpus = float(workers or 1)
        yield self

    def grow(self, size): ...

    def find_free(self):
        return {} if self.answers else {0: None}

    def ask(self, worker, kind, payload):
        assert kind == "call"
        function, *given = payload
        self.calls.append(function.__name__)
        self.answers.append((0, function(*given) if self.fails is None else self.fails))

    def wait(self):
        answers, self.answers = self.answers, []
        return answers


@pytest.fixture
def at_once(monkeypatch):
    """A cluster without processes."""
    crew = AtOnce()
    monkeypatch.setattr(ray_cluster, "hire", crew.hire)
    return crew


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
    assert at_once.calls.count("choose") == 1
    assert at_once.calls.count("make") == len(made)
    assert at_once.shares == [("auto", 2 if workers else None)]


@pytest.mark.slow
def test_a_run_that_was_begun_otherwise_keeps_its_engine(at_once, fickle, tmp_path):
    (tmp_path / "sweep.toml").write_text(SWEEP.replace("seeds = [0, 1]", "seeds = [0]").replace("[methods.fedsam]", ""))
    asked = ["sweep", str(tmp_path / "sweep.toml"), "--on", "ray", "--out", str(tmp_path / "out"), "--no-progress"]
    assert call([*asked, "--engine", "stacked"]) == 0
    for path in (tmp_path / "out").rglob("result.json"):
        path.unlink()
    assert call(asked) == 0
    assert set(engines_in(tmp_path / "out")) == {"stacked"}
    assert fickle == []


def test_an_engine_that_cannot_be_measured_is_one_line(at_once, tmp_path, capsys):
    at_once.fails = WorkerDied("the node is gone")
    (tmp_path / "sweep.toml").write_text(SWEEP)
    assert call(["sweep", str(tmp_path / "sweep.toml"), "--on", "ray", "--out", str(tmp_path / "out")]) == 1
    assert "error: no engine could be measured on Ray: the node is gone" in capsys.readouterr().err
    assert at_once.calls == ["choose"] * ATTEMPTS


def test_a_run_of_one_worker_takes_no_engine_of_many(at_once, tmp_path, capsys):
    (tmp_path / "sweep.toml").write_text(SWEEP)
    for engine, instead in (("ray", "serial"), ("ray-stacked", "stacked")):
        assert call(["sweep", str(tmp_path / "sweep.toml"), "--on", "ray", "--engine", engine]) == 2
        assert f"--engine {instead}" in capsys.readouterr().err
    assert call(["sweep", str(tmp_path / "sweep.toml"), "--on", "moon"]) == 2
    assert "runs are made here or on ray, not on: moon" in capsys.readouterr().err


SEARCH = """
dataset = "digits"
model = "logistic"
epochs = 1
participation = 0.02
validation = 0.2
rounds = 2
first = 1
keep = 2
candidates = 2
seeds = [5]
[grid]
lr = [0.1, 0.2]
[parts.correction]
none = []
[published.fedavg]
"""


@pytest.mark.slow
def test_a_search_makes_its_runs_on_the_same_workers(at_once, tmp_path):
    (tmp_path / "search.toml").write_text(SEARCH)
    out = tmp_path / "out"
    asked = ["search", str(tmp_path / "search.toml"), "--engine", "serial", "--out", str(out), "--no-progress"]
    assert call([*asked, "--on", "ray"]) == 0
    assert len(at_once.calls) > 4
    assert set(at_once.calls) == {"make"}
    assert len(at_once.shares) == 1
    made = at_once.calls.copy()
    assert call([*asked, "--on", "ray"]) == 0
    assert at_once.calls == made  # nothing is made again
