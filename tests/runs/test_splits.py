"""What is trained on is not judged on, in whole experiments; and what runs say of their clients."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import torch
from for_each import for_each

import fedkeel as fk
from fedkeel.data import DATASETS, load
from fedkeel.data.clients import describe_clients
from fedkeel.data.partition.registry import load_partition, may_repeat
from fedkeel.papers.cells import PAPERS, tables
from fedkeel.runs.notes import describe_task
from fedkeel.runs.plan import Plan
from fedkeel.runs.prepare import problem_of, task_maker

REFILL = {"kind": "dirichlet", "form": "client-prior-refill", "alpha": 0.1, "clients": 20}
FORMS = [
    REFILL,
    {"kind": "pathological", "form": "shuffled", "classes": 2, "clients": 20},
    {"kind": "long-tail", "imbalance": 5, "base": REFILL},
    {"kind": "dirichlet", "alpha": 0.1, "clients": 20},
]


def task_of(experiment):
    return task_maker(experiment.plan, torch.device("cpu"), torch.float32)(problem_of(experiment.plan))


def samples_of(clients):
    """Images as bytes: no two of the digits are the same."""
    rows = [clients.rows(client, np.arange(size))[0] for client, size in enumerate(clients.sizes.tolist())]
    return {image.numpy().tobytes() for row in rows for image in row}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("partition", FORMS, ids=lambda form: form.get("form", form["kind"]))
@pytest.mark.parametrize("method", ["fedavg", "fedlaw"])  # the server of the second has data of its own
def test_no_sample_is_trained_on_and_judged_on(partition, method, seed):
    images = load("digits").train_images
    assert len({image.tobytes() for image in images}) == len(images)
    experiment = fk.Experiment(
        dataset="digits", model="logistic", method=method, partition=partition, seed=seed, validation=0.1,
        evaluation={"share": 0.2},
    )  # fmt: skip
    task = task_of(experiment)
    sides = [samples_of(part) for part in (task.clients, task.validation, task.tests)]
    if task.problem.proxy is not None:
        sides.append({image.numpy().tobytes() for image in task.problem.proxy[0]})
    assert all(sides)
    assert sum(map(len, sides)) == len(set.union(*sides))


class Repeating:
    """Samples twice at one client, and at two; in no order."""

    clients = 3

    def divide(self, labels, key, *, groups=None):
        rows = np.random.default_rng(key).integers(0, len(labels) // 2, (self.clients, len(labels) // 2))
        return fk.Partition(rows.ravel(), np.arange(self.clients + 1) * rows.shape[1], len(labels))


@pytest.mark.parametrize("partition", [*FORMS, Repeating()], ids=["refill", "shuffled", "long-tail", "exact", "own"])
@pytest.mark.parametrize("aside", [{"validation": 0.2}, {"evaluation": {"model": "global", "share": 0.3}}, "both"])
def test_no_sample_of_ones_own_pool_is_trained_on_and_judged_on(partition, aside):
    """And the note says how many samples are unused, and how many are copies, as for a built-in data set."""
    aside = {"validation": 0.2, "evaluation": {"model": "global", "share": 0.3}} if aside == "both" else aside
    data = (torch.arange(600.0)[:, None], torch.arange(600) % 5)
    task = task_of(fk.Experiment(data=data, model="logistic", partition=partition, **aside))
    parts = [part for part in (task.clients, task.validation, task.tests) if part is not None]
    sides = [samples_of(part) for part in parts]
    assert all(sides)
    assert sum(map(len, sides)) == len(set.union(*sides))
    held = sum(int(part.sizes.sum()) for part in parts)
    distinct = sum(map(len, sides))
    assert f"; {600 - distinct} unused, {held - distinct} duplicated; " in describe_task(task)


@for_each("name", DATASETS)
def test_no_data_sets_own_partition_repeats_samples(name):
    assert not may_repeat(load_partition(DATASETS[name].preset["partition"]))


@for_each("paper", PAPERS)
def test_every_cell_names_the_form_of_its_partition(paper):
    """So that no default decides what a paper's experiment is."""
    for table in tables(paper):
        for cell in table.cells:
            partition = cell.experiment["partition"]
            partition = partition.get("base", partition)
            assert partition["kind"] in ("iid", "natural", "quantity-skew") or "form" in partition, cell.label


# ---- runs of version 0.1.0 -----------------------------------------------------------------------------------------
def made_before(folder):
    """As that version left it: it did not say how shares were set aside."""
    told = json.loads((folder / "environment.json").read_text())
    del told["held_out"]
    (folder / "environment.json").write_text(json.dumps(told))


