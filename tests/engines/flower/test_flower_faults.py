"""A reply that is lost, late, wrong or hostile changes nothing: the round is the one in which its client was absent."""

import io
import logging
import re
import time
import tracemalloc

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

from federations import InProcess, experiment, same, train
from federations import problem as make_problem
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message

import fedkeel as fk
from fedkeel.core.trees import Tree
from fedkeel.engines.flower.checks import Terms
from fedkeel.engines.flower.records import pack, unpack
from fedkeel.errors import RunError
from fedkeel.methods import build
from fedkeel.runs.folder import read_rounds

HALF = Terms(minimum=0.5)
NODE = Terms(minimum=0.5, copy=False)
EVERYONE = list(range(6))
BUT_ONE = [[*EVERYONE], [0, 2, 3, 4, 5], [*EVERYONE], [*EVERYONE]]


@pytest.fixture
def problem():
    return make_problem()


def lost(reply):
    return None


def failed(reply):
    return Message(metadata=reply.metadata, error=Error(code=1, reason="out of\nmemory"))


def array_of(reply, slot):
    record = reply.content.array_records[slot]
    return record, next(iter(record))


def with_array(change, slot="report/delta"):
    """Replace the numbers of a slot."""

    def spoiled(reply):
        record, key = array_of(reply, slot)
        record[key] = change(record[key])
        return reply

    return spoiled


def with_bytes(change):
    return with_array(lambda array: Array(array.dtype, array.shape, array.stype, change(array.data)))


def with_numbers(change):
    return with_array(lambda array: Array(change(array.numpy().copy())))


def one_is(value):
    def change(numbers):
        numbers[3] = value
        return numbers

    return with_numbers(change)


def renamed(reply):
    record, key = array_of(reply, "report/delta")
    reply.content["report/delta"] = ArrayRecord({key.replace("weight", "w8"): record[key]})
    return reply


def without_slot(reply):
    del reply.content["report/delta"]
    return reply


def with_slot(name):
    def spoiled(reply):
        reply.content[name] = ArrayRecord({"": Array(np.zeros(10))})
        return reply

    return spoiled


def claims(**facts):
    def spoiled(reply):
        reply.content["config"] = ConfigRecord({**reply.content["config"], **facts})
        return reply

    return spoiled


def header_of_a_giant(data):
    return data.replace(b"(", b"(99999999999", 1).replace(b" " * 11, b"", 1)


def header_says(text):
    """The array with another header of the same length."""

    def change(data):
        length = int.from_bytes(data[8:10], "little")
        return data[:10] + text.encode().ljust(length) + data[10 + length :]

    return with_bytes(change)


FAULTS = {
    "lost": (lost, "did not answer in time"),
    "failed": (failed, "it failed: out of memory"),
    "wrong shape": (with_numbers(lambda n: n[:-1]), r"'delta' is float32 \(52,\), not float32 \(53,\)"),
    "wrong type": (with_numbers(lambda n: n.astype(np.float64)), "'delta' is float64"),
    "wrong names": (renamed, "does not have the names and shapes of the model"),
    "missing slot": (without_slot, "slot 'delta' is missing"),
    "further slot": (with_slot("report/more"), "unknown slot 'more'"),
    "further record": (with_slot("elsewhere"), "unknown record 'elsewhere'"),
    "not a number": (one_is(np.nan), "not every number is finite"),
    "infinite": (one_is(np.inf), "not every number is finite"),
    "10 000 times as long": (with_numbers(lambda n: 10_000 * n), "times as long as usual"),
    "truncated": (with_bytes(lambda data: data[:-8]), "is cut short"),
    "all but empty": (with_bytes(lambda data: data[:9]), "has 9 bytes for 53 numbers"),
    "longer": (with_bytes(lambda data: data + b"\0" * 4096), "bytes for 53 numbers"),
    "a giant's header": (with_bytes(header_of_a_giant), "header"),
    "no header": (with_bytes(lambda data: b"\0" * len(data)), "no readable header"),
    "an open bracket": (header_says("("), "no readable header"),
    "an open text": (header_says("'''"), "no readable header"),
    "nothing but brackets": (header_says("(" * 60), "no readable header"),
    "a header of Python 2": (
        header_says("{'descr': '<f4', 'fortran_order': False, 'shape': (53L,), }"),
        "no readable header",
    ),
    "another's client": (claims(client=2), "it answers for client '2', not 1"),
    "another experiment": (claims(identity="other"), "it answers for identity 'other'"),
    "another round": (claims(round=0), "it answers for round '0', not 1"),
    "no status": (claims(status="fine"), "neither that it trained"),
}


