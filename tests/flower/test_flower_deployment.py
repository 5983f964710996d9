"""The exported app in a federation of processes, with TLS and node authentication; nodes and the server are killed."""

import re
import shutil
import signal

import pytest
import torch

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

from deployments import MISSING, Deployment, wait_for

import fedkeel as fk
from fedkeel.export_flower import export
from fedkeel.folder import read_rounds
from fedkeel.runs import load_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not on this machine: {', '.join(MISSING)}"),
]


def experiment(rounds=3, **changes):
    settings = dict(dataset="digits", model="mlp", method="scaffold", partition=fk.Dirichlet(alpha=0.5, clients=3))
    return fk.Experiment(rounds=rounds, participation=1.0, epochs=1, batch_size=50, lr=0.1, **settings | changes)


@pytest.fixture
def deployment(tmp_path, request):
    export(request.param, tmp_path / "app")
    made = Deployment(tmp_path / "app", tmp_path)
    try:
        made.superlink()
        made.register()
        yield made
    finally:
        made.close()


def is_done(deployment, out, rounds):
    return lambda: (out / "result.json").exists() and len(read_rounds(out)) == rounds


def same_model(run, out):
    found = load_run(out)
    assert all(torch.equal(weight, run.params[name]) for name, weight in found.params.items())
    assert found.result["model_digest"] == run.result["model_digest"]


@pytest.mark.parametrize("deployment", [experiment()], indirect=True, ids=["scaffold"])
def test_a_federation_is_bitwise_equal_to_serial_and_strangers_are_refused(deployment, tmp_path):
    out = tmp_path / "out"
    for number in range(3):
        deployment.node(number)
    # a node whose key nobody registered, one that trusts another authority, and one that does not say who it is
    deployment.script("make_keys.sh", tmp_path / "others", "3")
    stranger = tmp_path / "stranger"
    shutil.copytree(deployment.keys, stranger)
    for suffix in ("", ".pub"):
        shutil.copy(tmp_path / "others" / f"node-2{suffix}", stranger / f"node-2{suffix}")
    deployment.node(2, name="stranger", keys=stranger, port=3)
    deceived = tmp_path / "deceived"
    shutil.copytree(deployment.keys, deceived)
    shutil.copy(tmp_path / "others" / "ca.crt", deceived / "ca.crt")
    deployment.node(1, name="deceived", keys=deceived, port=4)
    deployment.node_without_key("nameless", 5)
    deployment.run("run", out=str(out), wait=180.0, deadline=180.0, minimum=1.0)
    wait_for(is_done(deployment, out, 3), "three rounds")
    same_model(fk.run(experiment(), engine="serial"), out)
    assert "certificate verify failed" in deployment.log("deceived").lower()
    for name in ("stranger", "nameless"):
        assert re.search("Failed to activate SuperNode|must be registered", deployment.log(name)), deployment.log(name)
    listed = deployment.flwr("supernode", "list", "fed", "--format", "json").stdout
    assert listed.count('"online"') == 3, listed
    # `flwr` itself refuses a server that another authority vouches for
    deployment.connect("other", tmp_path / "others" / "ca.crt")
    refused = deployment.flwr("supernode", "list", "other")
    assert refused.returncode != 0


FOUR = experiment(4, participants=[[0, 1, 2]] * 4)


@pytest.mark.parametrize("deployment", [FOUR], indirect=True, ids=["scaffold"])
def test_nodes_that_die_or_hang_are_left_out_and_come_back_and_the_server_restarts(deployment, tmp_path):
    out = tmp_path / "out"
    settings = {"out": str(out), "wait": 180.0, "deadline": 60.0, "minimum": 0.3, "attempts": 1}
    for number in range(3):
        deployment.node(number)
    deployment.run("first", **settings)
    wait_for(lambda: len(read_rounds(out)) >= 1, "the first round")
    deployment.kill("node-2")  # dies in the second round, and what it had in memory is gone
    deployment.signal("node-1", signal.SIGSTOP)  # hangs beyond the deadline
    wait_for(lambda: len(read_rounds(out)) >= 2, "the second round")
    deployment.signal("node-1", signal.SIGCONT)
    deployment.node(2)
    deployment.kill("superlink")  # in the third round; its database stays
    deployment.kill("first")
    done = len(read_rounds(out))
    deployment.superlink()
    deployment.run("second", **settings | {"wait": 60.0})
    wait_for(is_done(deployment, out, 4), "the other rounds")
    assert done >= 2
    said = deployment.log("out")
    gone = {
        (int(r), int(c))
        for r, c in re.findall(r"round (\d+): .*?[( ]client (\d+)\)?.*?(?:did not|has no|failed)", said)
    }
    assert {(2, 1), (2, 2)} <= gone
    assert (4, 2) not in gone  # it is back
    schedule = [[client for client in range(3) if (round, client) not in gone] for round in range(1, 5)]
    same_model(fk.run(experiment(4, participants=schedule), engine="serial"), out)
