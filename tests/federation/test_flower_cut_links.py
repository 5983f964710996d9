"""Processes killed and links cut in a federation of processes: the round is the one in which those were absent."""

import re
import signal

import pytest
import torch

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

from deployments import MISSING, deployed, has_saved, is_done
from links import CUT, OPEN, TRUNCATING, Cable, Relay, forbidden

import fedkeel as fk
from fedkeel.federation.export import export
from fedkeel.runs.finished_run import load_run
from fedkeel.runs.folder import read_rounds

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not on this machine: {', '.join(MISSING)}"),
]


def experiment(rounds, **changes):
    settings = dict(dataset="digits", model="mlp", method="scaffold", partition=fk.Dirichlet(alpha=0.5, clients=3))
    return fk.Experiment(rounds=rounds, participation=1.0, epochs=1, batch_size=50, lr=0.1, **settings | changes)


def absent(deployment, out):
    """Who was left out of which round, as the server's log has it."""
    line = (
        r"round (\d+): (?:refused the reply of )?(?:node \d+ \()?client (\d+)\)? ?"
        r"(?:did not answer|has no node|: it failed)"
    )
    return {(int(round), int(client)) for round, client in re.findall(line, deployment.log(out.name))}


def as_if_they_had_not_been_there(deployment, out, rounds):
    """The law of the guarantees: the same bits as a schedule without those who were left out."""
    gone = absent(deployment, out)
    schedule = [[client for client in range(3) if (round, client) not in gone] for round in range(1, rounds + 1)]
    serial, found = fk.run(experiment(rounds, participants=schedule), engine="serial"), load_run(out)
    for name, slot in serial.server.items():
        mine, yours = (getattr(x, "buffer", x) for x in (slot, found.server[name]))
        assert torch.equal(mine, yours), (name, schedule, deployment.told())
    return gone


def rounds_of(out):
    return lambda count: lambda: len(read_rounds(out)) >= count


def loses_links_in_round_two(deployment, out, cut, mend, lost):
    """Two rounds; in the second, links are cut while nodes train. Then they are mended, and one more round follows."""
    settings = {"out": str(out), "wait": 300.0, "deadline": 75.0, "minimum": 0.3, "attempts": 1}
    reached = rounds_of(out)
    deployment.run("first", **settings)
    deployment.wait_for(reached(1), "the first round")
    cut()
    deployment.wait_for(is_done(out, 2), "the second round")
    mend()
    deployment.wait_for(lambda: deployment.online() == 3, "the nodes that had been cut off", pause=2.0)
    export(experiment(3), deployment.folder / "longer")
    deployment.run("second", app=deployment.folder / "longer", **settings | {"deadline": 300.0, "minimum": 1.0})
    deployment.wait_for(is_done(out, 3), "the third round")
    gone = as_if_they_had_not_been_there(deployment, out, 3)
    assert {client for round, client in gone if round == 2} >= lost
    assert not any(round == 3 for round, _ in gone)  # they are back, with the states that the server counted


def test_a_cut_link_and_one_that_truncates(tmp_path):
    with deployed(experiment(2), tmp_path) as deployment:
        relays = {client: Relay(deployment.port) for client in (1, 2)}
        try:
            deployment.node(0)
            for client, relay in relays.items():
                deployment.node(client, reach=f"127.0.0.1:{relay.port}")

            def cut():
                relays[1].set(CUT)
                relays[2].set(TRUNCATING)

            def mend():
                assert relays[2].ended > 0  # an upload has been broken off in its middle
                for relay in relays.values():
                    relay.set(OPEN)

            loses_links_in_round_two(deployment, tmp_path / "out", cut, mend, {1, 2})
        finally:
            for relay in relays.values():
                relay.close()


def test_a_cable_that_is_pulled(tmp_path):
    """The node has a network of its own: nothing tells either side that the other is gone."""
    if reason := forbidden():
        pytest.skip(reason)
    cable = Cable()
    try:
        cable.lay()
        with deployed(experiment(2), tmp_path, host=cable.host, listen="0.0.0.0") as deployment:
            for client in (0, 2):
                deployment.node(client)
            deployment.node(1, reach=f"{cable.host}:{deployment.port}", inside=cable.inside)
            loses_links_in_round_two(deployment, tmp_path / "out", cable.pull, cable.plug, {1})
    finally:
        cable.remove()


def test_a_node_that_is_killed_and_restarted_at_once_comes_back(tmp_path):
    """The SuperLink counts it as connected for about a minute, and refuses it: the script tries again."""
    with deployed(experiment(1), tmp_path) as deployment:
        deployment.node(0)
        deployment.wait_for(lambda: deployment.online() == 1, "the node", pause=2.0)
        deployment.kill("node-0")
        deployment.node(0)
        deployment.wait_for(lambda: "starting it again" in deployment.log("node-0"), "Flower's refusal", pause=1.0)
        assert "Failed to activate" in deployment.log("node-0")
        refused = len(deployment.log("node-0"))
        deployment.wait_for(
            lambda: "Starting Flower SuperNode" in deployment.log("node-0")[refused:] and back(deployment),
            "the node's return",
            pause=2.0,
        )


def back(deployment):
    """Whether the last start of node 0 was not refused, and the server sees it."""
    last = deployment.log("node-0").rpartition("Starting Flower SuperNode")[2]
    return "Failed to activate" not in last and "starting it again" not in last and deployment.online() == 1


def test_nodes_that_die_or_hang_are_left_out_and_come_back_and_the_server_restarts(tmp_path):
    out = tmp_path / "out"
    settings = {"out": str(out), "wait": 300.0, "deadline": 75.0, "minimum": 0.3, "attempts": 1}

    def all_back():
        if deployment.processes["node-1"].poll() is not None:  # Flower ends a node whose handshake breaks off
            deployment.node(1)
        return deployment.online() == 3

    with deployed(experiment(4), tmp_path) as deployment:
        for number in range(3):
            deployment.node(number)
        deployment.run("first", **settings)
        deployment.wait_for(rounds_of(out)(1), "the first round")
        deployment.kill("node-2")  # dies in the second round, and what it had in memory is gone
        deployment.signal("node-1", signal.SIGSTOP)  # hangs beyond the deadline
        deployment.wait_for(has_saved(out, 2), "the second round")
        deployment.signal("node-1", signal.SIGCONT)
        deployment.node(2)
        deployment.kill("superlink")  # in the third round; its database stays
        deployment.kill("first")
        done = len(read_rounds(out))
        deployment.superlink()
        deployment.wait_for(all_back, "all nodes", pause=2.0)
        deployment.run("second", **settings | {"deadline": 300.0, "minimum": 1.0})
        deployment.wait_for(is_done(out, 4), "the other rounds")
        gone = as_if_they_had_not_been_there(deployment, out, 4)
    assert done >= 2
    assert {(2, 1), (2, 2)} <= gone
    assert not any(round == 4 for round, _ in gone)
