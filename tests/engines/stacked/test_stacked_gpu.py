"""Captured steps on a GPU do what the plain loop does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_joint import trained, two_tasks
from test_stacked import difference, network, problem, settled, train
from torch import nn

import fedkeel as fk
from fedkeel.engines.engine import Training
from fedkeel.engines.serial import SerialEngine
from fedkeel.engines.stacked.client_mapping import lift_by_broadcast, lift_by_vmap, lift_compiled
from fedkeel.engines.stacked.engine import StackedEngine
from fedkeel.engines.stacked.graphs import Graph
from fedkeel.engines.stacked.joint import JointEngine
from fedkeel.methods import METHODS, build
from fedkeel.problems.task import Task
from problems import ABLATIONS, model_for

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # importing torch's own compiler gives some
]

CASES = [
    *((name, lift_by_broadcast, torch.float64, 1e-11) for name in METHODS),
    ("fedfft-d", lift_by_vmap, torch.float64, 1e-11),
    ("fedfft-d", lift_compiled, torch.float64, 1e-11),
    ("scaffold", lift_compiled, torch.float32, 1e-4),
]


@pytest.mark.parametrize(("name", "lift", "dtype", "bound"), CASES)
def test_captured_steps_equal_serial_ones(name: str, lift: Any, dtype: torch.dtype, bound: float) -> None:
    training, given, asks = Training(seed=1, epochs=2, batch_size=3), model_for(name, network()), build(name).asks
    one, other = (Task(problem(model=given), device="cuda", dtype=d, asks=asks) for d in (torch.float64, dtype))
    method = settled(name, one)
    serial = train(SerialEngine(one, method, training), method, one)
    engine = StackedEngine(other, method, training, lift=lift)
    assert difference(train(engine, method, other), serial) < bound
    assert engine.graphs.possible or lift is lift_by_vmap


def test_graphs_that_nobody_needs_any_more_do_not_break_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine in a cycle of references is found by the garbage collector, whenever that runs."""
    method, training = build("fedavg"), Training(seed=1, epochs=2, batch_size=3)
    advance = Graph.advance

    def advance_and_allocate(graph: Graph, count: int) -> None:
        _ = [[] for _ in range(10_000)]  # the collector runs, if it may
        advance(graph, count)

    monkeypatch.setattr(Graph, "advance", advance_and_allocate)
    for _ in range(3):
        task = Task(problem(), device="cuda", dtype=torch.float64)
        engine = StackedEngine(task, method, training, lift=lift_by_broadcast)
        train(engine, method, task)
        assert engine.graphs.possible
        cycle = [engine]
        cycle.append(cycle)  # type: ignore[arg-type]
        del engine, cycle


def test_labels_out_of_range_do_not_stop_the_gpu() -> None:
    x, y = torch.randn(12, 3), torch.tensor([2, 0, 1] * 4)
    given = fk.Problem(model=nn.Linear(3, 2), loss=nn.functional.cross_entropy, clients=[(x, y)] * 2, test=(x, y))
    with pytest.raises(fk.DataError, match="label 2"):
        fk.run(fk.Experiment(problem=given, rounds=1), device="cuda")
    assert torch.ones(2, device="cuda").sum() == 2


@pytest.mark.parametrize("rule", [*ABLATIONS, fk.RateWithin(0.2)], ids=repr)
def test_rules_of_ablations_are_compiled_and_captured(rule: fk.Rule) -> None:
    training = Training(seed=1, epochs=2, batch_size=3)
    task = Task(problem(model=network()), device="cuda", dtype=torch.float64)
    method = fk.method("ablation", gradient=[rule], weights=fk.Uniform())
    serial = train(SerialEngine(task, method, training), method, task)
    engine = StackedEngine(task, method, training)
    assert difference(train(engine, method, task), serial) < 1e-11
    assert engine.graphs.graphs


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-11), (torch.float32, 1e-4)])
def test_batch_norms_in_captured_steps(dtype: torch.dtype, bound: float) -> None:
    training, given = Training(seed=1, epochs=2, batch_size=3), network(nn.BatchNorm2d(4))
    one, other = (Task(problem(model=given), device="cuda", dtype=d) for d in (torch.float64, dtype))
    method = settled("fedsam", one)
    serial = train(SerialEngine(one, method, training), method, one)
    engine = StackedEngine(other, method, training)
    assert difference(train(engine, method, other), serial) < bound
    assert engine.graphs.possible
    assert engine.graphs.graphs  # batches of different sizes do not keep steps from being captured


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedfft-d", "fedwmsam"])
def test_two_runs_in_one_captured_stack_learn_what_they_learn_alone(name: str) -> None:
    tasks = two_tasks(name, "cuda")
    method, training = settled(name, tasks[0]), Training(seed=1, epochs=2, batch_size=3)
    alone = [SerialEngine(task, method, training) for task in tasks]
    expected = trained(name, lambda asked: {run: alone[run].train(*request) for run, request in asked.items()}, tasks)
    joint = JointEngine([StackedEngine(task, method, training) for task in two_tasks(name, "cuda")])
    assert difference(trained(name, joint.train, tasks), expected) < 1e-11
    assert joint.stacked.graphs.possible
