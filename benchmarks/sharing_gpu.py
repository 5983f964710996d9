"""Several processes on one GPU: how often each replays a graph of 250 small kernels, as late steps of few clients are.

    python benchmarks/sharing_gpu.py [--processes 3] [--mps]

With --mps the processes run under NVIDIA's multi-process service, which is started and stopped here.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time

import torch

SECONDS = 4.0


def replays() -> float:
    """Per second, alone in this process."""
    x, y = torch.randn(64, 64, device="cuda"), torch.randn(200_000, device="cuda")

    def kernels() -> None:
        for _ in range(125):
            torch.mm(x, x)
            y.mul_(1.0001)

    with torch.cuda.stream(torch.cuda.Stream()):
        kernels()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels()
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        for _ in range(20):
            graph.replay()
        torch.cuda.synchronize()
        done += 20
    return done / (time.perf_counter() - began)


def side_by_side(processes: int, environment: dict[str, str]) -> list[float]:
    command = [sys.executable, __file__, "--alone"]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) for _ in range(processes)]
    return [float(one.communicate()[0]) for one in started]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--mps", action="store_true")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        print(replays())
        return
    environment = dict(os.environ)
    (one,) = side_by_side(1, environment)
    print(f"alone: {one:.0f} replays/s")
    together = side_by_side(given.processes, environment)
    print(f"{given.processes} processes: {sum(together):.0f} replays/s, {sum(together) / one:.2f} times one")
    if given.mps:
        with tempfile.TemporaryDirectory() as folder:
            environment |= {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
            subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environment, check=True)
            try:
                together = side_by_side(given.processes, environment)
            finally:
                subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", env=environment, text=True, check=False)
        print(f"under MPS: {sum(together):.0f} replays/s, {sum(together) / one:.2f} times one")


if __name__ == "__main__":
    main()
