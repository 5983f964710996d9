"""What a round costs when there are many clients of whom ten take part: in time, and in memory.

    python benchmarks/engines_cpu.py [--repeats 5]

Engines beside a hand-written loop and other simulators: `peers_cpu.py`.
"""

from __future__ import annotations

import argparse
import gc
import resource
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.method import Method
from fedkeel.core.round import broadcast, init_server, server_round
from fedkeel.core.trees import stack
from fedkeel.engines.engine import Training
from fedkeel.engines.machine import steady
from fedkeel.engines.serial import SerialEngine
from fedkeel.methods import build
from fedkeel.models import build as build_model
from fedkeel.problems.problem import Problem
from fedkeel.problems.task import Task
from fedkeel.runs.participation import Participation
from fedkeel.runs.prepare import cross_entropy

SHAPE, SAMPLES, BATCH = (1, 28, 28), 100, 20


class Clients:
    """As many clients as asked for, each with the same few tensors: what counts is how many there are."""

    def __init__(self, data: list[tuple[Tensor, Tensor]], clients: int, size: int):
        self.data, self.sizes = data, np.full(clients, size)

    def rows(self, client: int, rows: np.ndarray) -> tuple[Tensor, ...]:
        at = torch.from_numpy(rows)
        return tuple(part[at] for part in self.data[client % len(self.data)])


def timed(variants: dict[str, Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    """Variants in turn, again and again: what disturbs one disturbs all."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for round in range(repeats + 1):
        for name, call in variants.items():
            began = time.perf_counter()
            call()
            if round:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def many_clients(repeats: int) -> None:
    """A round of ten among a hundred and among a million; and memory, which follows those who took part."""
    data = [(torch.randn(SAMPLES, *SHAPE), torch.randint(0, 10, (SAMPLES,))) for _ in range(10)]
    module = build_model("logistic", shape=SHAPE, classes=10, seed=0)
    method, training = build("scaffold"), Training(0, 1, BATCH)
    variants = {}
    for clients in (100, 1_000_000):
        task = Task(Problem(model=module, loss=cross_entropy, clients=Clients(data, clients, SAMPLES)))
        variants[f"{clients} clients"] = loop_of(task, method, training, clients)
    seconds = timed(variants, 4 * repeats)
    few, many = (min(values) for values in seconds.values())
    print(f"\nten of 100 clients: {few * 1e3:.1f} ms a round; ten of 1 000 000: {many * 1e3:.1f} ms, {many / few:.2f}x")


def loop_of(task: Task, method: Method, training: Training, clients: int) -> Callable[[], None]:
    chosen = Participation(0, task.clients.sizes, 10 / clients)
    engine, server = SerialEngine(task, method, training), init_server(method, task.initial)
    store: dict[int, dict[str, object]] = {}
    round = 0

    def one() -> None:
        nonlocal server, round
        selected = chosen.selected(round)
        outcomes = engine.train(broadcast(method, server), round, 0.05, selected, [store.get(c) for c in selected])
        reports = stack([o.report for o in outcomes]) | {"population": torch.tensor(float(chosen.population))}
        server = server_round(method, server, reports)
        store.update((o.client, o.state) for o in outcomes)
        round += 1

    return one


def memory() -> None:
    """Peak memory of SCAFFOLD, ten of n clients a round, for growing n: only those who took part have state."""
    data = [(torch.randn(SAMPLES, *SHAPE), torch.randint(0, 10, (SAMPLES,))) for _ in range(10)]
    module = build_model("mlp", shape=SHAPE, classes=10, seed=0)
    for clients in (1_000, 100_000):
        task = Task(Problem(model=module, loss=cross_entropy, clients=Clients(data, clients, SAMPLES)))
        one = loop_of(task, build("scaffold"), Training(0, 1, BATCH), clients)
        for _ in range(5):
            one()
        gc.collect()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"SCAFFOLD on an mlp, ten of {clients} clients, five rounds: peak {peak:.0f} MB so far")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with steady():
        print(f"torch {torch.__version__}, {torch.get_num_threads()} thread, oneDNN {torch.backends.mkldnn.enabled}")
        many_clients(arguments.repeats)
        memory()


if __name__ == "__main__":
    main()
