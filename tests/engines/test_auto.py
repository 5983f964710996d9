"""`auto` takes the engine that measures fastest, says so, and changes nothing else. Clocks here are the tests' own."""

from __future__ import annotations

import io
import json
import random
import shutil

import numpy as np
import pytest
import torch
from rich.console import Console

import fedkeel as fk
from fedkeel.cli.progress import Display, Lines
from fedkeel.engines import choose, measure
from fedkeel.engines.engine import Training
from fedkeel.engines.measure import FewerSamples, Job, RemainingWork
from fedkeel.engines.processes import ProcessesEngine
from fedkeel.engines.serial import SerialEngine
from fedkeel.engines.stacked.engine import StackedEngine
from fedkeel.methods import build
from fedkeel.problems.task import Task
from fedkeel.text import duration
from problems import small_problem


class Pool(SerialEngine):
    """A pool that starts no process."""

    name = "processes"
    opened: list[Pool] = []  # noqa: RUF012

    def __init__(self, job):
        self.prepare(job)
        self.closed = False
        Pool.opened.append(self)

    def prepare(self, job):
        super().__init__(job.task, job.method, job.training)

    def close(self):
        self.closed = True


class Pace:
    """A clock that advances only when an engine trains: by so many seconds for each backward pass."""

    def __init__(self):
        self.time, self.seconds, self.steps = 0.0, {"serial": 1.0, "stacked": 1.0, "processes": 1.0}, 0.0

    def now(self, device):
        return self.time

    def slowed(self, train):
        def slow(engine, message, round, lr, clients, states):
            outcomes = train(engine, message, round, lr, clients, states)
            steps = float(sum(outcome.report["steps"] for outcome in outcomes))
            self.time += self.seconds[engine.name] * steps
            self.steps += steps
            return outcomes

        return slow


@pytest.fixture
def pace(monkeypatch):
    """Two cores, a pool that costs nothing to start, and engines as fast as the test says."""
    made = Pace()
    monkeypatch.setattr(measure, "now", made.now)
    for engine in (SerialEngine, StackedEngine):
        monkeypatch.setattr(engine, "train", made.slowed(engine.train))
    monkeypatch.setattr(choose, "ProcessesEngine", Pool)
    monkeypatch.setattr(choose, "cores", lambda: 2)
    monkeypatch.setattr(Pool, "opened", [])
    return made


def experiment(problem, **changes):
    settings = {"method": "scaffold", "rounds": 4, "participation": 0.7, "epochs": 1, "batch_size": 4, "lr": 0.1}
    return fk.Experiment(problem=problem, **settings | changes)


def engines(folder):
    return json.loads((folder / "environment.json").read_text())["engines"]


@pytest.mark.parametrize(
    ("seconds", "fastest"),
    [
        ({"serial": 1.0, "stacked": 2.0, "processes": 3.0}, "serial"),
        ({"serial": 3.0, "stacked": 1.0, "processes": 2.0}, "stacked"),
        ({"serial": 3.0, "stacked": 2.0, "processes": 1.7}, "processes"),
        ({"serial": 1.0, "stacked": 0.95, "processes": 0.95}, "serial"),
    ],
    ids=["serial", "stacked", "processes", "a tenth must be saved"],
)
def test_the_fastest_wins_and_gives_what_it_gives_when_asked_for(pace, tmp_path, seconds, fastest):
    pace.seconds = seconds
    exp = experiment(small_problem(), rounds=8)
    run = fk.run(exp, out=tmp_path)
    told = engines(tmp_path)
    assert [one["engine"] for one in told] == [fastest]
    assert told[0]["asked"] == "auto"
    found = told[0]["expected_seconds"]
    passes = sum(record.backward_passes for record in run.records)
    for name in {"serial", fastest}:  # others may differ by what rounds to come will have
        assert found[name] == pytest.approx(seconds[name] * passes, rel=0.3)
    assert all(pool.closed for pool in Pool.opened)
    expected = fk.run(exp, engine="serial" if fastest == "processes" else fastest)
    assert run.result == expected.result
    assert torch.equal(run.server["params"].buffer, expected.server["params"].buffer)


def test_a_pool_that_could_not_win_is_not_started(pace, tmp_path):
    pace.seconds |= {"stacked": 0.4}  # less than half of serial: two perfect workers lose
    fk.run(experiment(small_problem(), rounds=8), out=tmp_path)
    assert not Pool.opened
    assert engines(tmp_path)[0]["left_out"] == {"processes": "would not pay for its start"}


def test_little_work_is_not_measured(pace, monkeypatch, tmp_path):
    pace.seconds = {"serial": 1e-3, "stacked": 1e-6, "processes": 1e-6}
    monkeypatch.setattr(choose, "StackedEngine", None)
    fk.run(experiment(small_problem()), out=tmp_path)
    assert engines(tmp_path) == [{"after_round": 0, "asked": "auto", "engine": "serial"}]


def test_a_model_that_cannot_be_stacked_is_left_out(pace, tmp_path):
    class Moody(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x if x.sum() > 0 else -x)

    problem = small_problem()
    stubborn = fk.Problem(model=Moody(6, 3), loss=problem.loss, clients=problem.clients, test=problem.test)
    pace.seconds |= {"stacked": 0.1, "processes": 0.8}
    run = fk.run(experiment(stubborn, rounds=8), out=tmp_path)
    assert run.result["rounds"] == 8
    told = engines(tmp_path)[0]
    assert told["engine"] == "processes"
    assert "cannot be stacked" in told["left_out"]["stacked"]
    assert "stacked" not in told["expected_seconds"]


