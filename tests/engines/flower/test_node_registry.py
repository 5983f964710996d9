"""A node is whose client it says it is, once; claims that cannot be true are refused by name."""

from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

from federations import TaskIdentity
from flwr.app import ConfigRecord, Message, RecordDict

from fedkeel.engines.flower import node_registry
from fedkeel.engines.flower.checks import Terms
from fedkeel.engines.flower.client import client_number
from fedkeel.engines.flower.node_registry import NodeRegistry
from fedkeel.errors import ExperimentError, RequestError, RunError

assert TaskIdentity.run_id == 1


class Nodes:
    """Nodes by id, and what each says."""

    def __init__(self, said):
        self.said, self.asked = said, []

    def get_node_ids(self):
        return list(self.said)

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        self.asked += [m.metadata.dst_node_id for m in messages]
        answers = [(m, self.said[m.metadata.dst_node_id]) for m in messages]
        return [Message(RecordDict({"config": ConfigRecord(s)}), reply_to=m) for m, s in answers if s is not None]


def says(client, size=5, identity="x"):
    return {"client": client, "size": size, "identity": identity}


def test_nodes_are_asked_once(caplog):
    nodes = Nodes({7: says(1), 8: says(0)})
    roster = NodeRegistry(nodes, 2, "x")
    roster.update()
    roster.update()
    assert roster.nodes == {1: 7, 0: 8}
    assert sorted(nodes.asked) == [7, 8]


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        (says(2), "claims to be client 2 of 2"),
        (says(-1), "claims to be client -1"),
        (says("0"), "claims to be client 0 of 2"),
        (says(0, size=-5), "with -5 samples"),
        (says(0, identity="y"), "identity 'y', not 'x'"),
        ({}, "identity 'None', not 'x'"),
    ],
)
def test_claims_that_cannot_be_true(caplog, claim, reason):
    roster = NodeRegistry(Nodes({7: claim}), 2, "x")
    roster.update()
    roster.update()
    assert roster.nodes == {}
    assert caplog.text.count("refused node 7") == 1
    assert reason in caplog.text


def test_only_clients_of_a_partition_may_be_empty(caplog):
    roster = NodeRegistry(Nodes({7: says(0, size=0), 8: says(1)}), 2, "x", owners={})
    roster.takes_empty = False
    roster.update()
    assert (roster.nodes, roster.sizes, roster.owners) == ({1: 8}, {1: 5}, {1: 8})
    assert "refused node 7: it cannot take part: client 0 has no samples" in caplog.messages
    roster = NodeRegistry(Nodes({7: says(0, size=0), 8: says(1)}), 2, "x")
    roster.update()
    assert roster.nodes == {0: 7, 1: 8}


def test_a_second_node_cannot_take_a_clients_place_while_the_first_is_there(caplog):
    nodes = Nodes({7: says(1)})
    roster = NodeRegistry(nodes, 2, "x")
    roster.update()
    nodes.said[8] = says(1)
    roster.update()
    assert roster.nodes == {1: 7}
    assert "node 8 has to wait" in caplog.text
    del nodes.said[7]
    roster.update([1])
    assert roster.nodes == {1: 8}


def test_a_client_whose_data_changed_size_is_refused(caplog):
    nodes = Nodes({7: says(1)})
    roster = NodeRegistry(nodes, 2, "x")
    roster.update()
    nodes.said = {8: says(1, size=6)}
    roster.update()
    assert roster.nodes == {}
    assert "had 5 samples and now has 6" in caplog.text


def test_tables_with_other_columns_than_those_of_a_node_that_is_there_are_refused(caplog):
    """A node of an older version says none, and is taken; what a node that has gone said does not count."""
    nodes = Nodes({7: says(0), 8: says(1) | {"columns": "a"}, 9: says(2) | {"columns": "b"}})
    roster = NodeRegistry(nodes, 3, "x")
    roster.update()
    assert roster.nodes == {0: 7, 1: 8}
    assert "refused node 9: the columns of client 2's tables have other names than those of client 1's" in caplog.text
    nodes.said = {7: says(0), 5: says(1) | {"columns": "b"}}
    roster.update()
    nodes.said[9] = says(2) | {"columns": "b"}
    roster.update()
    assert roster.nodes == {0: 7, 1: 5, 2: 9}


def test_a_node_that_was_silent_is_asked_again():
    nodes = Nodes({7: None})
    roster = NodeRegistry(nodes, 2, "x")
    roster.update([1])
    nodes.said[7] = says(1)
    roster.update([1])
    assert roster.nodes == {1: 7}


def test_a_node_that_needs_minutes_to_read_its_data_joins(monkeypatch):
    """It gets twice the time whenever it was too slow, and no question that nobody waits for is left to it."""

    class Slow(Nodes):
        def send_and_receive(self, messages, *, timeout=None):
            times.append((timeout, messages[0].metadata.ttl))
            return super().send_and_receive(messages) if timeout > 200 else []

    times = []
    monkeypatch.setattr(node_registry, "PAUSE", 0.0)
    roster = NodeRegistry(Slow({7: says(1)}), 2, "x")
    roster.wait(1, 600.0, 1)
    assert roster.nodes == {1: 7}
    assert times == [(60.0, 60.0), (120.0, 120.0), (240.0, 240.0)]


def test_waiting_ends_with_a_hint_or_goes_on_with_enough(caplog):
    roster = NodeRegistry(Nodes({7: says(1)}), 2, "x")
    with pytest.raises(RunError, match="1 of 2 clients have a node") as caught:
        roster.wait(2, 0.0, 2)
    assert caught.value.hint
    roster.wait(2, 0.0, 1)
    assert "going on with 1 of 2" in caplog.text


@pytest.mark.parametrize(
    "wrong", [{"minimum": 0}, {"minimum": 1.5}, {"deadline": -1}, {"attempts": 0}, {"norm_factor": 1}]
)
def test_terms_out_of_range(wrong):
    with pytest.raises(ExperimentError, match=next(iter(wrong))):
        Terms(**wrong)


# ---- keys ----------------------------------------------------------------------------------------------------------
def test_a_client_belongs_to_the_key_that_first_had_it(caplog):
    """The link gives each key one node id: whoever comes with another one is not that client, also when it is away."""
    nodes, joined = Nodes({7: says(1)}), []
    roster = NodeRegistry(nodes, 2, "x", owners={})
    roster.on_join = lambda: joined.append(dict(roster.owners))
    roster.update()
    nodes.said = {8: says(1)}
    roster.update()
    roster.update()
    assert roster.nodes == {}
    assert caplog.text.count("refused node 8: it claims to be client 1, which belongs to the key of node 7") == 1
    nodes.said = {7: says(1)}
    roster.update()
    assert roster.nodes == {1: 7}
    assert joined == [{1: 7}]


def test_a_key_is_one_client_only(caplog):
    roster = NodeRegistry(Nodes({7: says(0)}), 2, "x", owners={1: 7})
    roster.update()
    assert roster.nodes == {}
    assert "refused node 7: its key is that of client 1, and it claims to be client 0" in caplog.text


def test_no_node_has_more_samples_than_can_be(caplog):
    roster = NodeRegistry(Nodes({7: says(0, size=10**15)}), 2, "x")
    roster.update()
    assert roster.nodes == {}


@pytest.mark.parametrize("settings", [{}, {"partition-id": "first"}, {"partition-id": None}])
def test_a_node_that_does_not_say_its_client_is_told_how(settings):
    with pytest.raises(RequestError, match="does not say which client") as caught:
        client_number(SimpleNamespace(node_config=settings))
    assert "partition-id=3" in caught.value.hint
