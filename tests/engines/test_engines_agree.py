"""Serial and processes give the same bits, and a round does not depend on who finished first."""

import io
import os
import pickle
import struct
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from shared_workers import Started
from small_runs import environment

import fedkeel as fk
from fedkeel.engines import processes
from fedkeel.engines.choose import make_engine, settle_device
from fedkeel.engines.processes import ProcessesEngine
from fedkeel.engines.worker import serve
from fedkeel.errors import RequestError, RunError
from fedkeel.randomness import keyed_uniforms


def experiment(problem, **changes):
    settings = dict(
        method="fedfft-d", rounds=3, participation=0.7, epochs=(1, 2), batch_size=4, lr=0.1, weight_decay=1e-3, clip=5.0
    )
    return fk.Experiment(problem=problem, **settings | changes)


@pytest.mark.parametrize("method", ["scaffold", "fedfft-d"])
def test_processes_are_bitwise_equal_to_serial(small, method):
    exp = experiment(small, method=method, validation=0.2, unavailable=0.1)
    serial, pool = fk.run(exp, engine="serial", device="cpu"), fk.run(exp, engine="processes", workers=2)
    assert serial.result == pool.result
    for one, other in zip(serial.records, pool.records, strict=True):
        assert (one.loss, one.drift, one.extra, one.accuracy) == (other.loss, other.drift, other.extra, other.accuracy)
    assert all(torch.equal(serial.server[n].buffer, pool.server[n].buffer) for n in serial.server)


