"""Ten clients of CIFAR-10's shape on one GPU: the stacked engine beside an eager loop, in one process.

    python benchmarks/stacked_gpu.py [--workload fedfft-d/resnet18-gn] [--profile] [--check]

Images are random bytes: the time of a step does not depend on what they show.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from eager_step import train_client
from torch import Tensor, nn

import fedkeel as fk
from fedkeel.core.method import Method
from fedkeel.core.round import broadcast, init_server
from fedkeel.core.trees import stack, tensors
from fedkeel.data.augment import Augment
from fedkeel.data.prepare import Preparation
from fedkeel.engines.engine import RoundRequest, Training
from fedkeel.engines.serial import SerialEngine
from fedkeel.engines.stacked.client_mapping import lift_by_broadcast, lift_compiled
from fedkeel.engines.stacked.engine import StackedEngine
from fedkeel.engines.stacked.joint import JointEngine
from fedkeel.methods import build
from fedkeel.models import build as build_model
from fedkeel.problems.task import Task
from fedkeel.rules import ClipNorm, WeightDecay
from fedkeel.runs.prepare import cross_entropy

CLIENTS, SELECTED, SAMPLES, BATCH, EPOCHS = 100, 10, 500, 50, 5
STEPS = EPOCHS * SAMPLES // BATCH
FLOORS = {
    "fedfft-d/resnet18-gn": 2.0,
    "specgradfilter/resnet20-gn": 0.5,
    "fedavg/resnet18-gn": 0.8,
    "fedavg/resnet18-bn-cifar": 2.1,
}
"""ms for a step of ten clients: bytes that must move over 4.3 TB/s, or arithmetic over 790 TFLOP/s."""


def problem(model: str, samples: int = SAMPLES, clients: int = CLIENTS) -> fk.Problem:
    draw = torch.Generator().manual_seed(0)
    data = [
        (
            torch.randint(0, 256, (samples, 32, 32, 3), generator=draw, dtype=torch.uint8),
            torch.randint(0, 10, (samples,), generator=draw),
        )
        for _ in range(clients)
    ]
    network = build_model(model, shape=(3, 32, 32), classes=10, seed=0)
    prepare = Preparation((0.49, 0.48, 0.45), (0.25, 0.24, 0.26), Augment(crop=4, flip=True))
    return fk.Problem(model=network, loss=cross_entropy, clients=data, prepare=prepare)


def method_of(name: str) -> Method:
    return build(name).then(ClipNorm(10.0), WeightDecay(1e-3))


def eager_loop(method: str, model: str, steps: int) -> Callable[[], None]:
    """What a paper's code does for one client: a module, autograd, and arithmetic tensor by tensor."""
    network = build_model(model, shape=(3, 32, 32), classes=10, seed=0).cuda()
    params = list(network.parameters())
    draw = torch.Generator(device="cuda").manual_seed(1)
    images = torch.randn(500, 3, 32, 32, device="cuda", generator=draw)
    labels = torch.randint(0, 10, (500,), device="cuda", generator=draw)

    def gradients(step: int) -> tuple[Tensor, ...]:
        rows = torch.arange(step * BATCH, step * BATCH + BATCH, device="cuda") % 500
        return torch.autograd.grad(nn.functional.cross_entropy(network(images[rows]), labels[rows]), params)

    return partial(train_client, params, gradients, method, steps)


def seconds(f: Callable[[], Any], times: int) -> float:
    found = []
    for _ in range(times):
        torch.cuda.synchronize()
        began = time.perf_counter()
        f()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def stacked(
    workload: str, precision: torch.dtype, rounds: int = 3, **options: Any
) -> tuple[float, float, StackedEngine]:
    """Milliseconds of a step of all clients, of a whole round and of replays alone."""
    name, model = workload.split("/")
    task = Task(problem(model), device="cuda", dtype=precision)
    method = method_of(name)
    engine = StackedEngine(task, method, Training(0, EPOCHS, BATCH), **options)
    message = broadcast(method, init_server(method, task.initial, task.buffers))
    counter = iter(range(1000))

    def one_round() -> None:
        engine.train(message, next(counter), 0.1, list(range(SELECTED)), [None] * SELECTED)

    one_round()
    whole = seconds(one_round, rounds) / STEPS * 1e3
    graphs = list(engine.graphs.graphs.values())
    replay = sum(seconds(lambda g=g: (g.step.zero_(), g.replay(STEPS)), rounds) / STEPS for g in graphs)
    return whole, replay * 1e3, engine


def joined(workload: str, precision: torch.dtype, runs: int, rounds: int = 3) -> tuple[float, StackedEngine]:
    """Milliseconds of a step of all clients of several runs, in whole rounds."""
    name, model = workload.split("/")
    method = method_of(name)
    engines = [
        StackedEngine(Task(problem(model), device="cuda", dtype=precision), method, Training(seed, EPOCHS, BATCH))
        for seed in range(runs)
    ]
    joint = JointEngine(engines)
    messages = [broadcast(method, init_server(method, e.task.initial, e.task.buffers)) for e in engines]
    counter = iter(range(1000))

    def one_round() -> None:
        t = next(counter)
        clients = list(range(SELECTED))
        joint.train({r: RoundRequest(m, t, 0.1, clients, [None] * SELECTED) for r, m in enumerate(messages)})

    one_round()
    return seconds(one_round, rounds) / STEPS * 1e3, joint.stacked


