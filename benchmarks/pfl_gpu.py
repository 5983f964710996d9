"""pfl-research's CIFAR-10 benchmark: fedkeel's stacked engine, an eager loop and, where it is installed, pfl.

    python benchmarks/pfl_gpu.py [--device cuda] [--rounds 20] [--repeats 5]

1 000 users of 50 images, 50 in each round, batches of 10, one epoch, FedAvg, and pfl's network of two convolutions and
one hidden layer, without its dropouts. Images are noise with a faint pattern of their class. All data lie on the device
for everyone. Variants take turns, `--rounds` each time; the losses at the end say that they have learnt the same.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

import torch
from peers.loop import HandWritten
from peers.ours import Ours
from peers.workload import WORK, Work

from fedkeel.engines.stacked.engine import StackedEngine


def variants(work: Work, device: str, precisions: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"eager loop": HandWritten(work, device)}
    try:
        from peers.pfl_app import Pfl
    except ImportError as error:
        print(f"pfl is not timed: {error}")
    else:
        found["pfl"] = Pfl(work, device)
    for name in precisions:
        found[f"fedkeel stacked, {name}"] = Ours(work, StackedEngine, device, getattr(torch, name))
    return found


def timed(variant: Any, rounds: int, device: str) -> float:
    """Seconds of a round."""
    began = time.perf_counter()
    variant.rounds(rounds)
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"])
    given = parser.parse_args()
    os.environ["PFL_PYTORCH_DEVICE"] = given.device  # read by pfl when it is asked for tensors
    torch.backends.cudnn.benchmark = True
    work = WORK["pfl-cifar10"]
    made = variants(work, given.device, given.precisions)
    first = {}
    for name, variant in made.items():  # capture and compilation, not counted
        first[name] = timed(variant, 1, given.device)
        print(f"{name}: first round {first[name]:.2f} s", flush=True)
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(given.repeats):
        for name, variant in made.items():
            seconds[name].append(timed(variant, given.rounds, given.device))
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    rounds = 1 + given.rounds * given.repeats
    print(f"\n{work.selected} of {work.clients} users, {work.steps} local steps in a round; torch {torch.__version__}")
    for name, variant in made.items():
        against = ", ".join(
            f"{middle[peer] / middle[name]:.1f} times {peer}" for peer in ("eager loop", "pfl") if peer in middle
        )
        print(
            f"  {name:26} {middle[name] * 1e3:8.1f} ms per round, {1 / middle[name]:7.1f} rounds and "
            f"{work.steps / middle[name]:8.0f} local steps per second; {against}; "
            f"loss after {rounds} rounds {work.judged(variant.module):.3f}"
        )
        if isinstance(variant, Ours):
            print(f"    gradients by {type(variant.engine.gradient).__name__}")
    if given.device == "cuda":
        print(f"  peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB, all variants together")


if __name__ == "__main__":
    main()