@pytest.mark.slow
def test_dropout_may_be_stacked(pace, tmp_path):
    problem = small_problem()
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
    dropping = fk.Problem(model=module, loss=problem.loss, clients=problem.clients, test=problem.test)
    pace.seconds |= {"stacked": 0.1}
    fk.run(experiment(dropping, rounds=8), out=tmp_path)
    assert engines(tmp_path)[0]["engine"] == "stacked"


@pytest.mark.parametrize("fastest", ["serial", "stacked"])
def test_measuring_draws_nothing_from_anyones_stream(pace, fastest):
    """A network that draws numbers and leaves them: what is drawn while engines are timed would shift the streams."""
    if fastest == "stacked":
        pace.seconds |= {"stacked": 0.1}
    problem = small_problem()

    class Drawing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.plain = problem.model

        def forward(self, x):
            np.random.rand(), random.random()
            return self.plain(x)

    exp = experiment(fk.Problem(model=Drawing(), loss=problem.loss, clients=problem.clients), rounds=8)

    def run(engine):
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)
        result = fk.run(exp, engine=engine).result
        return result, np.random.rand(), random.random(), torch.rand(()).item()

    assert run("auto") == run(fastest)


@pytest.mark.slow
def test_measuring_is_a_small_part_of_the_work(pace):
    exp = experiment(small_problem((8,) * 5), rounds=40, participation=1.0)
    run = fk.run(exp)
    work = sum(record.backward_passes for record in run.records)
    assert work < pace.steps <= 1.05 * work + measure.TIMES  # and one step alone, to see how long it takes


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_the_same_bits(pace, tmp_path):
    problem = small_problem()
    pace.seconds |= {"stacked": 0.1}
    fk.run(experiment(problem, rounds=8), out=tmp_path / "a")
    pace.seconds |= {"stacked": 9.0}  # now serial would be faster, but it rounds in another order
    fk.run(experiment(problem, rounds=12), out=tmp_path / "a")
    assert [(one["after_round"], one["engine"]) for one in engines(tmp_path / "a")] == [(0, "stacked"), (8, "stacked")]
    fk.run(experiment(problem, rounds=8), out=tmp_path / "b")
    pace.seconds |= {"processes": 0.7, "stacked": 0.1}
    fk.run(experiment(problem, rounds=16), out=tmp_path / "b")
    told = engines(tmp_path / "b")
    assert [(one["after_round"], one["engine"]) for one in told] == [(0, "serial"), (8, "processes")]
    assert set(told[1]["expected_seconds"]) == {"serial", "processes"}


def test_a_run_killed_before_its_first_checkpoint_begins_again_with_the_same_bits(pace, tmp_path):
    class Copy(fk.Callback):
        """What a process that is killed in round 3 leaves behind."""

        def round(self, at):
            if at.record.round == 3:
                shutil.copytree(tmp_path / "whole", tmp_path / "killed")

    problem = small_problem()
    fk.run(experiment(problem, rounds=8), out=tmp_path / "whole", engine="stacked", callbacks=Copy())
    pace.seconds |= {"stacked": 9.0}
    fk.run(experiment(problem, rounds=8), out=tmp_path / "killed")
    assert [(one["after_round"], one["engine"]) for one in engines(tmp_path / "killed")] == [(0, "stacked")]


def test_a_loss_that_fails_fails_as_it_does_serially(pace):
    def explode(output, target):
        raise ZeroDivisionError("in the user's own loss")

    problem = small_problem()
    with pytest.raises(ZeroDivisionError, match="user's own"):
        fk.run(experiment(fk.Problem(model=problem.model, loss=explode, clients=problem.clients), rounds=8))


def test_the_command_line_tells_it_once(pace):
    pace.seconds |= {"stacked": 0.25}
    for make, times in ((lambda console: Lines(console, 1), 1), (Display, 0)):
        console = Console(file=io.StringIO(), width=200)
        with make(console):
            fk.run(experiment(small_problem(), rounds=8))
        assert console.file.getvalue().count("note: engine stacked, ") == times
        assert console.file.getvalue().count("processes: would not pay for its start") == times


def test_long_times_are_told_in_minutes_and_hours():
    told = {0.5: "0.5 s", 59.0: "59.0 s", 60: "1 min 00 s", 3599.6: "1 h 00 min", 7260: "2 h 01 min"}
    assert {seconds: duration(seconds) for seconds in told} == told


def test_shares_of_clients_are_whole_batches():
    class Clients:
        sizes = np.array([0, 3, 8, 100, 101])

    assert FewerSamples(Clients(), 0.0, 8).sizes.tolist() == [0, 3, 8, 8, 8]
    assert FewerSamples(Clients(), 0.25, 8).sizes.tolist() == [0, 3, 8, 32, 32]
    assert FewerSamples(Clients(), 1.0, 8).sizes.tolist() == [0, 3, 8, 100, 101]


@pytest.mark.slow
def test_a_real_pool_can_be_prepared_again():
    """As after measuring: what the workers were made for before leaves no trace."""
    problem = small_problem()
    method, training, task = build("fedavg"), Training(0, 2, 4), Task(problem)
    job = Job(task, method, training, Task, 1, RemainingWork(3, [0, 1, 5]))
    short = job.shorten(0.0, [0, 1, 5])
    pool = ProcessesEngine(short)
    try:
        assert measure.time_round(pool, short) > 0
        pool.prepare(job)
        message = {"params": task.initial}
        found = pool.train(message, 0, 0.1, [0, 1, 5], [None] * 3)
    finally:
        pool.close()
    expected = SerialEngine(Task(problem), method, training).train(message, 0, 0.1, [0, 1, 5], [None] * 3)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.report["delta"].buffer, other.report["delta"].buffer)