def experiment(**changes):
    settings = dict(dataset="digits", model="logistic", rounds=1, partition=REFILL, lr=0.1, batch_size=50)
    return fk.Experiment(**settings | changes)


@pytest.mark.parametrize("aside", [{"validation": 0.1}, {"evaluation": {"share": 0.2}}])
def test_an_old_run_that_leaks_is_not_gone_on_with(tmp_path, aside):
    fk.run(experiment(**aside), out=tmp_path, engine="serial")
    assert fk.run(experiment(rounds=2, **aside), out=tmp_path, engine="serial").result["rounds"] == 2
    made_before(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    with pytest.raises(fk.FolderError, match="copies of validation or test samples were trained on"):
        fk.run(experiment(rounds=3, **aside), out=tmp_path, engine="serial")
    assert before == {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}


@pytest.mark.parametrize("aside", [{"validation": 0.1}, {"evaluation": {"share": 0.2}}])
def test_an_old_run_that_leaks_is_told_when_it_is_read(tmp_path, aside, caplog, monkeypatch):
    fk.run(experiment(**aside), out=tmp_path / "new", engine="serial")
    with monkeypatch.context() as then:  # its fingerprint did not tell how shares were cut
        then.setattr(Plan, "sets_copies_aside", False)
        fk.run(experiment(**aside), out=tmp_path / "old", engine="serial")
    made_before(tmp_path / "old")
    for name in ("new", "old"):
        fk.load_run(tmp_path / name)
    (told,) = caplog.messages
    assert "copies of validation or test samples were trained on: its scores are too high" in told


def test_a_file_without_a_form_is_told_what_changed_from_python_too(caplog):
    data = {"dataset": "digits", "partition": "dirichlet:alpha=0.1,clients=5"}
    fk.Experiment.load(data)
    fk.Experiment.load({"dataset": "digits"})
    assert [text.startswith("no form is given for the dirichlet partition") for text in caplog.messages] == [True, True]
    caplog.clear()
    fk.Experiment.load(fk.Experiment.load(data | {"partition": REFILL}).save())
    fk.Experiment(**data)
    assert caplog.messages == []


@pytest.mark.parametrize(
    "changes", [{}, {"partition": "dirichlet:alpha=0.1,clients=20,form=class-wise", "validation": 0.1}]
)
def test_old_runs_that_do_not_leak_go_on(tmp_path, changes):
    fk.run(experiment(**changes), out=tmp_path / "run", engine="serial")
    made_before(tmp_path / "run")
    resumed = fk.run(experiment(rounds=2, **changes), out=tmp_path / "run", engine="serial")
    assert resumed.result == fk.run(experiment(rounds=2, **changes), engine="serial").result


def test_only_what_changed_has_another_fingerprint():
    """These are those of version 0.1.0, but for the last."""
    exact = REFILL | {"form": "client-prior-exact"}
    assert experiment().fingerprint() == "2a05951c452b"
    assert experiment(partition=exact, validation=0.1).fingerprint() == "c89a87f3f5c5"
    assert experiment(validation=0.1).fingerprint() != "a73daba4ba3b"


# ---- what runs say -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("partition", FORMS, ids=lambda form: form.get("form", form["kind"]))
def test_a_run_says_who_holds_how_much(partition, caplog):
    given = experiment(partition=partition, validation=0.1)
    divided = load_partition(partition).divide(np.asarray(load("digits").train_labels), 0)
    assert bool(divided.duplicated) == may_repeat(load_partition(partition))
    with caplog.at_level(logging.INFO, logger="fedkeel"):
        fk.run(given, engine="serial")
    task = task_of(given)
    held, aside = task.problem.data.partition, int(task.validation.sizes.sum())
    sizes = f"20 clients hold {held.sizes.min()} to {held.sizes.max()} samples"
    counts = f"{held.unused} unused, {held.duplicated} duplicated; {aside} of them for validation"
    assert f"{sizes}; {counts}" in caplog.messages[0]


def test_samples_of_the_server_and_of_tests_are_not_unused():
    given = experiment(method="fedlaw", partition="iid:clients=10", evaluation={"share": 0.2, "pool": False})
    task = task_of(given)
    told = describe_task(task)
    assert "; 0 unused, 0 duplicated; " in told
    assert told.endswith(f"{int(task.tests.sizes.sum())} of them for the clients' own tests")


def test_clients_with_data_of_their_own_are_told_by_their_sizes(small, toy):
    assert describe_clients(small.data) == "6 clients hold 1 to 16 samples"
    assert describe_clients(toy.data) == "3 clients hold 1 sample each"
