"""A local step of SGD, AdamW and Muon beside each other: ten clients of CIFAR-10's shape on one GPU, in one process.

    python benchmarks/optimisers_gpu.py [--model resnet18-gn] [--optimizer adamw --optimizer muon] [--profile] [--check]

Whole rounds of the stacked engine in bfloat16, steps captured as graphs. The variants take turns, round by round, so
that a GPU that slows down slows all of them; a ratio is that of two medians.
"""

from __future__ import annotations

import argparse
import logging
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from stacked_gpu import BATCH, EPOCHS, SELECTED, STEPS, problem, profile, seconds

import fedkeel as fk
from fedkeel.core.method import Method
from fedkeel.core.round import broadcast, init_server
from fedkeel.core.rule import Rule
from fedkeel.core.trees import stack, tensors
from fedkeel.engines.engine import Training
from fedkeel.engines.serial import SerialEngine
from fedkeel.engines.stacked.engine import StackedEngine
from fedkeel.problems.task import Task
from fedkeel.runs.prepare import method_of

VARIANTS: dict[str, Rule | None] = {
    "sgd": None,
    "momentum": fk.LocalMomentum(),
    "adamw": fk.AdamW(),
    "lion": fk.Lion(),
    "muon": fk.Muon(precision="bfloat16"),
    "muon, full": fk.Muon(precision="full"),
}
RATES = {"sgd": 0.1}


class Variant(NamedTuple):
    """An optimiser that has been compiled and captured, and how to train a round of it."""

    engine: StackedEngine
    one_round: Callable[[], None]


def fit(name: str, given: fk.Problem, dtype: torch.dtype) -> tuple[Task, Method, float]:
    """The method with clip and weight decay in their places."""
    settings: dict[str, Any] = {"rounds": 1, "clip": 10.0, "weight_decay": 1e-3, "batch_size": BATCH, "epochs": EPOCHS}
    experiment = fk.Experiment(problem=given, optimizer=VARIANTS[name], lr=RATES.get(name), **settings)
    task = Task(given, device="cuda", dtype=dtype)
    return task, method_of(experiment.plan, task), experiment.plan.lr


def prepare(name: str, model: str, dtype: torch.dtype) -> Variant:
    task, method, rate = fit(name, problem(model), dtype)
    engine = StackedEngine(task, method, Training(0, EPOCHS, BATCH))
    message = broadcast(method, init_server(method, task.initial, task.buffers))
    counter = iter(range(10_000))

    def one_round() -> None:
        engine.train(message, next(counter), rate, list(range(SELECTED)), [None] * SELECTED)

    one_round()
    return Variant(engine, one_round)


def check(name: str, model: str, dtype: torch.dtype) -> float:
    """The largest relative difference of a model from that of the serial engine in float64, after one short round."""
    found = []
    for kind, precision in ((SerialEngine, torch.float64), (StackedEngine, dtype)):
        task, method, rate = fit(name, problem(model, samples=20, clients=3), precision)
        message = broadcast(method, init_server(method, task.initial, task.buffers))
        engine = kind(task, method, Training(0, 1, 8))
        for t in range(2):  # the second round replays what the first has captured
            outcomes = engine.train(message, t, rate, [0, 1, 2], [None] * 3)
        found.append(tensors(stack([outcome.report["delta"] for outcome in outcomes])))
    return max(float((a.double() - b).norm() / b.norm()) for b, a in zip(*found, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="resnet18-gn")
    parser.add_argument("--optimizer", action="append", choices=list(VARIANTS), help="beside SGD")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    torch.backends.cudnn.benchmark = True
    names = ["sgd", *(name for name in given.optimizer or VARIANTS if name != "sgd")]
    if given.check:
        for name in names:
            for dtype in (torch.float32, torch.bfloat16):
                print(f"{name}: {check(name, given.model, dtype):.1e} from serial float64, in {dtype}", flush=True)
    variants = {name: prepare(name, given.model, torch.bfloat16) for name in names}
    taken: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(given.rounds):
        for name, variant in variants.items():
            taken[name].append(seconds(variant.one_round, 1) / STEPS * 1e3)
    sgd = statistics.median(taken["sgd"])
    print(f"{given.model}, {SELECTED} clients, batches of {BATCH}, bfloat16, on {torch.cuda.get_device_name()}")
    print("| optimizer | ms per step, whole rounds | to SGD | ms replayed | to SGD |\n| --- | --- | --- | --- | --- |")
    first = 0.0
    for name, variant in variants.items():
        graphs = list(variant.engine.graphs.graphs.values())
        replay = sum(seconds(lambda g=g: (g.step.zero_(), g.replay(STEPS)), given.rounds) / STEPS for g in graphs) * 1e3
        first, step = first or replay, statistics.median(taken[name])
        print(f"| {name} | {step:.2f} | {step / sgd:.2f}× | {replay:.2f} | {replay / first:.2f}× |", flush=True)
        if given.profile:
            print(profile(variant.engine, False), flush=True)
    print(f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most, all variants held at once")


if __name__ == "__main__":
    main()
