"""Which tiles are fastest for the convolutions of a network, on one GPU.

    python benchmarks/tiles_gpu.py [--network resnet20 resnet18] [--clients 10 30] [--kernel weight] [--tries 20]

Prints for each shape and kernel the time of the tile that `kernels/tiles.py` chooses, and of the best ones found. A
gradient by the weights is a sum that is split among programs: it is also tried with 2, 4 and 8 times as many of them.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from fedkeel.kernels.geometry import Geometry
from fedkeel.kernels.tiles import PROGRAMS, Tile, pow2

IMAGES = 50
# height, in, out, kernel, stride, padding, and how often the network has it
SHAPES = {
    "resnet20": [
        (32, 3, 16, 3, 1, 1, 1), (32, 16, 16, 3, 1, 1, 6), (32, 16, 32, 3, 2, 1, 1), (16, 32, 32, 3, 1, 1, 5),
        (16, 32, 64, 3, 2, 1, 1), (8, 64, 64, 3, 1, 1, 5),
    ],
    "resnet18": [
        (32, 3, 64, 7, 2, 3, 1), (8, 64, 128, 3, 2, 1, 1), (4, 128, 128, 3, 1, 1, 3), (4, 128, 256, 3, 2, 1, 1),
        (2, 256, 256, 3, 1, 1, 3), (2, 256, 512, 3, 2, 1, 1), (1, 512, 512, 3, 1, 1, 3),
    ],
    "resnet18-cifar": [
        (32, 3, 64, 3, 1, 1, 1), (32, 64, 64, 3, 1, 1, 4), (32, 64, 128, 3, 2, 1, 1), (16, 128, 128, 3, 1, 1, 3),
        (16, 128, 256, 3, 2, 1, 1), (8, 256, 256, 3, 1, 1, 3), (8, 256, 512, 3, 2, 1, 1), (4, 512, 512, 3, 1, 1, 3),
    ],
}  # fmt: skip
KERNELS = ("forward", "input", "weight")
MANY = (1, 2, 4, 8)  # times as many programs of a sum
LAUNCHES = 20


@cache
def operands(shape: tuple[int, ...], clients: int) -> tuple[Any, ...]:
    height, inner, outer, kernel, stride, padding, _ = shape
    where = Geometry.of(height, height, (kernel, kernel), stride, padding)
    x = torch.randn(clients, IMAGES, height, height, inner, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(clients, outer, inner, kernel, kernel, device="cuda")
    dy = torch.randn(clients, IMAGES, where.out_height, where.out_width, outer, device="cuda", dtype=torch.bfloat16)
    return where, x, weight, dy


def job(kernel: str, shape: tuple[int, ...], tile: Tile | None, clients: int, many: int = 1) -> Callable[[], Any]:
    from fedkeel.kernels import triton_convolution as ops
    from fedkeel.kernels import triton_weights

    triton_weights.PROGRAMS = PROGRAMS * many
    where, x, weight, dy = operands(shape, clients)
    packed, into = ops.pack(weight, where, torch.bfloat16), torch.empty_like(weight)
    if kernel == "forward":
        return lambda: ops.convolve(x, packed, where, tile)
    if kernel == "input":
        return lambda: ops.convolve_input_gradient(dy, packed, where, tile=tile)
    return lambda: ops.convolve_weight_gradient(x, dy, where, into, tile)


def candidates(kernel: str, shape: tuple[int, ...], tries: int) -> list[Tile]:
    height, inner, outer, size, stride, padding, _ = shape
    where = Geometry.of(height, height, (size, size), stride, padding)
    channels = outer if kernel == "input" else inner
    columns = {"forward": outer, "input": inner, "weight": outer}[kernel]
    row = pow2(channels * where.taps[1], 16, 128)
    depths = {d for d in (16, 32, 64, 128) if channels % d == 0} | ({row} if channels < 32 and stride == 1 else set())
    depths |= {row} if channels < 64 and kernel != "input" else set()
    made = [
        Tile(*t)
        for t in itertools.product(
            (32, 64, 128, 256), {pow2(columns, 16, n) for n in (32, 64, 128)}, depths or {row}, (1, 2, 4, 8), (2, 3, 4)
        )
        if (4 if kernel == "weight" else 16) <= results(kernel, t) / (32 * t[3]) <= 128  # of a thread
        if min(columns, channels) < 64 or (results(kernel, t) >= 64 * 64 and t[2] >= 64)
    ]
    return random.Random(0).sample(made, min(tries, len(made)))


def results(kernel: str, tile: tuple[int, ...]) -> int:
    """Sums that one program keeps: of a weight gradient the rows are what is summed over."""
    return tile[1] * (tile[2] if kernel == "weight" else tile[0])


def compiled(work: tuple[str, tuple[int, ...], Tile, int]) -> bool:
    """Fill Triton's cache; False for a tile that does not fit."""
    try:
        job(*work)()
        torch.cuda.synchronize()
    except Exception:
        return False
    return True


def microseconds(*work: Any) -> float:
    """The fastest of three replays of twenty launches."""
    launch, graph = job(*work), torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()):
        launch()
        torch.cuda.synchronize()
        graph.capture_begin()
        for _ in range(LAUNCHES):
            launch()
        graph.capture_end()
        found = []
        for _ in range(4):  # the first warms up
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            found.append(1e3 * start.elapsed_time(end) / LAUNCHES)
    return min(found[1:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", nargs="+", choices=SHAPES, default=["resnet20", "resnet18"])
    parser.add_argument("--kernel", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--clients", nargs="+", type=int, default=[10])
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--compile", action="store_true", help="only fill Triton's cache")
    given = parser.parse_args()
    wanted = [
        (network, kernel, shape)
        for network in given.network
        for shape in SHAPES[network]
        for kernel in given.kernel
        if shape[1] > 3 or kernel != "input"
    ]
    works = [
        (kernel, shape, tile, given.clients[0])
        for _, kernel, shape in wanted
        for tile in candidates(kernel, shape, given.tries)
    ]
    with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        fine = pool.map(compiled, works, chunksize=4)
    print(f"{len(works)} tiles, {sum(fine)} of them fit")
    if given.compile:
        return
    print(
        "clients | kernel | shape | µs now | best tiles (rows, columns, depth, warps, stages; times as many programs)"
    )
    gained = {(network, clients): 0.0 for network in given.network for clients in given.clients}
    for clients, (network, kernel, shape) in itertools.product(given.clients, wanted):
        now = microseconds(kernel, shape, None, clients)
        tiles = [work[2] for work, fits in zip(works, fine, strict=True) if fits and work[:2] == (kernel, shape)]
        found = sorted(
            (microseconds(kernel, shape, tile, clients, many), tile, many)
            for tile in tiles
            for many in (MANY if kernel == "weight" else (1,))
        )
        best = "; ".join(f"{us:.1f} {tuple(tile)} ×{many}" for us, tile, many in found[:6])
        gained[network, clients] += shape[-1] * max([0.0, *(now - us for us, _, _ in found[:1])])
        print(f"{clients} | {kernel} | {shape} | {now:.1f} | {best}", flush=True)
    print({name: f"{us:.0f} µs to gain in a pass" for name, us in gained.items()})


if __name__ == "__main__":
    main()
