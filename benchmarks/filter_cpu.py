"""What the spectral filter adds to a SAM step on a CPU, one thread; both parts timed in turn in one run.

python benchmarks/filter_cpu.py [--repeats 5] [--models resnet20-gn resnet18-gn]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from fedkeel.core.rule import Local
from fedkeel.core.trees import Tree
from fedkeel.engines.machine import keep_large_buffers, steady
from fedkeel.models import build
from fedkeel.problems.gradients import Workspace
from fedkeel.problems.problem import Problem
from fedkeel.problems.task import Batch, Task
from fedkeel.rules import HighPass, Sam
from fedkeel.runs.prepare import cross_entropy

BATCH = 50


def best(call: Callable[[], object], repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def measure(name: str, repeats: int) -> None:
    module = build(name, shape=(3, 32, 32), classes=10, seed=0)
    x, y = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))
    task = Task(Problem(model=module, loss=cross_entropy, clients=[(x, y)]))
    workspace, params = Workspace(task), task.initial
    zero = torch.zeros((), dtype=torch.int64)
    at = Local(params, params, {}, None, torch.tensor(0.1), zero, torch.tensor(1.0), zero)

    def gradient(point: Tree) -> Tree:
        return workspace(point, Batch((x, y)), "loss", {}, None).tree

    def sam_step() -> Tree:
        delta, _ = Sam(0.1).step(gradient(params), {}, at)
        return params.stepped(gradient(params + delta), at.lr)

    found = gradient(params)
    HighPass(0.01).step(found, {}, at)  # the tables of the transform are made once
    step, line = best(sam_step, repeats), [f"{name}, batch {BATCH}: SAM step"]
    line.append(f"{step * 1e3:.0f} ms")
    for ratio in (0.01, 0.05):
        filter_ = best(lambda ratio=ratio: HighPass(ratio).step(found, {}, at), 4 * repeats)
        line.append(f"filter {ratio:g}: {filter_ * 1e3:.1f} ms = {100 * filter_ / step:.1f} %")
    print("; ".join(line))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=["resnet20-gn", "resnet18-gn"])
    arguments = parser.parse_args()
    keep_large_buffers()
    with steady(), torch.no_grad():
        for name in arguments.models:
            measure(name, arguments.repeats)


if __name__ == "__main__":
    main()
