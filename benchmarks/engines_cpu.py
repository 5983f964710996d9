"""fedkeel's engines against a hand-written PyTorch loop that does the same work, in one run, one thread each.

    python benchmarks/engines_cpu.py [--repeats 5] [--models logistic small-cnn resnet20-gn]

Prints seconds per round and ratios to the loop; then what a round costs with many clients, in time and in memory.
"""

from __future__ import annotations

import argparse
import gc
import resource
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from fedkeel.engines.engine import Training
from fedkeel.engines.processes import ProcessesEngine
from fedkeel.engines.serial import SerialEngine
from fedkeel.machine import steady
from fedkeel.method import Method
from fedkeel.methods import build
from fedkeel.models import build as build_model
from fedkeel.participation import Participation
from fedkeel.problem import Problem
from fedkeel.round import broadcast, init_server, server_round
from fedkeel.setup import cross_entropy
from fedkeel.task import Task
from fedkeel.trees import stack

WORK = {  # model: (shape, clients per round, samples per client, batch size)
    "logistic": ((1, 28, 28), 10, 100, 20),
    "small-cnn": ((1, 28, 28), 4, 60, 20),
    "resnet20-gn": ((3, 32, 32), 2, 50, 25),
}


class Clients:
    """As many clients as asked for, each with the same few tensors: what counts is how many there are."""

    def __init__(self, data: list[tuple[Tensor, Tensor]], clients: int, size: int):
        self.data, self.sizes = data, np.full(clients, size)

    def rows(self, client: int, rows: np.ndarray) -> tuple[Tensor, ...]:
        at = torch.from_numpy(rows)
        return tuple(part[at] for part in self.data[client % len(self.data)])


def plain_loop(module: nn.Module, data: list[tuple[Tensor, Tensor]], batch_size: int, lr: float) -> None:
    """One FedAvg round as people write it: copy, train, sum up."""
    start = [p.detach().clone() for p in module.parameters()]
    total = [torch.zeros_like(p) for p in start]
    for x, y in data:
        with torch.no_grad():
            for p, s in zip(module.parameters(), start, strict=True):
                p.copy_(s)
        order = torch.randperm(len(x))
        for first in range(0, len(x), batch_size):
            rows = order[first : first + batch_size]
            loss = nn.functional.cross_entropy(module(x[rows]), y[rows])
            module.zero_grad()
            loss.backward()
            with torch.no_grad():
                for p in module.parameters():
                    p.sub_(p.grad, alpha=lr)
        with torch.no_grad():
            for t, p in zip(total, module.parameters(), strict=True):
                t.add_(p)
    with torch.no_grad():
        for p, t in zip(module.parameters(), total, strict=True):
            p.copy_(t / len(data))


def fedkeel_round(
    engine: SerialEngine | ProcessesEngine, method: Method, task: Task, count: int, lr: float
) -> Callable[[], None]:
    server = init_server(method, task.initial, task.buffers)
    selected = list(range(count))

    def one() -> None:
        nonlocal server
        outcomes = engine.train(broadcast(method, server), 0, lr, selected, [None] * count)
        reports = stack([outcome.report for outcome in outcomes]) | {"population": torch.tensor(float(count))}
        server = server_round(method, server, reports)

    return one


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


def compare(name: str, repeats: int) -> None:
    shape, count, size, batch_size = WORK[name]
    data = [(torch.randn(size, *shape), torch.randint(0, 10, (size,))) for _ in range(count)]
    module = build_model(name, shape=shape, classes=10, seed=0)
    problem = Problem(model=module, loss=cross_entropy, clients=Clients(data, count, size))
    task, method, training = Task(problem), build("fedavg"), Training(0, 1, batch_size)
    pool = ProcessesEngine(task, method, training, workers=2, make_task=Task)
    looped = build_model(name, shape=shape, classes=10, seed=0)
    variants = {
        "hand-written loop": lambda: plain_loop(looped, data, batch_size, 0.05),
        "fedkeel serial": fedkeel_round(SerialEngine(task, method, training), method, task, count, 0.05),
        "fedkeel 2 processes": fedkeel_round(pool, method, task, count, 0.05),
    }
    try:
        seconds = timed(variants, repeats)
    finally:
        pool.close()
    best = {variant: min(values) for variant, values in seconds.items()}
    loop = best["hand-written loop"]
    steps = count * -(-size // batch_size)
    print(f"\n{name}, {count} clients x {size} samples, batches of {batch_size}: {steps} steps a round")
    for variant, values in seconds.items():
        middle = statistics.median(values)
        times = f"best {best[variant] * 1e3:9.1f} ms  median {middle * 1e3:9.1f} ms"
        print(f"  {variant:20} {times}  {best[variant] / loop:5.2f}x the loop")


def many_clients(repeats: int) -> None:
    """A round of ten among a hundred and among a million; and memory, which follows those who took part."""
    shape, _, size, batch_size = WORK["logistic"]
    data = [(torch.randn(size, *shape), torch.randint(0, 10, (size,))) for _ in range(10)]
    module = build_model("logistic", shape=shape, classes=10, seed=0)
    method, training = build("scaffold"), Training(0, 1, batch_size)
    variants = {}
    for clients in (100, 1_000_000):
        task = Task(Problem(model=module, loss=cross_entropy, clients=Clients(data, clients, size)))
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
    shape, _, size, batch_size = WORK["logistic"]
    data = [(torch.randn(size, *shape), torch.randint(0, 10, (size,))) for _ in range(10)]
    module = build_model("mlp", shape=shape, classes=10, seed=0)
    for clients in (1_000, 100_000):
        task = Task(Problem(model=module, loss=cross_entropy, clients=Clients(data, clients, size)))
        one = loop_of(task, build("scaffold"), Training(0, 1, batch_size), clients)
        for _ in range(5):
            one()
        gc.collect()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"SCAFFOLD on an mlp, ten of {clients} clients, five rounds: peak {peak:.0f} MB so far")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--models", nargs="+", default=list(WORK), choices=list(WORK))
    arguments = parser.parse_args()
    with steady():
        print(f"torch {torch.__version__}, {torch.get_num_threads()} thread, oneDNN {torch.backends.mkldnn.enabled}")
        for name in arguments.models:
            compare(name, arguments.repeats)
        many_clients(arguments.repeats)
        memory()


if __name__ == "__main__":
    main()
