"""What `serve` asks for and holds to: how many must answer, whose models it may judge, what it remembers."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

from federations import InProcess, experiment, same, train
from federations import problem as make_problem
from flwr.app import Array, Error, Message, Metadata

import fedkeel as fk
from fedkeel.engines.flower.checks import Terms, error_line
from fedkeel.errors import DataError, ExperimentError, RequestError, RunError
from fedkeel.runs.folder import read_rounds

EVERYONE = list(range(6))


@pytest.fixture
def problem():
    return make_problem()


@pytest.fixture
def tested(problem):
    """Clients with test sets of their own."""
    return fk.Problem(
        model=problem.model, loss=problem.loss, clients=problem.clients, test=problem.test, classes=3,
        tests=problem.clients,
    )  # fmt: skip


def times(factor, *clients, round=1):
    """The updates of some clients, multiplied."""

    def spoil(r, c, reply):
        if r == round and c in clients:
            record = reply.content.array_records["report/delta"]
            (key,) = record
            record[key] = Array(record[key].numpy() * np.float32(factor))
        return reply

    return spoil


# ---- before the first round ----------------------------------------------------------------------------------------
def broken(problem, part):
    x, y = problem.test
    if part == "test":
        return replace(problem, test=(torch.full_like(x, math.nan), y))
    return replace(problem, clients=[*problem.clients[:-1], (x[:2], torch.full_like(y[:2], 7))])


@pytest.mark.parametrize("part", ["test", "labels"])
def test_a_server_refuses_what_a_run_refuses(problem, tmp_path, part):
    exp = experiment(broken(problem, part), "fedavg")
    grid = InProcess(exp)
    told = []
    for make in (
        lambda: fk.run(exp, engine="serial"),
        lambda: fk.run_together([exp, exp.with_(seed=1)]),
        lambda: train(exp, tmp_path / "run", grid=grid),
    ):
        with pytest.raises(DataError) as caught:
            make()
        told.append((caught.value.message, caught.value.hint))
    assert told[0] == told[1] == told[2]
    assert not grid.asked


def test_a_server_tells_what_a_run_tells(problem, tmp_path, caplog):
    caplog.set_level("INFO", "fedkeel")
    exp = experiment(problem, "fedavg", rounds=1)
    train(exp, tmp_path / "run")
    assert "6 clients hold 1 to 7 samples" in caplog.text
    file = tmp_path / "run" / "environment.json"
    made_with = json.loads(file.read_text())
    file.write_text(json.dumps(made_with | {"precision": "float64"}))
    train(exp.with_(rounds=2), tmp_path / "run")
    assert "started in float64 and goes on in float32" in caplog.text
    engines = json.loads(file.read_text())["engines"]
    assert [(one["engine"], one["after_round"]) for one in engines] == [("flower", 0), ("flower", 1)]


# ---- how many ------------------------------------------------------------------------------------------------------
def test_a_report_that_is_not_finite_is_no_answer(problem, tmp_path, caplog):
    exp = experiment(problem, "scaffold")
    with pytest.raises(RunError, match="only 2 of 6 clients answered in round 2, 3 are needed"):
        train(exp, tmp_path / "run", spoil=times(math.nan, 0, 1, 2, 3), terms=Terms(minimum=0.5))
    assert len(read_rounds(tmp_path / "run")) == 1
    assert caplog.text.count("not every number is finite") == 4 * 3  # each was asked three times
    same(fk.run(exp, engine="serial"), train(exp, tmp_path / "run", terms=Terms(minimum=0.5)))


def test_as_many_as_the_minimum_are_enough(problem, tmp_path):
    exp = experiment(problem, "scaffold", participants=[EVERYONE] * 3)
    grid = InProcess(exp, times(math.inf, 0, 1, 2))
    half = train(exp, tmp_path / "run", grid=grid, terms=Terms(minimum=0.5))
    schedule = [EVERYONE, [3, 4, 5], EVERYONE]
    same(fk.run(experiment(problem, "scaffold", participants=schedule), engine="serial"), half)
    assert [record.dropped for record in half.records] == [[], [0, 1, 2], []]
    assert grid.asked.count((1, 0)) == 1


def test_a_simulation_counts_a_diverged_client_as_the_serial_engine_does(problem, tmp_path):
    exp = experiment(problem, "scaffold", participants=[EVERYONE] * 3)
    terms = Terms(minimum=1.0, diverged=True)
    assert train(exp, tmp_path / "run", spoil=times(math.nan, 2), terms=terms).records[1].dropped == [2]


def test_a_server_that_goes_on_remembers_how_long_updates_were(problem, tmp_path, caplog):
    """Alone in its round, a node has nobody to be compared with but those before it."""
    exp = experiment(problem, "fedavg", participants=[EVERYONE, [1], EVERYONE])
    train(exp.with_(rounds=1, participants=[EVERYONE]), tmp_path / "short")
    train(experiment(problem, "fedavg", rounds=1, participants=exp.participants), tmp_path / "run")
    with pytest.raises(RunError, match="only 0 of 1 clients answered in round 2"):
        train(exp, tmp_path / "run", spoil=times(10_000, 1), terms=Terms(minimum=0.5))
    assert "times as long as usual" in caplog.text


def test_of_a_long_reason_both_ends_are_kept():
    reply = Message(metadata=Metadata(1, "", 1, 1, "x", "", 0.0, 1.0, "train"), error=Error(1, "a" + "b" * 999 + "c"))
    assert len(error_line(reply)) < 310
    assert (error_line(reply)[0], error_line(reply)[-1]) == ("a", "c")


# ---- whose models --------------------------------------------------------------------------------------------------
def test_a_server_without_copies_cannot_judge_clients_models(tested, tmp_path):
    exp = experiment(tested, "fedavg", evaluation={})
    with pytest.raises(RequestError, match="their states stay on the nodes") as caught:
        train(exp, tmp_path / "run", terms=Terms(copy=False))
    assert "copy-states = true" in caught.value.hint
    assert not (tmp_path / "run").exists()
    judged = train(exp, tmp_path / "run", terms=Terms(copy=True))
    assert judged.result == fk.run(exp, engine="serial").result


def test_clients_without_test_sets_cannot_be_judged(problem, tmp_path):
    with pytest.raises(ExperimentError, match="no test sets of their own"):
        train(experiment(problem, "fedavg", evaluation={"share": 0.0}), tmp_path / "run", terms=Terms(copy=True))


@pytest.mark.parametrize(
    ("method", "policy"), [("fedavg-ft", {}), ("ditto", {"tune": True}), ("scaffold", {"tune": True})]
)
def test_a_final_phase_is_done_by_the_nodes(tested, tmp_path, method, policy):
    """Also by those who have never taken part; slots of the other phases pass through it."""
    exp = experiment(tested, method, evaluation=policy, participants=[[0, 1], [1, 2], [0]])
    serial, flower = fk.run(exp, engine="serial"), train(exp, tmp_path / "run", terms=Terms(copy=True))
    assert "tuned" in serial.result
    same(serial, flower)
    assert serial.result == flower.result


# ---- what nodes remember -------------------------------------------------------------------------------------------
def test_a_node_keeps_the_states_of_two_experiments_apart(problem, tmp_path, caplog):
    """They take turns on the same nodes, which are restarted each time."""
    terms, beside = Terms(copy=False), tmp_path / "beside"
    one, other = experiment(problem, "scaffold", rounds=4), experiment(problem, "scaffold", rounds=4, seed=1)
    for name, exp in {"one": one, "other": other}.items():
        train(exp.with_(rounds=2), tmp_path / name, terms=terms, folder=beside)
    for name, exp in {"one": one, "other": other}.items():
        same(fk.run(exp, engine="serial"), train(exp, tmp_path / name, terms=terms, folder=beside))
    assert "lost its state" not in caplog.text
