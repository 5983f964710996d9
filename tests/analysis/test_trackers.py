"""Trackers with their own libraries and a local store; a missing library is a visible skip."""

import sys
from types import SimpleNamespace

import pytest

import fedkeel as fk
from fedkeel.trackers import MLflow, Several, TensorBoard, Wandb, numbers


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


def test_weights_and_biases_is_told_through_its_library(small, monkeypatch):
    """With a stand-in for the library: the calls, their order and their numbers."""
    calls = []
    made = SimpleNamespace(
        log=lambda values, step: calls.append((step, values)), finish=lambda: calls.append(("finished", {}))
    )
    opened = {}
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **settings: opened.update(settings) or made))
    run = fk.run(experiment(small), progress=Wandb("mine"), engine="serial")
    assert opened["name"] == "mine"
    assert opened["config"]["lr"] == "0.1"
    assert [step for step, _ in calls] == [1, 2, 3, "finished"]
    assert [values["accuracy"] for _, values in calls[:3]] == run.curve("accuracy")


def test_a_missing_library_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(fk.RequestError, match="not installed") as error:
        Wandb("mine")
    assert "pip install" in error.value.hint
