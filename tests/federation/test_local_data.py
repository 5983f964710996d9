"""Nodes with data of their own: the server never sees a row, and the result is that of the same data in one place."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

from federations import InProcess, same

import fedkeel as fk
from fedkeel.data import DATASETS, load
from fedkeel.data.clients import Rows
from fedkeel.engines.flower.checks import Terms
from fedkeel.errors import DataError, FolderError, RunError, UntrustedError
from fedkeel.federation.apps import node_of, read_app, serve
from fedkeel.federation.local_data import call_loader, check_values, read_folder, server_problem
from fedkeel.federation.membership import check_sizes
from fedkeel.federation.own_problem import FormRows
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
    assert isinstance(problem.data, FormRows)
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


def test_a_node_on_another_scale_is_refused_and_its_log_says_so(folders, caplog):
    """Digits from 0 to 16, as scikit-learn has them, where the experiment's go to 255; and honest nodes are not."""
    file = folders / "1" / "train_images.npy"
    np.save(file, (np.load(file) / 16).astype("uint8"))
    grid = federation(experiment(), folders, "folder")
    with pytest.raises(RunError, match="2 of 3 clients have a node"):
        serve(experiment(), grid, out=folders / "run", source="folder", clients=3, wait=0.0)
    line = "refused node 101: it cannot take part: it stopped with DataError: see the site's log."
    assert caplog.messages.count(line) == 1
    assert caplog.text.count("this node's inputs go from 0 to 15, where 0 to 255 is expected.") == 1
    assert not (folders / "run").exists()
    assert not grid.asked


def test_data_that_went_wrong_in_mid_run_are_refused_too(folders, caplog):
    """A node looks at its data every time it trains."""
    exp = experiment(participants=[[0, 1, 2]] * 3)
    grid = federation(exp, folders, "folder")

    def spoil(round, client, reply):
        if (round, client) == (0, 2):
            file = folders / "1" / "train_images.npy"
            file.unlink()
            np.save(file, np.zeros((len(np.load(folders / "1" / "train_labels.npy")), 8, 8), "uint8"))
        return reply

    grid.spoil = spoil
    settings = {"source": "folder", "clients": 3, "wait": 0.0, "terms": Terms(minimum=0.5)}
    done = serve(exp, grid, out=folders / "run", **settings)
    same(fk.run(exp.with_(participants=[[0, 1, 2], [0, 2], [0, 2]]), engine="serial"), done)
    assert "round 2: refused the reply of node 101 (client 1): it cannot take part: it stopped" in caplog.text
    assert "this node's inputs go from 0 to 0" in caplog.text


@pytest.mark.parametrize(
    ("images", "labels", "match"),
    [
        (np.full((4, 8, 8), np.nan), np.zeros(4, "int64"), "inputs of which 256 are missing"),
        (np.full((4, 8, 8), 255, "uint8"), np.array([0.0, np.nan, 1.0, 2.0]), "labels of which 1 are missing"),
        (np.full((4, 8, 8), 255, "uint8"), np.array([0, None, 1, 2]), "labels of which 1 are missing"),
        (np.full((4, 8, 8), 255, "uint8"), np.array([0, -1, 1, 2]), "labels from -1 to 2, outside 0 … 9"),
        (np.ma.masked_equal(np.full((4, 8, 8), 255, "uint8"), 255), np.zeros(4, "int64"), "has values behind a mask"),
    ],
)
def test_missing_values_and_classes_are_named(tmp_path, monkeypatch, images, labels, match):
    (tmp_path / "lacks.py").write_text("def it(settings):\n    return settings['pair']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DataError, match=match) as caught:
        call_loader(DATASETS["digits"], "lacks:it", {"pair": (images, labels)})
    assert caught.value.hint
    with pytest.raises(DataError, match="gave a int, not inputs and labels"):
        call_loader(DATASETS["digits"], "lacks:it", {"pair": 3})
    sys.modules.pop("lacks", None)


def test_values_are_on_the_scale_of_the_experiment():
    digits, text = DATASETS["digits"], DATASETS["shakespeare"]
    check_values(digits, np.zeros((0, 8, 8), "uint8"))
    check_values(digits, np.full((1, 8, 8), 32, "uint8"))
    check_values(text, np.full((3, 80), text.vocabulary - 1))
    for card, wrong in (
        (digits, np.full((5, 8, 8), 31, "uint8")),
        (digits, np.full((5, 8, 8), 256)),
        (text, np.full((3, 80), text.vocabulary)),
        (text, np.full((3, 80), -1)),
    ):
        with pytest.raises(DataError, match="is expected"):
            check_values(card, wrong)


def test_the_hint_to_a_site_is_not_to_delete_its_data(tmp_path):
    np.save(tmp_path / "train_images.npy", np.zeros((4, 9, 9), "uint8"))
    with pytest.raises(DataError) as caught:
        read_folder(DATASETS["digits"], {"data-dir": str(tmp_path)})
    assert "delete" not in caught.value.hint
    assert "uint8 samples of shape (8, 8)" in caught.value.hint


# ---- how much ------------------------------------------------------------------------------------------------------
def test_a_client_cannot_claim_nearly_all_samples(folders):
    with pytest.raises(RunError, match="client 2 says that it has 9000000 samples, 75000 times the median") as caught:
        check_sizes([100, 120, 9_000_000], 1000.0)
    assert "norm-factor" in caught.value.hint
    check_sizes([100, 120, 90_000], 1000.0)
    check_sizes([0, 0, 7], 1000.0)


def test_a_run_remembers_whose_key_each_client_has(folders, caplog):
    """Node ids are the link's names for keys; the file can also be written beforehand."""
    exp = experiment().with_(rounds=1)
    settings = {"out": folders / "run", "source": "folder", "clients": 3, "wait": 0.0, "bind": True}
    serve(exp, federation(exp, folders, "folder"), **settings)
    owners = folders / "run-nodes.json"
    assert json.loads(owners.read_text()) == {"0": 100, "1": 101, "2": 102}
    owners.write_text(json.dumps({"0": 100, "1": 55, "2": 102}))
    with pytest.raises(RunError, match="2 of 3 clients have a node"):
        serve(exp.with_(rounds=2), federation(exp, folders, "folder"), terms=Terms(minimum=1.0), **settings)
    assert "refused node 101: it claims to be client 1, which belongs to the key of node 55" in caplog.text
    owners.write_text("[]")
    with pytest.raises(FolderError, match="it names the node of each client"):
        serve(exp.with_(rounds=2), federation(exp, folders, "folder"), **settings)


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