def remembering():
    """Methods whose clients remember something."""
    sample = Tree.of({"weight": torch.zeros(2, 2), "bias": torch.zeros(2)})
    return [name for name in fk.METHODS if any(rule.client_slots(sample) for rule in build(name).rules)]


def at(round, client, spoil):
    return lambda r, c, reply: spoil(reply) if (r, c) == (round, client) else reply


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_bad_reply_is_refused_by_name_and_advances_nothing(problem, tmp_path, caplog, fault):
    terms = NODE if fault in sorted(FAULTS)[::2] else HALF  # both ways of keeping states, taking turns
    spoil, reason = FAULTS[fault]
    exp = experiment(problem, "scaffold", rounds=4, participants=[EVERYONE] * 4)
    faulty = train(exp, tmp_path / "run", spoil=at(1, 1, spoil), terms=terms)
    without = fk.run(experiment(problem, "scaffold", rounds=4, participants=BUT_ONE), engine="serial")
    same(without, faulty)
    lines = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING and "node 101" in r.getMessage()]
    assert len(lines) == 1
    assert "client 1" in lines[0]
    assert re.search(reason, lines[0]), lines


@pytest.mark.parametrize("method", remembering())
def test_of_every_method_with_client_state_a_lost_reply_leaves_nothing_behind(problem, tmp_path, method):
    exp = experiment(problem, method, rounds=4, participants=[EVERYONE] * 4)
    faulty = train(exp, tmp_path / "run", spoil=at(1, 1, lost), terms=NODE)
    same(fk.run(experiment(problem, method, rounds=4, participants=BUT_ONE), engine="serial"), faulty)


def test_a_replayed_reply_of_an_old_round_is_refused(problem, tmp_path, caplog):
    kept = {}

    def replay(round, client, reply):
        if client == 1:
            kept.setdefault(0, reply.content.copy())
            if round == 1:
                return Message(metadata=reply.metadata, content=kept[0])
        return reply

    exp = experiment(problem, "feddyn", rounds=4, participants=[EVERYONE] * 4)
    faulty = train(exp, tmp_path / "run", spoil=replay, terms=HALF)
    same(fk.run(experiment(problem, "feddyn", rounds=4, participants=BUT_ONE), engine="serial"), faulty)
    assert "it answers for round '0', not 1" in caplog.text


def test_what_arrives_is_never_unpickled(problem, tmp_path, caplog):
    class Trap:
        def __reduce__(self):
            return open, (str(tmp_path / "sprung"), "w")

    def trap(array):
        stream = io.BytesIO()
        np.save(stream, np.array([Trap()] * 53, dtype=object), allow_pickle=True)
        return Array(array.dtype, array.shape, array.stype, stream.getvalue())

    exp = experiment(problem, "fedavg")
    train(exp, tmp_path / "run", spoil=at(1, 1, with_array(trap)), terms=HALF)
    assert "refused the reply of node 101 (client 1)" in caplog.text
    assert not (tmp_path / "sprung").exists()


def test_a_giant_is_refused_before_memory_is_taken(problem, tmp_path):
    def giant(array):
        header = array.data.replace(b"(53,)", b"(10**9,)")
        return Array("float32", (1_000_000_000,), array.stype, header)

    grid = InProcess(experiment(problem, "fedavg"), at(1, 1, with_array(giant)))
    tracemalloc.start()
    try:
        train(experiment(problem, "fedavg"), tmp_path / "run", grid=grid, terms=HALF)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


