"""Stacked clients learn what they would learn one after another."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from every_method import few_of_engines
from for_each import for_each
from torch import Tensor, nn
from torch.nn import functional

import fedkeel as fk
from fedkeel.core.local_step import Lift
from fedkeel.core.method import Method
from fedkeel.core.round import broadcast, init_server, server_round
from fedkeel.core.rule import Local, Rule, Setting, State
from fedkeel.core.trees import Tree, stack, tensors
from fedkeel.data.augment import Augment
from fedkeel.data.clients import HeldOut, TensorClients, is_at_hand
from fedkeel.data.prepare import Preparation
from fedkeel.engines.engine import Training
from fedkeel.engines.measure import FewerSamples
from fedkeel.engines.memory import explain_device_errors
from fedkeel.engines.scoring import KernelNetwork, Scorer, merge_parts
from fedkeel.engines.serial import SerialEngine
from fedkeel.engines.stacked.client_mapping import choose_lift, lift_by_broadcast, lift_by_vmap, unstack
from fedkeel.engines.stacked.early_finishers import drop_finished
from fedkeel.engines.stacked.engine import StackedEngine
from fedkeel.engines.stacked.graphs import Graph, GraphScan
from fedkeel.engines.stacked.joint import JoinedClients
from fedkeel.engines.stacked.scoring import largest_layer
from fedkeel.engines.stacked.stacked_batches import RowStore
from fedkeel.errors import FedkeelError
from fedkeel.methods import METHODS, build
from fedkeel.models import build as build_model
from fedkeel.problems.gradients import Workspace
from fedkeel.problems.predictions import average_scores
from fedkeel.problems.task import Task
from fedkeel.rules.sharing import ShareBuffers
from fedkeel.runs.prepare import cross_entropy, head_of, repeated
from problems import model_for, quick

SIZES = (7, 4, 9, 1, 5)
ROUNDS = ([0, 2, 3], [1, 2, 4])


@cache
def drawn() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)
    )


def network(norm: nn.Module | None = None) -> nn.Module:
    made = deepcopy(drawn())
    made[1] = norm or made[1]
    return made


def samples(size: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return (
        torch.randint(0, 256, (size, 6, 6, 2), generator=draw).to(torch.uint8),
        torch.randint(0, 3, (size,), generator=draw),
    )


def per_sample(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output, target, reduction="none")


PREPARE = Preparation((0.4, 0.5), (0.2, 0.3), Augment(crop=1, flip=True))


def problem(**changes: Any) -> fk.Problem:
    usual: dict[str, Any] = {
        "model": network(),
        "loss": per_sample,
        "clients": [samples(size, i) for i, size in enumerate(SIZES)],
        "prepare": PREPARE,
        "classes": 3,
    }
    return fk.Problem(**(usual | changes))


def settled(name: str, task: Task) -> Method:
    """The method of that name, fitted to the model."""
    setting = Setting(task.initial.layout, head_of(task), epochs=2, mean_size=float(task.clients.sizes.mean()))
    return repeated(quick(name).map_rules(lambda rule: rule.settled(setting)))


def train(engine: Any, method: Method, task: Task, rounds: Any = ROUNDS) -> tuple[State, dict[int, State], list[State]]:
    """Everything that anyone knows after some rounds: the server, the clients, all reports."""
    server, store, sent = init_server(method, task.initial, task.buffers), dict[int, State](), []
    for t, clients in enumerate(rounds):
        message = broadcast(method, server)
        outcomes = engine.train(message, t, 0.1 * 0.9**t, clients, [store.get(c) for c in clients])
        assert [outcome.client for outcome in outcomes] == clients
        reports = stack([outcome.report for outcome in outcomes])
        if method.server_phase is None:  # else the server would have to learn first
            server = server_round(method, server, reports | {"population": reports["lr"].new_tensor(5.0)})
        store |= {outcome.client: outcome.state for outcome in outcomes}
        sent.append(reports)
    return server, store, sent


def difference(one: Any, other: Any) -> float:
    """The largest relative difference over all slots; the two must hold the same ones."""
    a, b = ([t.to(torch.float64) for t in tensors(state)] for state in (one, other))
    assert [t.shape for t in a] == [t.shape for t in b]
    return max(float((x - y).norm() / y.norm().clamp(min=1.0)) for x, y in zip(a, b, strict=True))


def both(
    problem: fk.Problem, method: Method, dtype: torch.dtype = torch.float64, epochs: Any = 2, **options: Any
) -> tuple[Any, Any]:
    training = Training(seed=1, epochs=epochs, batch_size=3)
    one, other = (Task(problem, dtype=dtype, asks=method.asks) for _ in range(2))
    serial = train(SerialEngine(one, method, training), method, one)
    return train(StackedEngine(other, method, training, **options), method, other), serial


@pytest.mark.parametrize("loss", [per_sample, cross_entropy])
def test_losses_of_all_clients_at_once_are_those_of_each(loss: Any) -> None:
    """One that is known to judge samples one by one is not taken apart by client."""
    given = problem(loss=loss, model=network())
    stacked, serial = both(given, build("fedsam"))
    assert difference(stacked, serial) < 1e-12


def compare_with_serial(name: str, lifts: Sequence[Lift | None]) -> None:
    given, training = problem(model=model_for(name, network())), Training(seed=1, epochs=1, batch_size=3)
    task = Task(given, dtype=torch.float64, asks=build(name).asks)
    method = settled(name, task).then(fk.rules.ClipNorm(10.0), fk.rules.WeightDecay(0.01))
    rounds = ([0, 3], [1, 0])
    serial = train(SerialEngine(task, method, training), method, task, rounds)
    for lift in lifts:
        if lift is lift_by_broadcast and any(rule.random for rule in method.rules):
            continue  # never broadcast: its keys differ from client to client
        task = Task(given, dtype=torch.float64, asks=method.asks)
        found = train(StackedEngine(task, method, training, lift=lift), method, task, rounds)
        assert difference(found, serial) < 1e-12


@pytest.mark.parametrize("name", few_of_engines())
def test_every_method_learns_what_it_learns_serially(name: str) -> None:
    compare_with_serial(name, [None])


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in ("scaffold", "fedfft-d") else [pytest.mark.slow]) for name in METHODS],
)
def test_it_does_so_however_its_rules_are_lifted(name: str) -> None:
    compare_with_serial(name, [lift_by_vmap, lift_by_broadcast])


@pytest.mark.usefixtures("onednn")
def test_float32_stays_close_to_serial() -> None:
    stacked, serial = both(problem(), build("fedfft-d"), torch.float32)
    assert difference(stacked, serial) < 1e-5


@pytest.mark.parametrize(
    ("name", "general"),
    [
        ("resnet20-gn", True),
        ("resnet20-gn", False),
        pytest.param("resnet18-gn", False, marks=pytest.mark.slow),
        ("small-cnn", False),
        ("lenet-fsa", False),
    ],
)
def test_networks_learn_the_same_with_kernels(name: str, general: bool) -> None:
    images = {"resnet18-gn": 16, "resnet20-gn": 8, "small-cnn": 8, "lenet-fsa": 16}[name]
    draw = torch.Generator().manual_seed(0)
    clients = [
        (torch.rand(size, 3, images, images, generator=draw), torch.randint(0, 3, (size,), generator=draw))
        for size in (2, 1)
    ]
    model = build_model(name, shape=(3, images, images), classes=3, seed=0)
    method = build("fedavg" if name == "resnet18-gn" else "fedsam")  # half of the steps where each takes long
    training, found = Training(seed=1, epochs=1, batch_size=2), []
    for engine, options in ((SerialEngine, {}), (StackedEngine, {"general": general})):
        task = Task(fk.Problem(model=model, loss=per_sample, clients=clients), dtype=torch.float64)
        found.append(train(engine(task, method, training, **options), method, task, rounds=[[0, 1]]))
    assert difference(found[0], found[1]) < 1e-12


@pytest.mark.parametrize("together", [1, 2])
def test_the_result_does_not_depend_on_how_many_are_stacked(together: int) -> None:
    stacked, serial = both(problem(), build("fedfft-d"), together=together)
    assert difference(stacked, serial) < 1e-12


def test_clients_may_do_different_numbers_of_epochs() -> None:
    stacked, serial = both(problem(), build("fedfft-d"), epochs=(1, 4))
    assert difference(stacked, serial) < 1e-12


def mean(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output, target)


def contrast(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output - output.mean(0), target)  # samples of a batch meet


@pytest.mark.slow
@for_each(
    "changes",
    [
        {"loss": mean},
        {"loss": contrast, "separable": False},
        {"model": network(nn.BatchNorm2d(4)), "clients": [samples(2 * size, i) for i, size in enumerate(SIZES)]},
        {"prepare": lambda raw, keys: (raw[0].float().permute(0, 3, 1, 2) / raw[0].float().amax(), raw[1])},
    ],
)
def test_what_samples_of_a_batch_share_is_not_shared_with_padding(changes: dict[str, Any]) -> None:
    method = build("fedsam-d")
    if "model" in changes:
        method = replace(method, personal=(ShareBuffers(),))
    stacked, serial = both(problem(**changes), method)
    assert difference(stacked, serial) < 1e-12


def test_plain_parameters_need_no_module() -> None:
    def quadratic(params: Any, batch: Any) -> Tensor:
        return (0.5 * batch[0] * (params["w"] - batch[1]) ** 2).sum(-1)

    draw = torch.Generator().manual_seed(0)
    clients = [tuple(torch.rand(2, size, 3, generator=draw, dtype=torch.float64)) for size in SIZES]
    toy = fk.Problem(params={"w": torch.ones(3)}, loss=quadratic, clients=clients)
    for loss in (quadratic, lambda params, batch: quadratic(params, batch).mean()):
        stacked, serial = both(replace(toy, loss=loss), build("scaffold"))
        assert difference(stacked, serial) < 1e-12


@dataclass(frozen=True)
class Largest(Rule):
    """Looks across a leaf: right for one client and under vmap, wrong on stacked trees."""

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        return tree * (1 / (1 + tree["0.weight"].abs().max())), client


def test_rules_of_users_are_vmapped() -> None:
    method = build("fedavg").then(Largest())
    assert choose_lift(method, torch.device("cpu")) is lift_by_vmap
    assert choose_lift(build("fedfft-d"), torch.device("cpu")) is lift_by_broadcast
    stacked, serial = both(problem(), method)
    assert difference(stacked, serial) < 1e-12
    wrong, _ = both(problem(), method, lift=lift_by_broadcast)
    assert difference(wrong, serial) > 1e-6


def test_clients_never_see_each_other() -> None:
    clients = [samples(size, i) for i, size in enumerate(SIZES)]
    method, training = build("scaffold"), Training(seed=1, epochs=2, batch_size=3)
    found = []
    for images in (clients[2][0], 255 - clients[2][0]):
        task = Task(problem(clients=[*clients[:2], (images, clients[2][1]), *clients[3:]]), dtype=torch.float64)
        found.append(train(StackedEngine(task, method, training), method, task, rounds=[[0, 2, 3]])[1])
    assert difference(found[0][0], found[1][0]) == 0
    assert difference(found[0][3], found[1][3]) == 0
    assert difference(found[0][2], found[1][2]) > 0


def test_scores_do_not_depend_on_how_they_are_batched() -> None:
    task = Task(problem(test=samples(1203, 99)), dtype=torch.float64)
    workspace = Workspace(task)
    scores = [workspace.score(task.initial, None, part) for part in task.parts("test")]
    assert len(merge_parts(list(task.parts("test")), 2500)) == 1
    for scorer in (Scorer(workspace), Scorer(workspace, lowered=True)):
        for _ in range(2):  # from the host, then from what was kept
            seen = average_scores(scorer(task.initial, None, "test"))
            assert seen == pytest.approx(average_scores(scores), rel=1e-12)


def test_no_layer_of_a_batch_that_is_scored_outgrows_the_kernels_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(problem(model=network(nn.BatchNorm2d(4)), test=samples(1203, 99)), dtype=torch.float64)
    assert task.module is not None
    before = {name: buffer.clone() for name, buffer in task.module.named_buffers()}
    whole = Scorer(Workspace(task), lowered=True)
    assert whole.rows == 10_000
    monkeypatch.setattr("fedkeel.engines.scoring.OFFSETS", 600 * largest_layer(task, task.prepare(samples(1, 99))))
    pieces = Scorer(Workspace(task), lowered=True)
    assert pieces.rows == 600
    found = [scorer(task.initial, task.buffers, "test") for scorer in (whole, pieces)]
    assert [len(scores) for scores in found] == [1, 3]
    assert average_scores(found[0]) == pytest.approx(average_scores(found[1]), rel=1e-12)
    assert all(torch.equal(before[name], buffer) for name, buffer in task.module.named_buffers())


def test_only_the_arithmetic_of_scores_is_lowered() -> None:
    scores = []
    for dtype in (torch.float32, torch.bfloat16):
        task = Task(problem(test=samples(400, 99)), dtype=dtype)
        engine = StackedEngine(task, build("fedavg"), Training(seed=1, epochs=1, batch_size=3))
        assert isinstance(engine.scorer.model, KernelNetwork) == (dtype == torch.bfloat16)
        scores.append(average_scores(engine.scorer(task.initial, None, "test")))
    assert scores[1]["loss"] == pytest.approx(scores[0]["loss"], rel=1e-2)
    assert scores[1]["loss"] != scores[0]["loss"]


def test_a_captured_number_of_clients_serves_fewer() -> None:
    method, training, rounds = (
        build("fedfft-d"),
        Training(seed=1, epochs=2, batch_size=3),
        ([0, 1, 2, 4], [2, 3], [0, 4, 1]),
    )
    found = []
    for make in (SerialEngine, StackedEngine):
        task = Task(problem(), dtype=torch.float64)
        engine = make(task, method, training)
        engine.captures = True  # type: ignore[union-attr]
        found.append(train(engine, method, task, rounds))
    assert engine.captured == {4}  # type: ignore[union-attr]
    assert difference(found[1], found[0]) < 1e-12


class Again(Graph):
    """A graph whose replay takes its steps anew: how steps are fed to it needs no GPU."""

    def warm_up(self) -> None:
        pass

    def capture(self, count: int) -> Any:
        return SimpleNamespace(replay=lambda: self.advance(count))


REPLAYED = ("scaffold", "fedscam", "plgu", "fedcr", "muon+fedavg")
MORE = (
    "fedwmsam",
    "feddecorr",
    "fedavg",
    "fedfft-d",
    "fedsmoo",
    "fedfsa",
    "fedlesam-d",
    "adamw+fedfft-d",
    "lion+fedsam",
)


@pytest.mark.parametrize("name", [*REPLAYED, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_replayed_steps_equal_serial_ones_while_clients_leave(name: str) -> None:
    falling = [fk.RateWithin(0.2)] if name == "scaffold" else []  # each client is elsewhere on its way down
    method = settled(name, Task(problem(model=model_for(name, network())))).then(*falling)
    training = Training(1, (1, 3), 3)
    given, rounds = problem(model=model_for(name, network())), ([0, 1, 2, 3, 4], [1, 2, 4], [0, 2, 3])
    one, other = (Task(given, dtype=torch.float64, asks=method.asks) for _ in range(2))
    engine = StackedEngine(other, method, training)
    graphs = GraphScan(engine.gradient.separable, Again)
    widths: list[int] = []

    def watched(phase: Any, body: Any, carry: Any, fixed: Any, steps: Any) -> Any:
        widths.append(len(steps.clients))
        return graphs(phase, body, carry, fixed, steps)

    engine.scan = partial(drop_finished, watched)
    serial = train(SerialEngine(one, method, training), method, one, rounds)
    assert difference(train(engine, method, other, rounds), serial) < 1e-12
    assert graphs.graphs
    assert min(widths) < 3 < max(widths)


@pytest.mark.parametrize("none", [(torch.zeros(0), torch.zeros(0)), (torch.zeros(0, 6, 6, 2), torch.zeros(0))])
def test_a_client_without_data_says_nothing_about_the_form_of_the_others(none: Any) -> None:
    given = [samples(size, i) for i, size in enumerate(SIZES)]
    stacked, serial = both(problem(clients=[*given, none]), build("fedavg"))
    assert difference(stacked, serial) < 1e-12


class Read:
    """Clients that are read when they are asked for, and note who was."""

    def __init__(self, clients: Sequence[tuple[Tensor, Tensor]]):
        self.given, self.asked = clients, set[int]()
        self.sizes = np.array([len(target) for _, target in clients])

    def rows(self, client: int, rows: Any) -> tuple[Tensor, ...]:
        self.asked.add(client)
        return tuple(part[torch.from_numpy(rows)] for part in self.given[client])


def test_clients_that_are_read_are_read_when_they_train_and_not_before() -> None:
    given, held = [samples(size, i) for i, size in enumerate(SIZES)], {}
    for name, clients in {"list": given, "read": Read(given)}.items():
        held[name] = Task(problem(clients=clients), dtype=torch.float64)
    method, training = build("fedavg"), Training(seed=1, epochs=2, batch_size=3)
    engines = {name: StackedEngine(task, method, training) for name, task in held.items()}
    held["read"].problem.clients.asked.clear()
    rounds = ([0, 3], [1, 3], [0, 1])
    known = {name: train(engine, method, held[name], rounds) for name, engine in engines.items()}
    assert difference(known["read"], known["list"]) == 0
    assert held["read"].problem.clients.asked - {int(np.argmax(SIZES))} == {0, 1, 3}
    assert len(engines["list"].store.offsets) == len(SIZES)


def test_clients_of_runs_in_one_stack_are_at_hand_where_those_of_each_run_are() -> None:
    given = [samples(size, i) for i, size in enumerate(SIZES)]
    listed, read = TensorClients(given), Read(given)
    assert is_at_hand(JoinedClients([listed, HeldOut(listed, 0.3, 1, validation=False)], None))
    assert is_at_hand(FewerSamples(listed, 0.5, 3))
    assert not is_at_hand(JoinedClients([listed, HeldOut(read, 0.3, 1, validation=False)], None))


def test_rows_of_another_form_are_not_written_over_those_of_the_stack_before() -> None:
    """Inputs of one number would spread over five, and labels of 64 bits would lose some in 8."""
    clients = [(torch.full((3, width), width + 0.5), torch.ones(3, dtype=kind)) for width, kind in
               ((5, torch.int64), (1, torch.int64), (5, torch.uint8), (5, torch.int64))]  # fmt: skip
    given = fk.Problem(
        params={"w": torch.zeros(1)}, loss=lambda p, b: (p["w"] - b[0].sum(1)) ** 2, clients=Read(clients)
    )
    store = RowStore(Task(given), 0)
    for client, (inputs, target) in enumerate(clients):
        store.hold([client])
        assert all(torch.equal(mine, part) for mine, part in zip(store.rows, (inputs, target), strict=True))
        assert store.rows[1].dtype == target.dtype


def test_rows_that_could_not_be_read_are_not_taken_for_those_of_the_stack_before() -> None:
    clients = [(torch.full((3, 1), float(client)), torch.ones(3)) for client in range(3)]

    class Broken(Read):
        def rows(self, client: int, rows: Any) -> Any:
            if client == 2 and len(rows) > 1:
                raise OSError("gone")
            return super().rows(client, rows)

    given = fk.Problem(params={"w": torch.zeros(1)}, loss=lambda p, b: p["w"] * b[1], clients=Broken(clients))
    store = RowStore(Task(given), 0)
    store.hold([0])
    with pytest.raises(OSError, match="gone"):
        store.hold([1, 2])
    store.hold([1])
    assert torch.equal(store.rows[0], clients[1][0])


def test_graphs_of_rows_that_moved_are_let_go() -> None:
    method, training = build("fedavg"), Training(seed=1, epochs=1, batch_size=3)
    task = Task(problem(), dtype=torch.float64)
    engine = StackedEngine(task, method, training)
    engine.store.whole = False
    message = broadcast(method, init_server(method, task.initial))
    sizes = task.clients.sizes
    small, large = int(sizes.argmin()), int(sizes.argmax())
    kept = []
    for clients in ([small], [small, large], [small]):
        engine.graphs.graphs["captured"] = object()  # type: ignore[assignment]
        engine.train(message, 0, 0.1, clients, [None] * len(clients))
        kept.append("captured" in engine.graphs.graphs)
    assert kept == [False, False, True]  # the third fits where the second lay


class Exhausted(StackedEngine):
    """Runs out of memory when it stacks more than one client."""

    def train_stack(self, sender: Any, round: int, clients: Any, states: Any) -> Any:
        if len(clients) > 1:
            raise torch.OutOfMemoryError("too many")
        return super().train_stack(sender, round, clients, states)


def test_too_many_clients_fall_back_to_fewer() -> None:
    method, training = build("fedavg"), Training(seed=1, epochs=2, batch_size=3)
    task, alone = Task(problem(), dtype=torch.float64), Task(problem(), dtype=torch.float64)
    engine = Exhausted(task, method, training)
    stacked, serial = train(engine, method, task), train(SerialEngine(alone, method, training), method, alone)
    assert engine.together == 1
    assert difference(stacked, serial) < 1e-12


def test_exhausted_memory_is_told_in_one_line_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    experiment = fk.Experiment(dataset="digits", model="logistic", rounds=3, epochs=1)
    wanted = fk.run(experiment, engine="stacked").result["model_digest"]
    evaluate, rounds = StackedEngine.evaluate, iter(range(9))

    def late(self: StackedEngine, *given: Any) -> Any:
        if next(rounds) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.22 GiB.")
        return evaluate(self, *given)

    monkeypatch.setattr(StackedEngine, "evaluate", late)
    with pytest.raises(fk.RunError, match=r"the memory of (cpu|cuda) does not suffice") as told:
        fk.run(experiment, engine="stacked", out=tmp_path / "run")
    assert "the same command goes on" in (told.value.hint or "")
    assert fk.run(experiment, engine="stacked", out=tmp_path / "run").result["model_digest"] == wanted


def test_a_gpu_that_stopped_is_told_in_one_line() -> None:
    with pytest.raises(fk.RunError, match="index is out of range"), explain_device_errors(torch.device("cuda")):
        raise RuntimeError("CUDA error: device-side assert triggered")
    with pytest.raises(RuntimeError, match="other"), explain_device_errors(torch.device("cuda")):
        raise RuntimeError("any other")


def test_memory_is_planned_from_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(problem())
    training = Training(seed=1, epochs=2, batch_size=3)
    before = task.initial.buffer.clone()
    each = StackedEngine(task, build("scaffold"), training)
    counts = []
    for free in (1 << 20, 1 << 21, 1):
        monkeypatch.setattr("fedkeel.engines.memory.free_bytes", lambda device, free=free: free)
        each.together = None
        counts.append(each.stack_size(1000))
    assert 1 < counts[0] < counts[1] <= 2 * counts[0] + 1
    assert counts[2] == 1
    assert torch.equal(task.initial.buffer, before)


def test_random_numbers_without_a_key_are_refused_with_a_way_out() -> None:
    """What a network draws in ways of its own cannot be the same in every engine."""

    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.randn_like(x)

    class Seldom(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(x, 0.5) if len(x) > 2 else x

    for layer, message in ((Noisy(), "serial"), (Seldom(), "stochastic = True")):
        task = Task(problem(model=nn.Sequential(network(), layer)))
        method = build("fedavg")
        engine = StackedEngine(task, method, Training(0, 1, 3))
        with pytest.raises(FedkeelError, match=message):
            engine.train(broadcast(method, init_server(method, task.initial)), 0, 0.1, [0, 1], [None] * 2)


def test_dropout_by_a_function_is_that_of_the_step_in_every_engine() -> None:
    class Drops(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(x, 0.5, self.training)

    experiment = fk.Experiment(
        problem=problem(model=nn.Sequential(network(), Drops())), rounds=2, epochs=1, batch_size=3, lr=0.1
    )
    one, other = (fk.run(experiment, engine=engine, dtype=torch.float64).params for engine in ("serial", "stacked"))
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-9, atol=1e-11)


def test_whole_runs_agree() -> None:
    experiment = fk.Experiment(
        problem=problem(test=samples(20, 99)),
        method="fedfft-d",
        rounds=3,
        epochs=2,
        batch_size=3,
        lr=0.1,
        participation=0.6,
    )
    runs = [
        fk.run(experiment, engine=engine, dtype=torch.float64, keep_params=True) for engine in ("serial", "stacked")
    ]
    assert runs[0].history is not None
    assert runs[1].history is not None
    for one, other in zip(runs[0].history, runs[1].history, strict=True):
        assert all(np.allclose(one[name].cpu(), other[name].cpu(), rtol=0, atol=1e-12) for name in one)
    assert [record.accuracy for record in runs[0].records] == [record.accuracy for record in runs[1].records]


def test_reports_are_rows_of_one_stack_and_states_are_copies() -> None:
    """What the server stacks again is not copied twice; what a client keeps does not keep the others' alive."""
    one = Tree.of({"w": torch.arange(4.0)})
    whole = {"tree": stack([1.0 * one, 2.0 * one, 3.0 * one]), "n": torch.arange(3)}
    rows, copies = unstack(whole, 3, copy=False), unstack(whole, 3, copy=True)
    assert stack(rows)["tree"].buffer.data_ptr() == whole["tree"].buffer.data_ptr()
    for state in (rows, copies):
        assert torch.equal(state[1]["tree"].buffer, 2 * torch.arange(4.0))
        assert int(state[2]["n"]) == 2
    kept = {copy["tree"].buffer.untyped_storage().nbytes() for copy in copies}
    assert kept == {16}
    assert unstack({}, 2, copy=True) == [{}, {}]


def test_batches_that_are_padded_to_lengths_of_their_own_are_refused_in_one_line():
    """Also where the samples on which the network is tried have one length."""
    x, lengths = torch.rand(40, 9, 2), torch.arange(40) % 5 + 2
    lengths[0] = lengths[-1] = 9

    def shorten(raw, keys=None):
        return raw[0][:, : int(raw[1].max())].sum(2), raw[2]

    class Summed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.out = torch.nn.Linear(1, 2)

        def forward(self, x):
            return self.out(x.sum(1, keepdim=True))

    sample = x, lengths, torch.arange(40) % 2
    problem = fk.Problem(
        model=Summed(), loss=torch.nn.functional.cross_entropy, clients=[sample, sample], prepare=shorten
    )
    settings = {"rounds": 1, "participation": 1.0, "epochs": 1, "batch_size": 4}
    fk.run(fk.Experiment(problem=problem, **settings), engine="serial")
    with pytest.raises(fk.DataError, match="samples of clients differ in shape"):
        fk.run(fk.Experiment(problem=problem, **settings), engine="stacked")
