"""Trackers with their own libraries and a local store; a missing library is a visible skip."""

import contextlib
import json
import sys
import time
from itertools import count
from types import SimpleNamespace

import pytest

import fedkeel as fk
from fedkeel.runs.trackers import MLflow, Several, TensorBoard, Wandb, numbers


def experiment(problem):
    return fk.Experiment(problem=problem, rounds=3, participation=1.0, epochs=1, batch_size=8, lr=0.1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_tensorboard_holds_every_number_of_every_round(small, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = fk.run(experiment(small), progress=TensorBoard(tmp_path), track=("drift",), engine="serial")
    events = EventAccumulator(str(tmp_path)).Reload()
    assert set(events.Tags()["scalars"]) == set(numbers(run.records[0]))
    for name in ("accuracy", "update/cosine", "bytes_up"):
        logged = [(event.step, event.value) for event in events.Scalars(name)]
        assert [step for step, _ in logged] == [1, 2, 3]
        assert [value for _, value in logged] == pytest.approx(run.curve(name), rel=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_mlflow_holds_settings_and_rounds(small, tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    tracker = MLflow("first", uri=tmp_path.as_uri())
    run = fk.run(experiment(small), progress=Several([None, tracker]), track=("drift",), engine="serial")
    home = tracker.client.get_experiment_by_name("fedkeel").experiment_id
    (logged,) = tracker.client.search_runs([home])
    assert logged.info.status == "FINISHED"
    assert logged.data.params["method.name"] == "fedavg"
    history = tracker.client.get_metric_history(logged.info.run_id, "update/cosine")
    assert sorted((m.step, m.value) for m in history) == list(zip([1, 2, 3], run.curve("update/cosine"), strict=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_run_that_fails_is_marked_so(small, tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    tracker = MLflow("broken", uri=tmp_path.as_uri())

    def fail(seen):
        raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"), Several([tracker]) as progress:
        fk.run(experiment(small), progress=progress, track=(fail,), engine="serial")
    home = tracker.client.get_experiment_by_name("fedkeel").experiment_id
    assert [run.info.status for run in tracker.client.search_runs([home])] == ["FAILED"]


@pytest.fixture
def stand_in(monkeypatch):
    """A stand-in for the library of Weights & Biases: what it was opened with, and the calls."""
    opened, calls = {}, []
    made = SimpleNamespace(
        log=lambda values, step: calls.append((step, values)), finish=lambda exit_code: calls.append((exit_code, {}))
    )
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **settings: opened.update(settings) or made))
    return opened, calls


def test_weights_and_biases_is_told_through_its_library(small, stand_in):
    opened, calls = stand_in
    run = fk.run(experiment(small), progress=Wandb("mine"), engine="serial")
    assert opened["name"] == "mine"
    assert opened["config"]["lr"] == "0.1"
    assert [step for step, _ in calls] == [1, 2, 3, 0]
    assert [values["accuracy"] for _, values in calls[:3]] == run.curve("accuracy")


def test_the_library_of_weights_and_biases_is_told_of_a_failure(small, stand_in):
    def fail(seen):
        raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"), Several([Wandb("broken")]) as progress:
        fk.run(experiment(small), progress=progress, track=(fail,), engine="serial")
    assert stand_in[1] == [(1, {})]


def records_of(file):
    """What an offline run left: blocks of 32 kB, in them pieces: checksum, length, place in their record, bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:  # too little for a head: zeros
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # the only piece, or the last
            yield Record.FromString(whole)
            whole = b""


def history_of(records):
    """Each logged step as a dict of numbers."""
    rows = [record.history for record in records if record.HasField("history")]
    return [{"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in row.item} for row in rows]


@pytest.fixture(scope="module")
def wandb_run(tmp_path_factory):
    """The records of an offline run by its name; the library reads its variables once per process."""
    pytest.importorskip("wandb", reason="wandb is not installed")
    root = tmp_path_factory.mktemp("wandb")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"MODE": "offline", "DIR": str(root), "SILENT": "true", "CONSOLE": "off"}.items():
            patch.setenv(f"WANDB_{name}", value)
        yield lambda name: wait_for_wandb_run(root, name)


def wait_for_wandb_run(root, name):
    """The records of a run that has ended: the library's own process may still be writing them."""
    from google.protobuf.message import DecodeError

    until = time.monotonic() + 60
    while time.monotonic() < until:
        for file in root.rglob("run-*.wandb"):
            records = []
            with contextlib.suppress(DecodeError):  # half a record
                records = list(records_of(file))
            begun = any(record.run.display_name == name for record in records if record.HasField("run"))
            if begun and any(record.HasField("exit") for record in records):
                return records
        time.sleep(0.1)
    raise AssertionError(f"the run {name!r} has not ended")


@pytest.mark.slow  # the library starts a process of its own
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
def test_weights_and_biases_keeps_a_run_on_disk_when_it_is_offline(small, wandb_run):
    run = fk.run(experiment(small), progress=Wandb("first"), track=("drift",), engine="serial")
    records = wandb_run("first")
    rows = history_of(records)
    assert [row["_step"] for row in rows] == [1, 2, 3]
    for name in ("accuracy", "update/cosine", "bytes_up"):
        assert [row[name] for row in rows] == pytest.approx(run.curve(name))
    (begun,) = [record.run for record in records if record.HasField("run")]
    assert (begun.display_name, begun.project) == ("first", "fedkeel")
    assert {item.key: json.loads(item.value_json) for item in begun.config.update}["lr"] == "0.1"
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
def test_weights_and_biases_is_told_of_a_failure(small, wandb_run):
    rounds = count(1)

    def fail_in_the_second(seen):
        if next(rounds) == 2:
            raise RuntimeError("lost")
        return {}

    with pytest.raises(RuntimeError, match="lost"), Several([Wandb("broken")]) as progress:
        fk.run(experiment(small), progress=progress, track=(fail_in_the_second,), engine="serial")
    records = wandb_run("broken")
    assert [row["_step"] for row in history_of(records)] == [1]
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [1]


def test_a_missing_library_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(fk.RequestError, match="not installed") as error:
        Wandb("mine")
    assert "pip install" in error.value.hint
