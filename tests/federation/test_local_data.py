"""Nodes with data of their own: the server never sees a row, and the result is that of the same data in one place."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

from federations import InProcess, same

import fedkeel as fk
from fedkeel.data import load
from fedkeel.data.clients import Rows
from fedkeel.errors import DataError, FolderError, RunError, UntrustedError
from fedkeel.federation.apps import node_of, read_app, serve
from fedkeel.federation.local_data import RemoteClients, call_loader, read_folder, server_problem
from fedkeel.importing import Trust
from fedkeel.runs.prepare import divide

LOADER = """
import numpy as np

def mine(settings):
    folder = settings["where"]
    return np.load(f"{folder}/train_images.npy"), np.load(f"{folder}/train_labels.npy").astype("int32")
"""


def experiment(**changes):
    settings = dict(dataset="digits", model="mlp", method="scaffold", partition=fk.Dirichlet(alpha=0.5, clients=3))
    return fk.Experiment(rounds=3, participation=1.0, epochs=1, batch_size=100, **settings | changes)


@pytest.fixture
def folders(tmp_path):
    """What each client of the partition has, in a folder of its own; and the test data, in another."""
    data, exp = load("digits"), experiment()
    parts = divide(exp.plan, data)
    for client in range(3):
        rows: Rows = parts.indices[parts.offsets[client] : parts.offsets[client + 1]]
        (tmp_path / str(client)).mkdir()
        np.save(tmp_path / str(client) / "train_images.npy", data.train_images[rows])
        np.save(tmp_path / str(client) / "train_labels.npy", np.asarray(data.train_labels)[rows])
    (tmp_path / "test").mkdir()
    np.save(tmp_path / "test" / "test_images.npy", np.asarray(data.test_images))
    np.save(tmp_path / "test" / "test_labels.npy", np.asarray(data.test_labels))
    return tmp_path


def federation(exp, folders, source):
    return InProcess(
        exp,
        node_of=lambda context: node_of(exp, context),
        settings=lambda client: {"data-dir": str(folders / str(client)), "where": str(folders / str(client))},
        run_config={"data": source, "clients": 3},
    )


@pytest.mark.parametrize("source", ["folder", "my_nodes:mine"])
def test_own_data_give_what_the_same_partition_gives(folders, monkeypatch, source):
    (folders / "my_nodes.py").write_text(LOADER)
    monkeypatch.syspath_prepend(str(folders))
    exp = experiment()
    settings = {"out": folders / "run", "source": source, "clients": 3, "wait": 0.0, "test": str(folders / "test")}
    done = serve(exp, federation(exp, folders, source), **settings)
    serial = fk.run(exp, engine="serial")
    same(serial, done)
    assert done.curve("accuracy") == serial.curve("accuracy")
    sys.modules.pop("my_nodes", None)


def test_a_resumed_server_remembers_how_much_data_each_client_has(folders):
    exp = experiment()
    settings = {"out": folders / "run", "source": "folder", "clients": 3, "wait": 0.0}
    serve(exp.with_(rounds=2), federation(exp, folders, "folder"), **settings)
    grid = federation(exp, folders, "folder")
    grid.absent = {1}
    np.save(folders / "2" / "train_labels.npy", np.load(folders / "2" / "train_labels.npy")[:-1])
    np.save(folders / "2" / "train_images.npy", np.load(folders / "2" / "train_images.npy")[:-1])
    with pytest.raises(RunError, match="1 of 3 clients have a node"):  # one is away, the other's data have changed
        serve(exp, grid, **settings)


def test_a_run_on_own_data_is_a_run_like_others_but_not_one_on_a_partition(folders):
    """Its folder can be read, and is not taken for one of the same experiment on the data set's own partition."""
    settings = {"out": folders / "run", "wait": 0.0}
    done = serve(experiment(), federation(experiment(), folders, "folder"), source="folder", clients=3, **settings)
    same(done, fk.load_run(folders / "run"))
    assert fk.load_run(folders / "run").model().state_dict().keys() == done.params.keys()
    with pytest.raises(FolderError, match="a run on other data"):
        serve(experiment(), federation(experiment(), folders, "partition"), **settings)
    serve(experiment(), federation(experiment(), folders, "partition"), **settings | {"out": folders / "other"})
    again = settings | {"out": folders / "other"}
    with pytest.raises(FolderError, match="a run on other data"):
        serve(experiment(), federation(experiment(), folders, "folder"), source="folder", clients=3, **again)


