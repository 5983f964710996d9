"""The exported app in a federation of processes, with TLS and node authentication, gives the bits of the serial engine.

One SuperLink and its three nodes stay up for the whole file: every experiment is one more `flwr run` on them.
"""

import json
import re
import shutil

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

from deployments import MISSING, deployed

import fedkeel as fk
from fedkeel.data import load
from fedkeel.federation.export import export
from fedkeel.runs.finished_run import load_run
from fedkeel.runs.folder import read_rounds
from fedkeel.runs.prepare import divide

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not on this machine: {', '.join(MISSING)}"),
]

OWN = """
import numpy as np
from torch import nn


def normed(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, classes))


def mine(settings):
    folder = settings["elsewhere"]
    return np.load(f"{folder}/images.npy"), np.load(f"{folder}/labels.npy")
"""


def experiment(method="scaffold", rounds=3, **changes):
    settings = dict(dataset="digits", model="mlp", partition=fk.Dirichlet(alpha=0.5, clients=3))
    common = dict(rounds=rounds, participation=1.0, epochs=1, batch_size=50, lr=0.1)
    return fk.Experiment(method=method, **settings | common | changes)


def rows_of(client):
    """What a client of the partition has."""
    data, parts = load("digits"), divide(experiment().plan, load("digits"))
    rows = parts.indices[parts.offsets[client] : parts.offsets[client + 1]]
    return np.asarray(data.train_images)[rows], np.asarray(data.train_labels)[rows]


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Node 1 also has a folder of its own, node 2 data that only a loader of its user's can read."""
    folder = tmp_path_factory.mktemp("federation")
    for client, names in {1: ("train_images", "train_labels"), 2: ("images", "labels")}.items():
        (folder / f"data-{client}").mkdir()
        for name, array in zip(names, rows_of(client), strict=True):
            np.save(folder / f"data-{client}" / f"{name}.npy", array)
    own = {0: 'data="partition"', 1: f'data-dir="{folder}/data-1"', 2: f'data="own:mine" elsewhere="{folder}/data-2"'}
    with deployed(experiment(), folder) as made:
        for number in range(3):
            # which source an experiment with data of the nodes' own reads; one with a partition has none of it
            made.node(number, more=own[number])
        yield made


def app_of(federation, name, exp, **how):
    """One more app, with a module of the user's beside it, which travels with it."""
    app = federation.folder / f"app-{name}"
    export(exp, app, **how)
    (app / "own.py").write_text(OWN)
    return app


def trained(federation, name, exp, app=None, **settings):
    out = federation.folder / f"out-{name}"
    federation.run(name, app=app or federation.app, out=str(out), wait=300.0, deadline=300.0, minimum=1.0, **settings)

    def is_done():
        assert "Traceback" not in federation.log(name), federation.told()
        return (out / "result.json").exists() and len(read_rounds(out)) == exp.plan.rounds

    federation.wait_for(is_done, f"three rounds of {name}")
    return load_run(out)


def same_model(serial, found):
    assert all(torch.equal(weight, serial.params[name]) for name, weight in found.params.items())
    assert found.result["model_digest"] == serial.result["model_digest"]
    for name, slot in serial.server.items():  # buffers, control variates, momenta
        mine, yours = (getattr(x, "buffer", x) for x in (slot, found.server[name]))
        assert torch.equal(mine, yours), name


def test_strangers_are_refused_while_the_others_train(federation, tmp_path):
    """A node whose key nobody registered, one that trusts another authority, and one that does not say who it is."""
    federation.script("make_keys.sh", tmp_path / "others", "3")
    stranger = tmp_path / "stranger"
    shutil.copytree(federation.keys, stranger)
    for suffix in ("", ".pub"):
        shutil.copy(tmp_path / "others" / f"node-2{suffix}", stranger / f"node-2{suffix}")
    federation.node(2, name="stranger", keys=stranger, port=3)
    deceived = tmp_path / "deceived"
    shutil.copytree(federation.keys, deceived)
    shutil.copy(tmp_path / "others" / "ca.crt", deceived / "ca.crt")
    federation.node(1, name="deceived", keys=deceived, port=4)
    federation.node_without_key("nameless", 5)
    same_model(fk.run(experiment(), engine="serial"), trained(federation, "scaffold", experiment()))
    assert "certificate verify failed" in federation.log("deceived").lower()
    for name in ("stranger", "nameless"):
        assert re.search("Failed to activate SuperNode|must be registered", federation.log(name)), federation.log(name)
    assert federation.online() == 3
    # `flwr` itself refuses a server that another authority vouches for
    federation.connect("other", tmp_path / "others" / "ca.crt")
    assert federation.flwr("supernode", "list", "other").returncode != 0
    for name in ("stranger", "deceived", "nameless"):
        federation.kill(name)


@pytest.mark.parametrize("method", ["fedfft-d", "fedwmsam", "fedper"])
def test_a_federation_is_bitwise_equal_to_serial(federation, method):
    """Duals and a filter; a momentum that travels; layers that never leave their node."""
    exp = experiment(method)
    found = trained(federation, method, exp, app_of(federation, method, exp))
    same_model(fk.run(exp, engine="serial"), found)


def test_buffers_and_a_users_own_model_travel(federation, monkeypatch):
    exp = experiment("fedavg", model="own:normed")
    app = app_of(federation, "buffers", exp)
    monkeypatch.syspath_prepend(str(app))
    found = trained(federation, "buffers", exp, app)
    assert "buffers" in found.server
    same_model(fk.run(exp, engine="serial"), found)


def test_a_final_phase_is_done_on_the_nodes(federation):
    exp = experiment("fedavg-ft", rounds=1, evaluation={"share": 0.2})
    found = trained(federation, "tuned", exp, app_of(federation, "tuned", exp), copy_states=True)
    serial = fk.run(exp, engine="serial")
    assert "tuned" in serial.result
    assert json.loads((found.path / "result.json").read_text()) == json.loads(json.dumps(serial.result))


def test_nodes_with_data_of_their_own(federation):
    """A part of a data set, a folder, and a loader, side by side; the server has not one row of them."""
    exp = experiment()
    app = app_of(federation, "own", exp, data="folder", clients=3)
    same_model(fk.run(exp, engine="serial"), trained(federation, "own", exp, app))
