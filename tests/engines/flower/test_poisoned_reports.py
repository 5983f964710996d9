"""Law over methods and slots: whatever a node puts into its report, the server's state is not poisoned by it."""

import re
from dataclasses import dataclass

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

from federations import InProcess, experiment, same, train
from federations import problem as make_problem
from flwr.app import Array, Message, RecordDict

import fedkeel as fk
from fedkeel.core.round import broadcast, init_server
from fedkeel.core.trees import all_finite
from fedkeel.engines.flower.checks import Terms
from fedkeel.engines.flower.engine import FlowerEngine
from fedkeel.engines.flower.node_registry import NodeRegistry
from fedkeel.errors import RunError
from fedkeel.runs.checkpoint import find_newest
from fedkeel.runs.prepare import method_of, problem_of, task_maker

EVERYONE = list(range(6))
TERMS = Terms(minimum=0.5, copy=False)


def changed(slot, change):
    """The numbers of a slot, changed."""

    def spoil(reply):
        record = reply.content.array_records[slot]
        (key,) = record
        old = record[key].numpy()
        record[key] = Array(np.asarray(change(old), old.dtype).reshape(old.shape))
        return reply

    return spoil


def fill(slot, value):
    return changed(slot, lambda old: np.full(old.shape, value))


def scaled(slot, factor):
    return changed(slot, lambda old: old * factor)


def at(round, spoil):
    return lambda r, c, reply: spoil(reply) if (r, c) == (round, 1) else reply


def asked(method):
    return experiment(make_problem(), method, rounds=2, participants=[EVERYONE] * 2)


def without(method, round):
    schedule = [EVERYONE, EVERYONE]
    schedule[round] = [0, 2, 3, 4, 5]
    return fk.run(asked(method).with_(participants=schedule), engine="serial")


# ---- every slot of every method ------------------------------------------------------------------------------------
class Recorded(InProcess):
    """Nodes that train once; asked again, they send what they sent then."""

    def __init__(self, exp):
        super().__init__(exp)
        self.sent, self.poison = {}, at(0, lambda reply: reply)

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            of = message.content["config"].get("round"), message.metadata.dst_node_id - 100
            if of not in self.sent:
                (self.sent[of],) = super().send_and_receive([message])
            content = RecordDict({name: record.copy() for name, record in self.sent[of].content.items()})
            reply = Message(content, reply_to=message)
            replies.append(reply if of[0] is None else self.poison(*of, reply))
        return replies


class Rounds:
    """The server's half of two rounds, up to the reports that count."""

    def __init__(self, method):
        exp = asked(method)
        plan = exp.plan
        self.task = task_maker(plan, torch.device("cpu"), torch.float32)(problem_of(plan))
        self.method, self.training = method_of(plan, self.task), plan.training
        self.grid, self.identity = Recorded(exp), exp.fingerprint()
        self.message = broadcast(self.method, init_server(self.method, self.task.initial, self.task.buffers))

    def counted(self, poisoned=0, spoil=lambda reply: reply):
        """The reports of the poisoned round that count, of a server that has seen those before it."""
        registry = NodeRegistry(self.grid, len(EVERYONE), self.identity)
        engine = FlowerEngine(self.task, self.method, self.training, self.grid, registry, TERMS)
        self.grid.poison = at(poisoned, spoil)
        states = [None] * len(EVERYONE)
        for round in range(poisoned + 1):
            outcomes = engine.train(self.message, round, 0.1, EVERYONE, states)
        return {outcome.client: outcome.report for outcome in outcomes if all_finite((outcome.report, outcome.state))}


QUICK = ("scaffold", "fedsmoo", "fedscam", "feddisco", "fedadamw")


@pytest.mark.parametrize(
    "method", [m if m in QUICK else pytest.param(m, marks=pytest.mark.slow) for m in sorted(fk.METHODS)]
)
def test_a_poisoned_slot_is_refused(method, caplog):
    """In the first round it is compared with the other clients, later also with what came before."""
    rounds = Rounds(method)
    honest = [rounds.counted(round) for round in (0, 1)]
    assert [sorted(counted) for counted in honest] == [EVERYONE, EVERYONE]
    assert "refused" not in caplog.text
    assert {"delta", "loss", "size", "steps", "lr"} <= honest[0][1].keys()
    for slot in honest[0][1]:
        for round, value in ((0, 1e9), (0, np.nan), (1, -1e9), (1, 1e30)):
            counted = rounds.counted(round, fill(f"report/{slot}", value))
            assert sorted(counted) == [0, 2, 3, 4, 5], (slot, round, value)


def test_a_control_variate_that_is_multiplied_changes_nothing(tmp_path, caplog):
    """The defect that this law was written for; what is checkpointed is finite."""
    for round, factor in ((0, 1e9), (1, -1e9), (1, 1e30)):
        caplog.clear()
        out, spoil = tmp_path / f"{round} {factor}", at(round, scaled("report/c_moved", factor))
        same(without("scaffold", round), train(asked("scaffold"), out, spoil=spoil, terms=TERMS))
        assert re.search("refused the reply of node 101 .client 1.: its c_moved is .* times as long", caplog.text)
        newest, _ = find_newest(out / "checkpoint")
        assert all_finite(newest.server)


def test_a_memory_of_the_server_that_is_not_finite_is_never_written(tmp_path):
    """Reports within bounds may still overflow in a rule: the run ends, and the rounds before are kept."""

    @dataclass(frozen=True)
    class Overflows(fk.Rule):
        def server_slots(self, params):
            return {"memory": params.ones()}

        def server_step(self, update, server, reports):
            return update, server | {"memory": server["memory"] * 1e10}

    method = fk.method("overflows", server=[Overflows()], weights=fk.BySize())
    exp = experiment(make_problem(), method, rounds=9)
    with pytest.raises(RunError, match="the server's memory is not finite after round"):
        fk.run(exp, out=tmp_path / "run", engine="serial")
    newest, _ = find_newest(tmp_path / "run" / "checkpoint")
    assert all_finite(newest.server)


# ---- facts ---------------------------------------------------------------------------------------------------------
def test_a_lied_fact_is_refused_however_small_the_lie(caplog):
    rounds = Rounds("fedavg")
    for fact in ("size", "steps", "lr"):
        for factor in (2.0, 0.5, 1e9, -1.0):
            caplog.clear()
            assert 1 not in rounds.counted(1, scaled(f"report/{fact}", factor))
            assert re.search(f"it says {fact} .*, and the server knows", caplog.text)


def test_a_fact_within_rounding_is_the_servers_own():
    """A node whose machine rounds a rate otherwise is heard, and its rate does not count."""
    rounds = Rounds("scaffold")
    honest, rounded = rounds.counted(1), rounds.counted(1, scaled("report/lr", 1.000001))
    assert rounded[1]["lr"] == honest[1]["lr"]


def test_a_lied_histogram_is_refused(caplog, monkeypatch):
    """The server has the data of a partition, and counts itself; else it knows how many labels there are."""
    rounds = Rounds("feddisco")
    assert 1 not in rounds.counted(1, fill("report/histogram", 2.0))
    assert "it says histogram 2 2 2, and the server knows" in caplog.text
    monkeypatch.setattr(type(rounds.task.problem.data), "hidden", True, raising=False)
    swapped = changed("report/histogram", lambda old: old[::-1])
    assert 1 in rounds.counted(1, swapped)  # only the node can know
    for lie in (scaled("report/histogram", 1e9), scaled("report/histogram", -1.0), fill("report/histogram", 4 / 3)):
        assert 1 not in rounds.counted(1, lie)
    assert "labels in classes, and has 4" in caplog.text
