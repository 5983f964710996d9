"""`--engine ray` beside `processes` with as many workers on this machine's cores; what moving and adding models costs.

    python benchmarks/ray_cpu.py [--workers 2] [--turns 9]

Both train the same rounds and take turns; a ratio is the median of those of the turns, for what disturbs one disturbs
its neighbour. The short round has one sample a client: what is left is what the engines themselves cost. Seconds of CPU
time are those of this process, of the workers and, for Ray, of its own processes; others on the machine disturb them
less than they disturb the clock.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from peers.workload import WORK, Work

from fedkeel.core.layout import Layout
from fedkeel.core.round import broadcast, init_server, server_round
from fedkeel.core.rule import State
from fedkeel.core.trees import Stacking, Tree, stack
from fedkeel.engines.engine import Training
from fedkeel.engines.machine import processor, steady
from fedkeel.engines.measure import Job
from fedkeel.engines.pool import PoolEngine
from fedkeel.engines.processes import ProcessCrew, ProcessesEngine
from fedkeel.engines.ray_connection import connected
from fedkeel.engines.ray_crew import RayEngine
from fedkeel.engines.worker import pack, unpack
from fedkeel.methods import build
from fedkeel.problems.problem import Problem
from fedkeel.problems.task import Task
from fedkeel.runs.participation import Participation
from fedkeel.runs.prepare import cross_entropy

SIZES = {"ResNet-20": 272_474, "ResNet-18": 11_173_962}
ROUND = dataclasses.replace(WORK["resnet20-gn"], samples=40, batch=20)


class Spent(NamedTuple):
    """By the clock, and by all processors."""

    seconds: float
    cpu: float


class Rounds:
    """Rounds of a method by one engine, with selection, aggregation, and clients that remember."""

    def __init__(self, work: Work, method: str, make: Callable[[Task, Training], PoolEngine]):
        self.work, self.method, self.done = work, build(method), 0
        self.task = Task(Problem(model=work.module(), loss=cross_entropy, clients=work.data()))
        self.engine = make(self.task, Training(0, 1, work.batch))
        self.server = init_server(self.method, self.task.initial, self.task.buffers)
        self.chosen = Participation(0, self.task.clients.sizes, work.selected / work.clients)
        self.states: dict[int, State] = {}

    def train(self) -> Spent:
        """Train a round more; return what it took."""
        began, selected = self.spent(), self.chosen.selected(self.done)
        known = [self.states.get(client) for client in selected]
        outcomes = self.engine.train(broadcast(self.method, self.server), self.done, self.work.lr, selected, known)
        reports = stack([one.report for one in outcomes]) | {"population": torch.tensor(float(self.work.clients))}
        self.server = server_round(self.method, self.server, reports)
        self.states |= {one.client: one.state for one in outcomes}
        self.done += 1
        ended = self.spent()
        return Spent(ended.seconds - began.seconds, ended.cpu - began.cpu)

    def spent(self) -> Spent:
        """Read both clocks."""
        crew = self.engine.crew
        mine = {worker.process.pid for worker in crew.workers} if isinstance(crew, ProcessCrew) else None
        below = cpu_below(os.getpid())
        others = sum(seconds for pid, seconds in below.items() if mine is None or pid in mine)
        return Spent(time.perf_counter(), time.process_time() + others)


def cpu_below(root: int) -> dict[int, float]:
    """Return the seconds of CPU time of every process that comes from one, as Linux tells them."""
    parents, seconds = {}, {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = entry.read_text().rpartition(")")[2].split()
            parents[int(entry.parent.name)] = int(fields[1])
            seconds[int(entry.parent.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def is_below(pid: int) -> bool:
        return pid in parents and (parents[pid] == root or is_below(parents[pid]))

    return {pid: seconds[pid] for pid in parents if is_below(pid)}


def compare(work: Work, method: str, workers: int, turns: int) -> None:
    """Print a line: both engines, and the median of their ratios."""
    rule = build(method)
    engines: dict[str, Callable[[Task, Training], PoolEngine]] = {
        "processes": lambda task, training: ProcessesEngine(Job(task, rule, training, Task, workers)),
        "ray": lambda task, training: RayEngine(Job(task, rule, training, Task, workers)),
    }
    made: dict[str, Rounds] = {}
    try:
        for name, make in engines.items():
            made[name] = Rounds(work, method, make)
            for _ in range(3):
                made[name].train()
        spent: dict[str, list[Spent]] = {name: [] for name in made}
        for turn in range(turns):  # who begins changes with the turn
            for name in sorted(made, reverse=bool(turn % 2)):
                spent[name].append(made[name].train())
        assert torch.equal(*(one.server["params"].buffer for one in made.values()))
    finally:
        for one in made.values():
            one.engine.close()
    cells = [f"{of_turns([1e3 * one.seconds for one in values], '.0f')}" for values in spent.values()]
    pairs = list(zip(spent["processes"], spent["ray"], strict=True))
    cells += [of_turns([b.seconds / a.seconds for a, b in pairs]), of_turns([b.cpu / a.cpu for a, b in pairs])]
    steps = work.selected * -(-work.samples // work.batch)
    print(f"| {method} | {work.samples} | {steps} | {' | '.join(cells)} |", flush=True)


def of_turns(values: list[float], form: str = ".3f") -> str:
    """Write the median, and the quartiles."""
    ordered, quarter = sorted(values), len(values) // 4
    return f"{statistics.median(values):{form}} ({ordered[quarter]:{form}}–{ordered[-1 - quarter]:{form}})"


def time_best(f: Callable[[], object], times: int = 5) -> float:
    """Return the least milliseconds of some calls, after one."""
    f()
    least = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        f()
        least = min(least, time.perf_counter() - began)
    return 1e3 * least


def measure_moves(clients: int) -> None:
    """Print what it costs to move a model through Ray's memory on one machine, and to combine reports."""
    print(f"\n| model | MB | ms to share it | to read it | to take up a report | to combine {clients} reports |")
    print("| --- | --- | --- | --- | --- | --- |")
    with connected() as ray:
        for name, count in SIZES.items():
            model = Tree(torch.randn(count), Layout({"w": (count,)}))
            held = ray.put(pack({"params": model}))
            put = time_best(lambda model=model: ray.put(pack({"params": model})))
            read = time_best(lambda held=held: unpack(ray.get(held)))
            method, one = build("fedavg"), torch.ones(clients)
            reports = {"delta": stack([{"delta": model}] * clients)["delta"], "size": one, "steps": one, "lr": one}
            reports |= {"loss": one, "population": torch.tensor(1.0)}
            server = init_server(method, model)
            added = time_best(partial(server_round, method, server, reports), 3)
            copied = time_best(lambda model=model: Stacking(clients).put(0, model))
            cells = (f"{4e-6 * count:.1f}", *(f"{value:.2f}" for value in (put, read, copied, added)))
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--methods", nargs="+", default=["fedavg", "scaffold"])
    parser.add_argument("--samples", nargs="+", type=int, default=[ROUND.samples, 1], help="that a client has")
    parser.add_argument("--clients", type=int, default=10, help="reports that are combined")
    given = parser.parse_args()
    with steady(), connected() as ray:
        print(f"{processor()}; torch {torch.__version__}, ray {ray.__version__}; {given.workers} workers\n")
        print("| method | samples | local steps | processes, ms | ray, ms | ray / processes | in CPU time |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for samples in given.samples:
            for method in given.methods:
                compare(dataclasses.replace(ROUND, samples=samples), method, given.workers, given.turns)
        measure_moves(given.clients)


if __name__ == "__main__":
    logging.disable(logging.INFO)
    main()
