"""Work beside the main branch of a captured graph."""

from __future__ import annotations

import importlib
from functools import partial

import pytest
import torch
from torch import Tensor

from fedkeel.core.trees import Tree
from fedkeel.kernels import plain
from fedkeel.kernels.geometry import Geometry
from fedkeel.kernels.packed_ahead import PackedAhead
from fedkeel.kernels.side_stream import BEHIND, SideStream

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_without_a_gpu_work_is_done_at_once() -> None:
    side, done = SideStream(torch.device("cpu")), list[int]()
    side.run(lambda: done.append(1), torch.ones(2))
    assert done == [1]
    side.join()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_a_weight_packed_ahead_is_the_weight_packed(device: str) -> None:
    where = Geometry.of(4, 4, (3, 3), 1, 1)
    weights = Tree.of({"weight": torch.randn(8, 4, 3, 3, device=device)}).expand(2)
    ahead, side = PackedAhead(), SideStream(weights.buffer.device)
    ahead.start(side, weights, torch.float32)
    assert ahead.take("weight", where) is None  # each layer is asked for the first time
    ahead.start(side, weights, torch.float32)
    assert ahead.take("weight", where) is None  # nothing is captured
    if device == "cpu":
        return
    triton_weights = importlib.import_module("fedkeel.kernels.triton_weights")
    triton_weights.pack(weights["weight"], where, torch.float32)  # compiled outside of the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ahead.start(side, weights, torch.float32)
        found = ahead.take("weight", where)
        side.join()
    graph.replay()
    assert found is not None
    assert torch.equal(found, plain.pack(weights["weight"], where, torch.float32))


def chain(x: Tensor, steps: int, side: SideStream) -> Tensor:
    """Sums of x, x + 1, x + 2 … taken beside; each x is let go while its sum is still to be taken."""
    sums = torch.empty(steps, device=x.device)

    def add_up(given: Tensor, into: Tensor) -> None:
        into.copy_((given @ given).diagonal().sum())

    for step in range(steps):
        x = x + 1
        side.run(partial(add_up, x, sums[step]), x)
    side.join()
    return sums


@GPU
def test_a_captured_branch_reads_what_it_was_given() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    start = torch.linspace(-1, 1, 1024, device=device).repeat(1024, 1)
    side = SideStream(device)
    wanted = chain(start, 3 * BEHIND, side)  # at once
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        found = chain(start, 3 * BEHIND, side)
    for _ in range(3):
        found.zero_()
        graph.replay()
        torch.testing.assert_close(found, wanted)