def test_each_node_may_say_how_it_reads_its_own_data(folders, monkeypatch):
    """A part of the data set, a folder, and a loader, side by side."""
    (folders / "my_nodes.py").write_text(LOADER)
    monkeypatch.syspath_prepend(str(folders))
    reads = [
        {"data": "partition"},
        {"data-dir": str(folders / "1")},
        {"data": "my_nodes:mine", "where": str(folders / "2")},
    ]
    exp = experiment()
    grid = InProcess(
        exp, node_of=lambda context: node_of(exp, context), settings=lambda client: reads[client],
        run_config={"data": "folder", "clients": 3},
    )  # fmt: skip
    done = serve(exp, grid, out=folders / "run", source="folder", clients=3, wait=0.0)
    same(fk.run(exp, engine="serial"), done)
    sys.modules.pop("my_nodes", None)


def test_the_first_start_needs_every_client(folders):
    grid = federation(experiment(), folders, "folder")
    grid.absent = {1}
    with pytest.raises(RunError, match="2 of 3 clients have a node"):
        serve(experiment(), grid, out=folders / "run", source="folder", clients=3, wait=0.0)
    assert not (folders / "run").exists()


def test_the_server_has_no_row_of_its_clients():
    problem = server_problem(experiment().plan, [5, 0, 7], "")
    assert isinstance(problem.data, RemoteClients)
    inputs, labels = problem.data.rows(0, np.arange(5))
    assert not inputs.any()
    assert not labels.any()
    assert problem.data.sizes.tolist() == [5, 0, 7]


@pytest.mark.parametrize(
    ("images", "labels", "match"),
    [
        (np.zeros((4, 9, 9), "uint8"), np.zeros(4, "int64"), "not uint8 .*8, 8"),
        (np.zeros((4, 8, 8), "uint8"), np.full(4, 10), "outside 0 … 9"),
        (np.zeros((4, 8, 8), "float32"), np.zeros(4, "int64"), "float32"),
        (np.zeros((4, 8, 8), "uint8"), np.zeros(3, "int64"), r"3,\)?,? ?\(?.*4"),
    ],
)
def test_data_of_another_form_are_refused(tmp_path, monkeypatch, images, labels, match):
    from fedkeel.data import DATASETS

    card = DATASETS["digits"]
    np.save(tmp_path / "train_images.npy", images)
    np.save(tmp_path / "train_labels.npy", labels)
    with pytest.raises(DataError, match=match):
        read_folder(card, {"data-dir": str(tmp_path)})
    (tmp_path / "loads.py").write_text("def it(settings):\n    return settings['pair']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DataError, match="loads:it gave"):
        call_loader(card, "loads:it", {"pair": (images, labels)})
    with pytest.raises(DataError, match="does not say where"):
        read_folder(card, {})
    sys.modules.pop("loads", None)


def test_a_node_runs_no_loader_that_only_the_apps_settings_name(folders, monkeypatch):
    """Whoever starts a run may change its settings; the node's own settings, and an app that says so, are trusted."""
    (folders / "my_nodes.py").write_text(f"import os\nos.mkdir({str(folders / 'ran')!r})\n{LOADER}")
    monkeypatch.syspath_prepend(str(folders))
    exp = experiment()

    def context(**settings):
        config = {"partition-id": 0, "where": str(folders / "0")} | settings
        return SimpleNamespace(node_config=config, run_config={"data": "my_nodes:mine", "clients": 3})

    with pytest.raises(UntrustedError, match="the loader 'my_nodes:mine'"):
        node_of(exp, context(), Trust.INSTALLED)
    assert not (folders / "ran").exists()
    assert node_of(exp, context(), Trust.TYPED).client == 0
    assert node_of(exp, context(data="my_nodes:mine"), Trust.INSTALLED).client == 0
    with pytest.raises(DataError, match="part of Python"):
        node_of(exp, context(data="os:system"), Trust.TYPED)
    sys.modules.pop("my_nodes", None)


def test_an_apps_experiment_is_a_file(folders):
    (folders / "experiment.toml").write_text('dataset = "digits"\nmodel = "my_nodes:Net"\n')
    with pytest.raises(UntrustedError, match="my_nodes:Net"):
        read_app(folders, trust=False)