def test_processes_take_the_cpu_where_there_is_a_gpu_too(small, monkeypatch):
    exp = experiment(small, rounds=1)
    expected = fk.run(exp, engine="serial", device="cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert fk.run(exp, engine="processes", workers=1).result == expected.result
    assert [settle_device("serial", "auto"), settle_device("processes", "cuda")] == ["auto", "cuda"]


def test_processes_refuse_a_gpu_that_is_asked_for():
    task = SimpleNamespace(device=torch.device("cuda"))
    with pytest.raises(RequestError, match="runs on the CPU, not on cuda"):
        make_engine("processes", SimpleNamespace(task=task))


def test_the_order_in_which_clients_finish_changes_nothing(small, monkeypatch):
    exp = experiment(small, participation=1.0, method="scaffold")
    expected = fk.run(exp, engine="serial", device="cpu")
    spread = ProcessesEngine.run_on_workers

    def backwards(self, kind, payloads, places=()):
        for number, answer in reversed(list(spread(self, kind, payloads[::-1]))):
            yield len(payloads) - 1 - number, answer

    monkeypatch.setattr(ProcessesEngine, "run_on_workers", backwards)
    assert fk.run(exp, engine="processes", workers=2).result == expected.result


def test_a_lambda_and_a_local_class_reach_the_workers(toy):
    class Local(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(3))

        def forward(self, x):
            return x * self.w

    clients = [(torch.ones(4, 3) * i, torch.ones(4, 3)) for i in range(1, 4)]
    problem = fk.Problem(model=Local(), loss=lambda out, y: (out - y).square().mean(-1), clients=clients)
    exp = fk.Experiment(problem=problem, rounds=2, participation=1.0, epochs=1, batch_size=2, lr=0.05)
    assert fk.run(exp, engine="processes", workers=2).result == fk.run(exp, engine="serial", device="cpu").result


def test_what_a_worker_raises_reaches_the_caller(small):
    def explode(output, target):
        if output.requires_grad:
            raise ZeroDivisionError("in the user's own loss")
        return torch.zeros(len(output))

    problem = fk.Problem(model=small.model, loss=explode, clients=small.clients, test=small.test)
    with pytest.raises(ZeroDivisionError, match="user's own"):
        fk.run(experiment(problem), engine="processes", workers=1)


@pytest.mark.slow
def test_a_worker_that_dies_is_named_and_the_others_end(small, monkeypatch):
    started = []

    class Watched(Started):
        def __init__(self, number):
            super().__init__(number)
            started.append(self.process)

    monkeypatch.setattr(processes, "Worker", Watched)

    here = os.getpid()

    def die(output, target):
        import os
        import signal

        if output.requires_grad and os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(len(output))

    problem = fk.Problem(model=small.model, loss=die, clients=small.clients, test=small.test)
    with pytest.raises(RunError, match=r"worker process . was killed by signal 9"):
        fk.run(experiment(problem), engine="processes", workers=2)
    assert [process.poll() is None for process in started] == [False, False]


def test_what_the_users_code_prints_does_not_break_the_protocol(small):
    def chatty(output, target):
        import sys

        sys.stdout.write("hello " * 1000)
        sys.stdout.flush()
        return torch.nn.functional.cross_entropy(output, target, reduction="none")

    problem = fk.Problem(model=small.model, loss=chatty, clients=small.clients, test=small.test)
    assert fk.run(experiment(problem, rounds=1), engine="processes", workers=2).result["rounds"] == 1


@dataclass(frozen=True)
class DrawsAtTheEnd(fk.Rule):
    """Reports a number that is drawn when a client has trained."""

    seen: ClassVar[list[list[float]]] = []
    random: ClassVar[bool] = True

    def finish(self, report, client, at):
        return report | {"drawn": keyed_uniforms(at.key, 1)[0]}, client

    def server_step(self, update, server, reports):
        self.seen.append(reports["drawn"].tolist())
        return update, server


@pytest.mark.parametrize("place", ["gradient", "server", "personal"])
def test_what_a_client_draws_when_it_reports_is_its_own_in_every_engine(small, place):
    """No two clients, rounds or seeds draw the same, and the engine does not matter."""
    method = fk.method("draws", weights=fk.BySize(), **{place: [DrawsAtTheEnd()]})

    def draw(engine, seed):
        DrawsAtTheEnd.seen.clear()
        fk.run(experiment(small, method=method, seed=seed, rounds=2, participation=1.0), engine=engine, workers=1)
        return DrawsAtTheEnd.seen[-2:]

    first = draw("serial", 0)
    assert first == draw("stacked", 0) == draw("processes", 0)
    every = [number for drawn in (*first, *draw("serial", 1)) for number in drawn]
    assert len(first[0]) > 1
    assert len(set(every)) == len(every)


@dataclass(frozen=True)
class Draws(fk.Rule):
    """Notes what it draws when a client has trained."""

    name: str
    seen: ClassVar[dict[str, list[float]]] = {}
    random: ClassVar[bool] = True

    def finish(self, report, client, at):
        return report | {self.name: keyed_uniforms(at.key, 1)[0]}, client

    def server_step(self, update, server, reports):
        self.seen.update({name: reports[name].tolist() for name in reports if name.startswith(self.name)})
        return update, server


@dataclass(frozen=True)
class DrawsInSteps(Draws):
    """Notes what it draws in a client's last step, too."""

    def client_slots(self, params):
        return {f"{self.name} in a step": params.scalar(0.0)}

    def step(self, tree, client, at):
        return tree, client | {f"{self.name} in a step": keyed_uniforms(at.key, 1)[0].to(tree.buffer.dtype)}

    def finish(self, report, client, at):
        report, client = super().finish(report, client, at)
        return report | {name: slot for name, slot in client.items() if name.startswith(self.name)}, client


def test_no_two_rules_draw_the_same(small):
    """Two rules that add noise would add one noise twice. A rule that draws alone keeps the key of the step."""

    def draw(engine, *places):
        kinds = {"server": Draws, "personal": Draws}
        chains = {place: [kinds.get(place, DrawsInSteps)(f"{place} {n}") for n in range(2)] for place in places}
        method = fk.method("draws", weights=fk.BySize(), **chains)
        Draws.seen.clear()
        fk.run(experiment(small, method=method, rounds=1, participation=1.0), engine=engine, workers=1)
        return dict(Draws.seen)

    places = ("perturb", "gradient", "server", "personal")
    drawn = draw("serial", *places)
    assert drawn == draw("stacked", *places)
    numbers = [number for all_of_one in drawn.values() for number in all_of_one]
    assert len(set(numbers)) == len(numbers) == len(small.clients) * (8 + 4)
    assert draw("serial", "gradient")["gradient 0 in a step"] == drawn["perturb 0 in a step"]


@pytest.mark.parametrize("engine", ["serial", "stacked"])
def test_a_run_on_the_cpu_leaves_the_generators_of_the_callers_gpus(small, engine, monkeypatch):
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
    problem = fk.Problem(model=module, loss=small.loss, clients=small.clients, test=small.test)
    fk.run(experiment(problem, rounds=1), engine=engine, device="cpu")
    assert not seeded


def test_dropout_is_keyed(small):
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
    problem = fk.Problem(model=module, loss=small.loss, clients=small.clients, test=small.test)
    exp = experiment(problem, rounds=2)
    state = torch.random.get_rng_state()
    first = fk.run(exp, engine="serial", device="cpu")
    assert torch.equal(state, torch.random.get_rng_state())
    torch.manual_seed(99)
    again = fk.run(exp, engine="serial", device="cpu").result
    assert again == first.result == fk.run(exp, engine="processes", workers=2).result
    stacked = fk.run(exp, engine="stacked", device="cpu")  # with batches of unequal sizes
    torch.testing.assert_close(stacked.server["params"].buffer, first.server["params"].buffer, rtol=1e-5, atol=1e-6)


def test_batch_statistics_do_not_leak_from_client_to_client(small):
    """Training clients in another order, or with others between, leaves each client's report as it was."""
    module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    clients = [c for c in small.clients if len(c[0]) > 4]
    problem = fk.Problem(model=module, loss=small.loss, clients=clients, test=small.test)
    both = fk.run(experiment(problem, rounds=1, epochs=1, batch_size=100, participants=[[0, 1]]))
    assert both.server["buffers"].norm() > 0
    alone = [fk.run(experiment(problem, rounds=1, epochs=1, batch_size=100, participants=[[i]])) for i in (0, 1)]
    mean = (alone[0].server["buffers"] + alone[1].server["buffers"]) / 2.0  # fedfft-d weighs clients alike
    torch.testing.assert_close(both.server["buffers"].buffer, mean.buffer)
    kept = fk.run(experiment(problem, rounds=2, epochs=1, batch_size=100, participants=[[0], [0, 1]], buffers="keep"))
    assert not kept.server["buffers"]["1.running_mean"].any()


def test_a_reply_to_a_parent_that_is_gone_is_no_error():
    read, write = os.pipe()
    os.close(read)
    body = pickle.dumps(("train", (None,)))
    replies = os.fdopen(write, "wb", buffering=1 << 20)
    serve(io.BytesIO(struct.pack("<Q", len(body)) + body), replies)
    replies.close()  # nor is what was left in its buffer


@pytest.mark.slow
def test_a_worker_whose_parent_is_gone_ends_without_a_word():
    command = [sys.executable, "-c", "from fedkeel.engines.worker import main; main()"]
    pipe = subprocess.PIPE
    worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment())
    worker.stdout.close()
    body = pickle.dumps(("train", (None,)))
    worker.stdin.write(struct.pack("<Q", len(body)) + body)
    worker.stdin.flush()
    assert worker.stderr.read() == b""
    assert worker.wait() == 0
    worker.stdin.close()
    worker.stderr.close()
