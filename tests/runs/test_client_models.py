"""A client's model taken out of a run is the one that was judged in it."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_runs import SMALL

import fedkeel as fk
from fedkeel.errors import FolderError, RequestError
from fedkeel.runs.run_folder import RunFolder
from fedkeel.studies.subject import Subject
from problems import small_problem

SIZES = (7, 12, 5, 9, 16)


def experiment(method, model="local", **changes):
    """Clients are judged on data of others, on which their models differ; the last client never trains."""
    torch.manual_seed(3)
    base = small_problem(SIZES)
    layers = (torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    network = torch.nn.Sequential(*layers) if "buffers" in changes else base.model
    problem = replace(base, model=network, tests=small_problem((40,) * len(SIZES)).clients)
    policy = {} if model is None else {"evaluation": {"model": model}}
    chosen = {"participants": [[0, 1, 2], [1, 2, 3], [0, 3, 2]], "epochs": 1, "batch_size": 4, "lr": 0.3}
    return fk.Experiment(problem=problem, method=method, rounds=3, **chosen | policy | changes)


def judged(model, problem, client):
    inputs, labels = problem.tests[client]
    return float((model(inputs).argmax(-1) == labels).double().mean())


def mean_loss(model, problem, client):
    inputs, labels = problem.tests[client]
    return torch.nn.functional.cross_entropy(model(inputs), labels).item()


@pytest.mark.parametrize(
    ("method", "engine", "model", "changes"),
    [
        ("fedper", "serial", "local", {}),
        ("fedper", "stacked", "local", {}),
        ("fedper", "serial", "received", {}),
        ("ditto", "serial", "local", {}),
        ("ditto", "stacked", "local", {}),
        ("ditto", "stacked", "received", {"buffers": "keep"}),
        ("fedavg", "serial", "local", {"buffers": "keep"}),
        ("fedavg", "stacked", "received", {"buffers": "keep"}),
        ("fedavg", "serial", "local", {"buffers": "average"}),
    ],
)
def test_a_clients_model_is_the_one_that_was_judged(tmp_path, method, engine, model, changes):
    asked = experiment(method, model, **changes)
    run = fk.run(asked, out=tmp_path, engine=engine)
    problem, scores = asked.problem, run.records[-1].clients["accuracy"]
    for read in (run, fk.load_run(tmp_path, problem=problem)):
        models = [read.model(client=client) for client in range(len(SIZES))]
        assert [judged(one, problem, i) for i, one in enumerate(models)] == pytest.approx(scores, abs=1e-5)
        assert not models[0].training
    others = [judged(models[i - 1], problem, i) for i in range(len(SIZES))]
    assert others != pytest.approx(scores, abs=1e-5)  # else the test would not tell whose model it is


@pytest.mark.parametrize("method", ["fedgloss", "fednsam@released"])
def test_a_model_that_the_server_sends_in_place_of_its_own_is_the_one_that_was_judged(tmp_path, caplog, method):
    """Of a client that never trained, too: it begins with the same."""
    asked = experiment(method, "received", lr=1.0)
    run = fk.run(asked, out=tmp_path, engine="serial")
    caplog.clear()
    models = [run.model(client=client) for client in range(len(SIZES))]
    scores = run.records[-1].clients["loss"]
    assert [mean_loss(one, asked.problem, i) for i, one in enumerate(models)] == pytest.approx(scores, rel=1e-5)
    assert [mean_loss(run.model(), asked.problem, i) for i in range(len(SIZES))] != pytest.approx(scores, rel=1e-3)
    assert not caplog.records


def test_without_a_policy_it_is_what_the_client_would_begin_with(tmp_path):
    """As a site has it: the server's model with the client's own head."""
    run = fk.run(experiment("fedper", None), out=tmp_path, engine="serial")
    judged_so = fk.run(experiment("fedper", "received"), out=tmp_path / "received", engine="serial")
    one, other = (of.model(client=1).state_dict() for of in (run, judged_so))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(one["0.weight"], run.params["0.weight"])
    assert not torch.equal(one["2.weight"], run.params["2.weight"])


def test_a_client_that_never_trained_is_told_of(tmp_path, caplog):
    run = fk.run(experiment("fedper"), out=tmp_path, engine="serial")
    caplog.clear()
    start = dict(small_problem(SIZES).model.named_parameters())
    assert all(torch.equal(part, start[name]) for name, part in run.model(client=4).named_parameters())
    assert [record.message for record in caplog.records] == [
        "client 4 has never trained: its model is as the run began"
    ]


def test_what_is_not_there_is_refused_in_one_line(tmp_path):
    run = fk.run(experiment("fedper"), out=tmp_path / "a", engine="serial")
    for client in (-1, 5, True, "3", 1.0):
        with pytest.raises(RequestError, match="this run has no client") as refused:
            run.model(client=client)
        assert refused.value.hint == "clients are numbered from 0 to 4"
    with pytest.raises(RequestError, match="at the last model alone"):
        run.model("plain", client=1)
    with pytest.raises(RequestError, match="no folder"):
        fk.run(experiment("fedper"), engine="serial").model(client=1)
    for method in ("fedavg", "scaffold"):
        for model in (None, "global"):
            plain = fk.run(experiment(method, model), engine="serial")
            with pytest.raises(RequestError, match=f"clients of {method} keep no model of their own") as refused:
                plain.model(client=1)
            assert 'evaluation = {model = "local"}' in refused.value.hint
    shutil.rmtree(tmp_path / "a" / "checkpoint")
    with pytest.raises(FolderError, match="no checkpoint of round 3"):
        run.model(client=1)


def test_a_state_that_stayed_at_its_site_is_not_taken_for_one_that_never_was(tmp_path, monkeypatch):
    run = fk.run(experiment("fedper", None), out=tmp_path, engine="serial")
    monkeypatch.setattr("fedkeel.runs.store.ClientStore.get", lambda store, client: None)
    with pytest.raises(FolderError, match="client 1 has trained") as refused:
        run.model(client=1)
    assert "load_personal_model" in refused.value.hint


def test_an_exported_model_is_that_clients_and_was_judged(fedkeel, trained):
    (run,) = trained(
        "--method", "fedper", "--set", "evaluation.model=local", "--model", "mlp", "--set", "participation=1.0"
    )
    done = fedkeel("export", "model", run["folder"], "m.safetensors", "--client", "3")
    assert (done.code, done.out) == (0, "m.safetensors\n")
    assert "note: client 3's own model, after round 2\n" in done.err
    assert "as the run began" not in done.err
    read, expected = fk.load_run(run["folder"]), load_file("m.safetensors")
    found, task = read.model(client=3), Subject(read).task
    assert found.state_dict().keys() == expected.keys()
    assert all(torch.equal(part, expected[name]) for name, part in found.state_dict().items())
    found.load_state_dict(expected)
    inputs, labels = task.prepare(task.tests.rows(3, np.arange(task.tests.sizes[3])))
    accuracy = float((found(inputs).argmax(-1) == labels).double().mean())
    assert accuracy == pytest.approx(read.records[-1].clients["accuracy"][3], abs=1e-5)


def test_of_an_unfinished_run_it_is_the_last_checkpoints(fedkeel, trained, monkeypatch):
    def stop(folder, record):
        if record.round > 1:
            raise KeyboardInterrupt
        append(folder, record)

    append, words = RunFolder.append, ("--method", "fedper", "--set", "participation=1.0")
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append", stop)
        fedkeel("run", *SMALL, "--rounds", "2", "--out", "one", "--model", "mlp", *words)
    done = fedkeel("export", "model", "one", "m.safetensors", "--client", "3")
    assert (done.code, done.out) == (0, "m.safetensors\n")
    told = "note: the model that client 3 would begin with next, after round 1 of the 2 asked for\n"
    assert told in done.err
    shutil.rmtree("one/checkpoint")
    done = fedkeel("export", "model", "one", "m.safetensors", "--client", "3")
    assert (done.code, "has lost its checkpoint: the weights are gone" in done.err) == (2, True)


def test_the_command_says_what_cannot_be_exported(fedkeel, trained):
    (run,) = trained("--method", "fedavg")
    done = fedkeel("export", "model", run["folder"], "m.safetensors", "--client", "3")
    assert done.code == 2
    assert "clients of fedavg keep no model of their own" in done.err
    (run,) = trained("--method", "fedper")
    done = fedkeel("export", "model", run["folder"], "m.safetensors", "--client", "1000")
    assert (done.code, "this run has no client 1000" in done.err) == (2, True)
