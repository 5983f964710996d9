"""fedkeel's engines, a hand-written loop, pfl-research and Flower's simulation on the same work, taking turns.

    python benchmarks/peers_cpu.py [--pfl-python PATH] [--flower-python PATH] [--even]

FedAvg: 100 clients of 100 images 28×28, ten in each round, batches of 20, one epoch; ResNet-20 on less. Peers run in
environments of their own, which the paths name. Every process computes with one thread; fedkeel's pool and Flower have
two processes. The loop has fedkeel's settings of PyTorch (on ARM: no oneDNN); peers have them with --even, and else
what they come with. Prints medians, ratios, and the loss of each model at the end: all must be alike.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peers.loop import HandWritten
from peers.ours import Ours
from peers.workload import WORK, Work

from fedkeel.core.method import Method
from fedkeel.engines.choose import choose_engine
from fedkeel.engines.engine import Engine, Training
from fedkeel.engines.machine import steady
from fedkeel.engines.measure import Job, RemainingWork
from fedkeel.engines.processes import ProcessesEngine
from fedkeel.engines.serial import SerialEngine
from fedkeel.engines.stacked.engine import StackedEngine
from fedkeel.methods import build
from fedkeel.problems.problem import Problem
from fedkeel.problems.task import Task
from fedkeel.runs.prepare import cross_entropy

ROUNDS = {"logistic": 10, "small-cnn": 3, "resnet20-gn": 2}  # of each variant in its turn
HERE = Path(__file__).parent
LOOP, FLOWER = "hand-written loop", "Flower simulation"


class Here:
    """A variant in this process."""

    def __init__(self, work: Work, variant: Any):
        self.work, self.variant = work, variant

    def rounds(self, count: int) -> float:
        began = time.perf_counter()
        self.variant.rounds(count)
        return time.perf_counter() - began

    @property
    def loss(self) -> float:
        return self.work.judged(self.variant.module)

    def close(self) -> None:
        if isinstance(self.variant, Ours):
            self.variant.engine.close()


class There:
    """A peer in a process of its own."""

    def __init__(self, python: str, peer: str, name: str, even: bool):
        paths = [str(HERE), str(HERE.parent / "src")]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
        environment["EVEN"] = "1" if even else ""
        command = [python, "-m", "peers.serve", peer, name]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        self.loss = float("nan")

    def rounds(self, count: int) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args} ended with exit code {self.process.wait()}")
        answer = json.loads(line)
        self.loss = answer["loss"]
        return float(answer["seconds"])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()  # it ends by itself, and takes its actors with it
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def pool(task: Task, method: Method, training: Training) -> Engine:
    return ProcessesEngine(Job(task, method, training, Task, 2))


def variants(name: str, given: argparse.Namespace) -> dict[str, Callable[[], Here | There]]:
    work = WORK[name]
    found: dict[str, Callable[[], Here | There]] = {
        LOOP: lambda: Here(work, HandWritten(work)),
        "fedkeel serial": lambda: Here(work, Ours(work, SerialEngine)),
        "fedkeel stacked": lambda: Here(work, Ours(work, StackedEngine)),
        "fedkeel 2 processes": lambda: Here(work, Ours(work, pool)),
    }
    if given.pfl_python:
        found["pfl-research"] = lambda: There(given.pfl_python, "pfl", name, given.even)
    if given.flower_python:
        found[FLOWER] = lambda: There(given.flower_python, "flower", name, given.even)
    return found


def compare(name: str, given: argparse.Namespace) -> None:
    work, count = WORK[name], ROUNDS[name]
    made: dict[str, Here | There] = {}
    first, seconds = {}, {}
    try:
        for variant, make in variants(name, given).items():
            began = time.perf_counter()
            made[variant] = make()
            made[variant].rounds(1)
            first[variant], seconds[variant] = time.perf_counter() - began, []
        for _ in range(given.repeats):
            for variant in made:
                seconds[variant].append(made[variant].rounds(count) / count)
        losses = {variant: one.loss for variant, one in made.items()}
    finally:
        for one in made.values():
            one.close()
    table(name, work, 1 + count * given.repeats, first, seconds, losses)


def table(
    name: str,
    work: Work,
    rounds: int,
    first: dict[str, float],
    seconds: dict[str, list[float]],
    losses: dict[str, float],
) -> None:
    """In Markdown. A ratio is the median of those of the turns, for what disturbs one disturbs its neighbours."""

    def times(one: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(seconds[other], seconds[one], strict=True))

    best = min((v for v in seconds if v.startswith("fedkeel")), key=lambda v: statistics.median(seconds[v]))
    print(f"\n**{name}**: {work.selected} of {work.clients} clients, {work.steps} local steps in a round\n")
    print("| | ms per round | local steps per second | times the loop | first round | loss after", rounds, "rounds |")
    print("| --- | --- | --- | --- | --- | --- |")
    for variant, values in seconds.items():
        middle, mark = statistics.median(values), "**" if variant == best else ""
        cells = (
            f"{mark}{variant}{mark}",
            f"{middle * 1e3:.1f} ({min(values) * 1e3:.1f}–{max(values) * 1e3:.1f})",
            f"{work.steps / middle:.0f}",
            f"{times(variant, LOOP):.2f}",
            f"{first[variant]:.1f} s",
            f"{losses[variant]:.3f}",
        )
        print(f"| {' | '.join(cells)} |")
    ratios = ", ".join(
        f"{times(best, other):.2f} times {other}" for other in seconds if not other.startswith("fedkeel")
    )
    print(f"\nFastest of fedkeel: {best}: {ratios}.", flush=True)


def chosen(name: str, rounds: int = 1000) -> None:
    """What `auto` takes for a longer run."""
    work = WORK[name]
    task = Task(Problem(model=work.module(), loss=cross_entropy, clients=work.data()))
    left = RemainingWork(rounds, range(work.selected))
    engine, choice = choose_engine("auto", Job(task, build("fedavg"), Training(0, 1, work.batch), Task, 2, left))
    engine.close()
    print(f"`auto` for {rounds} rounds: {choice.describe() if choice.seconds else choice.engine}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(ROUNDS), choices=list(ROUNDS))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--pfl-python", help="a Python that has pfl and torch")
    parser.add_argument("--flower-python", help="a Python that has flwr[simulation] and torch")
    parser.add_argument("--even", action="store_true", help="fedkeel's settings of PyTorch for the peers, too")
    given = parser.parse_args()
    began = time.perf_counter()
    with steady():
        even = "with fedkeel's settings of PyTorch" if given.even else "as they come"
        print(f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}; peers {even}")
        for name in given.models:
            compare(name, given)
            chosen(name)
    print(f"\nAll of it took {time.perf_counter() - began:.0f} s.")


if __name__ == "__main__":
    main()