# ---- too few -------------------------------------------------------------------------------------------------------
def test_those_who_did_not_answer_are_asked_again_and_nothing_is_lost(problem, tmp_path):
    exp = experiment(problem, "scaffold")
    seen = set()

    def first_time(round, client, reply):
        if client in (1, 4) and (round, client) not in seen:
            seen.add((round, client))
            return None
        return reply

    grid = InProcess(exp, first_time)
    same(fk.run(exp, engine="serial"), train(exp, tmp_path / "run", grid=grid, terms=Terms(minimum=1.0)))
    assert grid.asked.count((0, 1)) == 2
    assert grid.asked.count((0, 0)) == 1


def test_too_few_answers_end_the_run_with_everything_kept(problem, tmp_path):
    exp = experiment(problem, "scaffold")

    def most_lost(round, client, reply):
        return None if round == 2 and client != 0 else reply

    with pytest.raises(RunError, match="only 1 of 6 clients answered in round 3, 3 are needed") as caught:
        train(exp, tmp_path / "run", spoil=most_lost, terms=HALF)
    assert "\n" not in caught.value.message
    assert len(read_rounds(tmp_path / "run")) == 2
    same(fk.run(exp, engine="serial"), train(exp, tmp_path / "run", terms=HALF))


def test_a_client_without_a_node_is_absent(problem, tmp_path, caplog):
    schedule = [[0, 2, 3, 4, 5]] * 4
    grid = InProcess(experiment(problem, "scaffold", rounds=4, participants=[EVERYONE] * 4))
    grid.absent = {1}
    faulty = train(experiment(problem, rounds=4, participants=[EVERYONE] * 4), tmp_path / "run", grid=grid, terms=HALF)
    same(fk.run(experiment(problem, rounds=4, participants=schedule), engine="serial"), faulty)
    assert "round 1: client 1 has no node" in caplog.text


# ---- lost states ---------------------------------------------------------------------------------------------------
def forgetful(exp, folder=None):
    """Client 1's node restarts after the second round."""
    grid = InProcess(exp, folder=folder)

    def restart(round, client, reply):
        if round == 1 and client == 5:
            grid.forget(1)
        return reply

    grid.spoil = restart
    return grid


@pytest.mark.parametrize("method", ["scaffold", "feddyn", "fedfft-d"])
def test_a_restarted_node_gets_its_state_back_from_the_server(problem, tmp_path, caplog, method):
    exp = experiment(problem, method, rounds=4)
    same(fk.run(exp, engine="serial"), train(exp, tmp_path / "run", grid=forgetful(exp), terms=HALF))
    assert "node 101 (client 1) lost its state: restored" in caplog.text


@pytest.mark.parametrize("method", ["scaffold", "feddyn", "fedfft-d"])
def test_a_restarted_node_finds_its_state_in_the_file_beside_it(problem, tmp_path, caplog, method):
    exp = experiment(problem, method, rounds=4)
    grid = forgetful(exp, tmp_path / "beside")
    same(fk.run(exp, engine="serial"), train(exp, tmp_path / "run", grid=grid, terms=NODE))
    assert "lost its state" not in caplog.text


def test_a_state_that_is_nowhere_restarts_from_zero_and_the_log_says_so(problem, tmp_path, caplog):
    exp = experiment(problem, "scaffold", rounds=4)
    restarted = train(exp, tmp_path / "run", grid=forgetful(exp), terms=NODE)
    assert "node 101 (client 1) lost its state: it restarts from zero" in caplog.text
    assert not torch.equal(restarted.server["params"].buffer, fk.run(exp, engine="serial").server["params"].buffer)