def profile(engine: StackedEngine, each: bool) -> str:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    graph, steps = next(iter(engine.graphs.graphs.values())), 10
    graph.step.zero_()
    with profiled(activities=[ProfilerActivity.CUDA]) as found:
        graph.replay(steps)
        torch.cuda.synchronize()
    ran = sorted((event for event in found.events() if event.device_time > 0), key=lambda event: event.time_range.start)
    rows = sorted(found.key_averages(), key=lambda row: -row.self_device_time_total)
    total = sum(row.self_device_time_total for row in rows) / steps / 1e3
    lines = [f"{total:.3f} ms of kernels in a step", "ms per step | launches | kernel"]
    lines += [
        f"{r.self_device_time_total / steps / 1e3:.3f} | {r.count / steps:.0f} | {r.key[:100]}" for r in rows[:30]
    ]
    if each:
        once = ran[: len(ran) // steps]
        lines += ["one step, launch by launch, µs"] + [f"{e.device_time:.1f} {e.name[:60]}" for e in once]
    return "\n".join(lines)


def check(workload: str, dtype: torch.dtype, **options: Any) -> float:
    """The largest relative difference from the serial engine after one round of a few short clients."""
    name, model = workload.split("/")
    method, training = method_of(name), Training(0, 1, 8)
    found = []
    for engine, precision, extra in ((SerialEngine, torch.float64, {}), (StackedEngine, dtype, options)):
        given = problem(model, samples=20, clients=3)
        task = Task(given, device="cuda", dtype=precision)
        message = broadcast(method, init_server(method, task.initial, task.buffers))
        made = engine(task, method, training, **extra)  # type: ignore[operator]
        for t in range(2):  # the second round replays what the first has captured
            outcomes = made.train(message, t, 0.01, [0, 1, 2], [None] * 3)
        found.append(tensors(stack([outcome.report for outcome in outcomes])))
    return max(float((a - b).double().norm() / b.double().norm().clamp(min=1e-3)) for b, a in zip(*found, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", action="append")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--timeline", action="store_true", help="with --profile: every launch of one step")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--general", action="store_true", help="vmap beside the kernels")
    parser.add_argument("--seeds", type=int, default=1, help="so many runs in one stack, besides")
    parser.add_argument("--eager", type=int, default=5, help="steps of the eager loop")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    torch.backends.cudnn.benchmark = True
    for workload in given.workload or ["fedfft-d/resnet18-gn", "specgradfilter/resnet20-gn"]:
        print(f"== {workload}")
        if given.check:
            for label, dtype, options in (
                ("float64, compiled rules", torch.float64, {"lift": lift_compiled}),
                ("float32, vmap", torch.float32, {"general": True, "lift": lift_by_broadcast}),
                ("float32, kernels", torch.float32, {}),
                ("bfloat16, vmap", torch.bfloat16, {"general": True, "lift": lift_by_broadcast}),
                ("bfloat16, kernels", torch.bfloat16, {}),
            ):
                print(f"difference from serial float64: {label}: {check(workload, dtype, **options):.2e}", flush=True)
        name, model = workload.split("/")
        client = eager_loop(name, model, given.eager)
        client()
        eager = seconds(client, 2) / given.eager * 1e3 * SELECTED
        print(f"eager loop: {eager:.1f} ms per step of {SELECTED} clients", flush=True)
        variants: list[tuple[str, torch.dtype, dict[str, Any]]] = [("bf16, kernels", torch.bfloat16, {})]
        if given.general:
            variants += [
                ("fp32, kernels", torch.float32, {}),
                ("bf16, kernels, rules not compiled", torch.bfloat16, {"lift": lift_by_broadcast}),
                ("bf16, vmap", torch.bfloat16, {"general": True}),
            ]
        for label, dtype, options in variants:
            torch.cuda.reset_peak_memory_stats()
            began = time.perf_counter()
            whole, replay, engine = stacked(workload, dtype, **options)
            floor = FLOORS.get(workload, float("nan"))
            print(
                f"{label}: {whole:.2f} ms per step in whole rounds ({STEPS * whole / 1e3:.3f} s per round), "
                f"{replay:.2f} ms replayed; {eager / whole:.1f} times the eager loop, {floor / whole:.0%} of the "
                f"floor, {SELECTED / whole * 1e3:.0f} local steps per second, "
                f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB; "
                f"with compilation it took {time.perf_counter() - began:.0f} s",
                flush=True,
            )
            if given.profile and label == "bf16, kernels":
                print(profile(engine, given.timeline), flush=True)
            if given.seeds > 1 and label == "bf16, kernels":
                del engine
                several, engine = joined(workload, dtype, given.seeds)
                print(
                    f"{given.seeds} runs in one stack: {several:.2f} ms per step of all, "
                    f"{several / whole:.2f} times one, {several / (given.seeds * floor):.2f} times their floor",
                    flush=True,
                )
            del engine
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
