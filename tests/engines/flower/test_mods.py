"""Flower's mods in a node's app: kept, shown what they expect, and never in the way of fedkeel's own checks."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

from federations import InProcess, experiment, problem, same
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod, message_size_mod

import fedkeel as fk
from fedkeel.engines.flower.checks import Terms
from fedkeel.engines.flower.mods import carry_mods
from fedkeel.engines.rehearsal import expected_messages
from fedkeel.errors import RequestError, RunError
from fedkeel.federation.apps import serve
from fedkeel.runs.prepare import method_of, problem_of, task_maker


def train(folder, mods, method="fedavg", run_config=None):
    """A federation whose nodes have mods: the changes of weights that reach the server, and the run."""
    deltas = []

    def see(round, client, reply):
        if not reply.has_error() and "report/delta" in reply.content.array_records:
            (array,) = reply.content["report/delta"].values()
            deltas.append(array.numpy())
        return reply

    exp = experiment(problem(), method, rounds=2)
    grid = InProcess(exp, see, mods=mods, run_config=run_config)
    return deltas, serve(exp, grid, out=folder, wait=0.0, terms=Terms(minimum=1.0, attempts=1))


def test_mods_that_only_look_change_no_bit(tmp_path):
    seen = []

    def look(message, context, call_next):
        reply = call_next(message, context)
        seen.append((list(message.content.array_records), list(reply.content.array_records)))
        return reply

    for method in ("fedavg", "scaffold"):
        seen.clear()
        _, plain = train(tmp_path / f"plain-{method}", (), method)
        _, looked = train(tmp_path / f"looked-{method}", (look, message_size_mod), method)
        same(plain, looked)
        assert len(seen) == 12
        if method == "fedavg":  # as in Flower's own apps: weights in, weights out
            assert seen[0] == (["message/params"], ["model"])
        else:
            assert {"report/delta", "report/c_moved"} <= set(seen[0][1])


def test_mods_are_called_from_the_first_to_the_last_and_back(tmp_path):
    order = []

    def named(name):
        def mod(message, context, call_next):
            order.append(name)
            reply = call_next(message, context)
            order.append(name.upper())
            return reply

        return mod

    train(tmp_path, (named("a"), named("b")))
    assert order[:4] == ["a", "b", "B", "A"]


def test_flowers_local_privacy_clips_and_adds_noise_to_fedavg(tmp_path):
    plain, _ = train(tmp_path / "plain", ())
    norm = float(np.median([np.linalg.norm(delta) for delta in plain])) / 2
    clipped, _ = train(tmp_path / "clipped", (LocalDpMod(norm, sensitivity=0.0, epsilon=1.0, delta=1e-5),))
    for before, after in zip(plain[:6], clipped[:6], strict=True):  # of the first round: later ones begin elsewhere
        length = np.linalg.norm(before)
        wanted = before * min(1.0, norm / length)
        assert np.allclose(after, wanted, atol=1e-6)
        assert after.dtype == before.dtype
    noisy, done = train(tmp_path / "noisy", (LocalDpMod(norm, sensitivity=0.01, epsilon=1.0, delta=1e-5),))
    noise = np.concatenate([after - before for before, after in zip(clipped[:6], noisy[:6], strict=True)])
    stated = 0.01 * np.sqrt(2 * np.log(1.25 / 1e-5))
    assert noise.std() == pytest.approx(stated, rel=0.5)
    assert len(done.records) == 2


def test_a_change_of_one_tensor_among_several_is_sent():
    """A privacy mod may guard some layers alone: here it takes back what the first one has learned."""

    def content(name, first, second):
        arrays = {"first": Array(np.float32([first])), "second": Array(np.float32([second]))}
        return RecordDict({name: ArrayRecord(arrays), "config": ConfigRecord()})

    def learn(message, context):
        return Message(content("report/delta", 0.5, 0.25), reply_to=message)

    def guard(message, context, call_next):
        reply = call_next(message, context)
        reply.content["model"]["first"] = message.content["message/params"]["first"]
        return reply

    message = Message(content("message/params", 1.0, 2.0), dst_node_id=1, message_type="train")
    reply = carry_mods([guard])(message, SimpleNamespace(run_config={}), learn)
    sent = {name: float(array.numpy()[0]) for name, array in reply.content["report/delta"].items()}
    assert sent == {"first": 0.0, "second": 0.25}


def test_flowers_clipping_reads_the_apps_norm(tmp_path):
    plain, _ = train(tmp_path / "plain", ())
    norm = float(np.median([np.linalg.norm(delta) for delta in plain])) / 2
    clipped, _ = train(tmp_path / "clipped", (fixedclipping_mod,), run_config={"clipping-norm": norm})
    for before, after in zip(plain[:6], clipped[:6], strict=True):  # of the first round
        assert np.allclose(after, before * min(1.0, norm / np.linalg.norm(before)), atol=1e-6)
    with pytest.raises(RunError, match="clients answered"):  # Flower's mod misses its norm, and says so
        train(tmp_path / "none", (fixedclipping_mod,))


@pytest.mark.parametrize("method", ["scaffold", "feddisco"])
def test_privacy_mods_are_refused_where_a_method_sends_more_than_weights(tmp_path, method):
    with pytest.raises(RunError, match="only 0 of 6 clients answered"):
        train(tmp_path, (LocalDpMod(1.0, 1.0, 1.0, 1e-5),), method)


def test_counts_of_labels_that_only_an_objective_needs_stay_at_the_site(tmp_path):
    slots = set()

    def look(message, context, call_next):
        reply = call_next(message, context)
        slots.update(reply.content.array_records)
        return reply

    deltas, done = train(tmp_path, (look,), "fedlc")
    assert slots == {"model"}
    assert len(deltas) == 12
    assert set(rehearse("fedlc").report) == set(rehearse("fedavg").report)
    assert set(rehearse("feddisco").report) == set(rehearse("fedavg").report) | {"histogram"}
    same(done, fk.run(experiment(problem(), "fedlc", rounds=2), engine="serial"))


def rehearse(method):
    plan = experiment(problem(), method).plan
    task = task_maker(plan, torch.device("cpu"), torch.float32)(problem_of(plan))
    return expected_messages(method_of(plan, task), task)


def test_a_mod_that_gives_something_else_is_told(tmp_path):
    def spoil(message, context, call_next):
        reply = call_next(message, context)
        reply.content["more"] = reply.content["model"]
        return reply

    with pytest.raises(RunError, match="only 0 of 6"):
        train(tmp_path, (spoil,))


def test_the_words_of_a_mod_that_fails_stay_at_the_site(tmp_path, caplog):
    def fail(message, context, call_next):
        raise ValueError("Mr Smith")

    with pytest.raises(RunError, match="only 0 of 6"):
        train(tmp_path, (fail,))
    told = [line for line in caplog.messages if "refused the reply" in line]
    assert len(told) == 6
    assert all(line.endswith("failed with ValueError: see the site's log.") for line in told)


def test_secure_aggregation_is_refused_with_the_reason():
    def secaggplus_mod(message, context, call_next):
        return call_next(message, context)

    with pytest.raises(RequestError, match="legacy server"):
        carry_mods([secaggplus_mod])