@pytest.mark.slow
@pytest.mark.parametrize("copy", [True, False])
def test_a_lost_state_is_restored_also_where_another_client_is_always_late(problem, tmp_path, caplog, copy):
    """The late one takes all the time of a round: the other begins from its state in the next one."""
    exp = experiment(problem, "scaffold", rounds=5, participants=[EVERYONE] * 5)
    grid, answer = forgetful(exp), InProcess.send_and_receive
    restart = grid.spoil
    grid.spoil = lambda round, client, reply: None if restart(round, client, reply) is None or client == 2 else reply

    def take_long(messages, *, timeout=None):
        replies = answer(grid, messages, timeout=timeout)
        if any(message.metadata.dst_node_id == 102 for message in messages if "lr" in message.content["config"]):
            time.sleep(timeout)
        return replies

    grid.send_and_receive = take_long
    terms = Terms(minimum=0.5, deadline=0.2, copy=copy)
    done = train(exp, tmp_path / "run", grid=grid, terms=terms)
    known = [[0, 1, 3, 4, 5]] * 5
    known[2] = [0, 3, 4, 5]
    assert "round 3: node 101 (client 1): it lost its state, and the deadline has passed" in caplog.text
    assert caplog.text.count("(client 1): it lost") == caplog.text.count("(client 1) lost its state: ") == 1
    if copy:
        same(fk.run(exp.with_(participants=known), engine="serial"), done)


def test_a_damaged_file_beside_a_node_is_not_used(problem, tmp_path, caplog):
    exp = experiment(problem, "scaffold", rounds=4)
    grid = forgetful(exp, tmp_path / "beside")
    restart = grid.spoil

    def damage(round, client, reply):
        if round == 1 and client == 5:
            (file,) = (tmp_path / "beside").glob("client-000001-*.safetensors")
            file.write_bytes(file.read_bytes()[:-4] + b"oops")
        return restart(round, client, reply)

    grid.spoil = damage
    train(exp, tmp_path / "run", grid=grid, terms=NODE)
    assert "the state beside this node cannot be read" in caplog.text
    assert "client 1) lost its state: it restarts from zero" in caplog.text


# ---- the server ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("terms", [HALF, NODE], ids=["copy", "node"])
@pytest.mark.parametrize("method", ["scaffold", "fedfft-d"])
def test_a_server_that_dies_inside_a_round_goes_on_from_its_checkpoint(problem, tmp_path, method, terms):
    """By then some nodes have trained for the round, and all of them are restarted, too."""
    exp = experiment(problem, method, rounds=4)

    class Killed(BaseException):
        pass

    def kill(round, client, reply):
        if (round, client) == (2, 3):
            raise Killed
        return reply

    with pytest.raises(Killed):
        train(exp, tmp_path / "run", spoil=kill, terms=terms, folder=tmp_path / "beside")
    assert len(read_rounds(tmp_path / "run")) == 2
    again = train(exp, tmp_path / "run", terms=terms, folder=tmp_path / "beside")
    same(fk.run(exp, engine="serial"), again)
    assert again.result == fk.run(exp, engine="serial").result


def test_arrays_are_read_as_numpy_reads_them():
    """Of every type and shape that slots have, and with the padding of any version of numpy."""
    for numbers in (torch.tensor(1.5), torch.zeros(0), torch.arange(6).reshape(2, 3), torch.ones(3, dtype=torch.bool)):
        records = pack({"slot": numbers}, "")
        assert torch.equal(unpack(records, "", {"slot": numbers})["slot"], numbers)
        (array,) = records["slot"].values()
        length = int.from_bytes(array.data[8:10], "little")
        header = array.data[10 : 10 + length].rstrip() + b"   \n"
        shorter = array.data[:8] + len(header).to_bytes(2, "little") + header + array.data[10 + length :]
        again = {"slot": ArrayRecord({"": Array(array.dtype, array.shape, array.stype, shorter)})}
        assert torch.equal(unpack(again, "", {"slot": numbers})["slot"], numbers)
