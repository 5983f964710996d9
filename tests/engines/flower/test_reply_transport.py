"""Replies from a link on another machine: one that does not end, or cannot be read, is nobody's loss but its node's."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

from federations import InProcess, experiment, same, train
from federations import problem as make_problem
from flwr.app import Array, ArrayRecord, Error, Message, Metadata
from flwr.common.serde import message_to_proto
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

import fedkeel as fk
from fedkeel.engines.flower import reply_transport as post
from fedkeel.engines.flower.checks import Terms
from fedkeel.engines.flower.engine import FlowerEngine
from fedkeel.engines.flower.node_registry import NodeRegistry
from fedkeel.engines.flower.site_ledger import SiteLedger
from fedkeel.runs.prepare import method_of, task_maker

EVERYONE = list(range(6))
BUT_ONE = [EVERYONE, [0, 2, 3, 4, 5], EVERYONE]


class Link(InProcess):
    """Replies lie in parts on a SuperLink, and are fetched from it as a ServerApp does.

    `damage(parts)` may change the parts of client 1's reply in the second round; None is a part that never comes.
    """

    node, run = Node(node_id=1), SimpleNamespace(run_id=1)

    def __init__(self, exp, damage=lambda parts: parts, spoil=None):
        super().__init__(exp, spoil)
        self.damage, self.parts, self.waiting, self._runtime_client = damage, {}, [], self

    def push_messages(self, messages):
        for number, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = str(number)
            for reply in self.send_and_receive([message]):
                reply.metadata.__dict__["_message_id"] = reply.object_id
                reply.metadata.__dict__["_reply_to_message_id"] = str(number)
                parts = {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
                asked = message.content["config"].get("round")
                self.parts |= self.damage(parts) if (asked, reply.metadata.src_node_id) == (1, 101) else parts
                self.waiting.append(reply)
        return [message.metadata.message_id for message in messages]

    def PullMessages(self, request):
        come, self.waiting = self.waiting, []
        assert {reply.metadata.reply_to_message_id for reply in come} <= set(request.message_ids)
        heads = [message_to_proto(reply) for reply in come]
        return SimpleNamespace(messages_list=heads, message_object_trees=[get_object_tree(reply) for reply in come])

    def PullObject(self, request):
        content = self.parts[request.object_id]
        return SimpleNamespace(object_found=True, object_available=content is not None, object_content=content or b"")

    def ConfirmMessageReceived(self, request):
        assert request.message_object_id in self.parts


@pytest.fixture
def exp():
    return experiment(make_problem(), "scaffold", participants=[EVERYONE] * 3)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(post, "PAUSE", 0.01)


def test_scores_of_many_classes_may_be_longer_than_a_report(tmp_path):
    x, y = torch.randn(4, 2), torch.tensor([0, 1, 2, 99])
    loss = torch.nn.functional.cross_entropy
    given = fk.Problem(model=torch.nn.Linear(2, 100), loss=loss, clients=[(x, y)], test=(x, y), classes=100)
    exp = experiment(given, "fedavg")
    grid = Link(exp)
    task = task_maker(exp.plan, torch.device("cpu"), torch.float32)(given)
    registry, ledger = NodeRegistry(grid, 1, exp.fingerprint()), SiteLedger(tmp_path / "sites.jsonl", 0.5)
    method = method_of(exp.plan, task)
    engine = FlowerEngine(task, method, exp.plan.training, grid, registry, Terms(), sites=ledger)
    [scores] = engine.evaluate(task.initial, None, "test")
    assert scores["accuracy"][1] == 4
    assert "auc" in scores


def without(exp):
    return fk.run(exp.with_(participants=BUT_ONE), engine="serial")


def test_replies_come_in_parts(exp, tmp_path):
    same(fk.run(exp, engine="serial"), train(exp, tmp_path / "run", grid=Link(exp), terms=Terms()))


def missing(parts):
    """An upload that broke off: its longest part never comes."""
    return parts | {max(parts, key=lambda name: len(parts[name])): None}


def cut_short(parts):
    return {name: content[: len(content) // 2] for name, content in parts.items()}


def of_another_kind(parts):
    return {name: b"Trap" + content for name, content in parts.items()}


def endless(parts):
    return {name: content + bytes(2 << 20) for name, content in parts.items()}


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (missing, "its upload did not end"),
        (cut_short, "its reply cannot be read"),
        (of_another_kind, "its reply cannot be read"),
        (endless, "longer than the [0-9]+ bytes that were expected"),
    ],
)
def test_a_reply_that_cannot_be_fetched_harms_nobody_else(exp, tmp_path, caplog, damage, reason):
    faulty = train(exp, tmp_path / "run", grid=Link(exp, damage), terms=Terms(minimum=0.5, deadline=10.0))
    same(without(exp), faulty)
    assert len([r for r in caplog.records if "node 101 (client 1) did not answer" in r.getMessage()]) == 1
    assert caplog.text.count("did not answer") == 1
    assert re.search(reason, caplog.text), caplog.text


def test_a_reply_of_very_many_parts_is_not_fetched(exp, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(post, "OBJECTS", 50)

    def many(round, client, reply):
        if (round, client) == (1, 1):
            reply.content["more"] = ArrayRecord({str(i): Array(np.full(1, i)) for i in range(60)})
        return reply

    faulty = train(exp, tmp_path / "run", grid=Link(exp, spoil=many), terms=Terms(minimum=0.5, deadline=60.0))
    same(without(exp), faulty)
    assert "parts, of at most 50" in caplog.text


def test_a_node_whose_introduction_cannot_be_read_is_named_and_the_others_train(exp, tmp_path, caplog):
    class Garbled(Link):
        def push_messages(self, messages):
            names = super().push_messages(messages)
            if messages[0].metadata.message_type == "query":
                (bad,) = (reply for reply in self.waiting if reply.metadata.src_node_id == 101)
                self.parts |= cut_short({name: self.parts[name] for name in get_all_nested_objects(bad)})
            return names

    terms = Terms(minimum=0.5, deadline=60.0)
    faulty = train(exp, tmp_path / "run", grid=Garbled(exp), terms=terms)
    schedule = [[0, 2, 3, 4, 5]] * 3
    same(fk.run(exp.with_(participants=schedule), engine="serial"), faulty)
    assert "node 101 does not say who it is: its reply cannot be read" in caplog.text


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Error(code=5, reason="no\nheartbeat"), "no heartbeat"),
        (Error(code=3, reason="Message Unavailable"), "it is late: the 90 s of the deadline have passed"),
        (Error(code=4, reason="Reply Message Unavailable"), "it is late: the 90 s of the deadline have passed"),
    ],
)
def test_what_the_link_says_of_a_node_that_is_gone_or_late_is_named(exp, tmp_path, caplog, error, reason):
    """It answers in the node's place, from itself, to the message's number."""

    class Gone(Link):
        def push_messages(self, messages):
            names = super().push_messages(messages)
            for place, reply in enumerate(self.waiting):
                if reply.metadata.src_node_id == 101 and messages[0].content["config"].get("round") == 1:
                    asked = reply.metadata.reply_to_message_id
                    told = Metadata(1, "", 1, 1, asked, "", 0.0, 1.0, "train")
                    self.waiting[place] = instead = Message(metadata=told, error=error)
                    instead.metadata.__dict__["_message_id"] = instead.object_id
                    self.parts |= {name: part.deflate() for name, part in get_all_nested_objects(instead).items()}
            return names

    same(without(exp), train(exp, tmp_path / "run", grid=Gone(exp), terms=Terms(minimum=0.5, deadline=90.0)))
    assert f"round 2: node 101 (client 1) did not answer in time: {reason}" in caplog.text


def test_a_node_cannot_answer_for_another(exp, tmp_path, caplog):
    """What a reply says of its sender is the sender's own word: here node 101 says that it is node 100."""

    def forge(round, client, reply):
        if (round, client) == (1, 1):
            reply.metadata.__dict__["_src_node_id"] = 100
            reply.content["config"]["client"] = 0
        return reply

    class Forged(Link):
        def PullMessages(self, request):
            come = super().PullMessages(request)
            for head in come.messages_list:  # the link knows who has sent it, and lets nobody else answer
                head.metadata.src_node_id = 100 + int(head.metadata.reply_to_message_id)
            return come

    faulty = train(exp, tmp_path / "run", grid=Forged(exp, spoil=forge), terms=Terms(minimum=0.5))
    same(without(exp), faulty)
    assert "refused the reply of node 101 (client 1): it answers for client '0', not 1" in caplog.text
