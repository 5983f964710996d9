"""Networks are left to vmap where a layer's place in them is unusual, and learn what they learn serially either way."""

from __future__ import annotations

from types import MethodType

import torch
from for_each import for_each
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedkeel as fk
from fedkeel.core.round import broadcast, init_server
from fedkeel.engines.engine import Training
from fedkeel.engines.serial import SerialEngine
from fedkeel.engines.stacked.engine import StackedEngine
from fedkeel.engines.stacked.gradients_stacked import KernelWorkspace
from fedkeel.methods import build
from fedkeel.models.resnet import Block
from fedkeel.problems.task import Task

ReLU = nn.ReLU()


def shouting(self: nn.Module, x: Tensor) -> Tensor:
    return 2 * x


def patched() -> nn.Module:
    network = nn.Sequential(nn.Flatten(), nn.Linear(32, 4), nn.ReLU(), nn.Linear(4, 3))
    network[2].forward = MethodType(shouting, network[2])
    return network


# network, shape of a sample, whether kernels take it
NETWORKS = {
    "one hidden layer": (lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), (5,), True),
    "two convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 2), nn.ReLU(), nn.MaxPool2d(1), nn.Flatten(), nn.Linear(4, 3)
        ),
        (2, 4, 4),
        True,
    ),
    "one ReLU used twice": (
        lambda: nn.Sequential(nn.Linear(5, 4), ReLU, nn.Linear(4, 4), ReLU, nn.Linear(4, 3)), (5,), True
    ),
    "a layer along the width of images": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Flatten(), nn.Linear(40, 3)), (2, 4, 4), False
    ),
    "a layer after pooling without flattening": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Linear(1, 2), nn.Flatten(),
                              nn.Linear(6, 3)), (2, 4, 4), False
    ),
    "a layer on words": (
        lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)), (3, 5), False
    ),
    "a norm of features": (
        lambda: nn.Sequential(nn.Linear(5, 4), nn.GroupNorm(2, 4), nn.ReLU(), nn.Linear(4, 3)), (5,), False
    ),
    "batch norms": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), Block(4, 8, 2, None),
                              nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)), (2, 4, 4), True
    ),
    "a batch norm without memory": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten(),
                              nn.Linear(16, 3)), (2, 4, 4), False
    ),
    "a forward of its own": (patched, (2, 4, 4), False),
}  # fmt: skip


@for_each("name", NETWORKS)
def test_stacked_as_serial(name: str) -> None:
    make, shape, kernels = NETWORKS[name]
    torch.manual_seed(0)
    model, draw = make(), torch.Generator().manual_seed(1)
    clients = [(torch.randn(n, *shape, generator=draw), torch.randint(0, 3, (n,), generator=draw)) for n in (4, 3, 6)]
    problem = fk.Problem(model=model, loss=cross_entropy, clients=clients)
    training, found = Training(seed=1, epochs=2, batch_size=3), []
    for make_engine in (SerialEngine, StackedEngine):
        task = Task(problem, dtype=torch.float64)
        method = build("fedsam", {"rho": 0.05})
        engine = make_engine(task, method, training)
        message = broadcast(method, init_server(method, task.initial, task.buffers))
        outcomes = engine.train(message, 0, 0.1, [0, 1, 2], [None] * 3)
        found.append([o.report["delta"].buffer for o in outcomes])
        found[-1] += [o.state["buffers"].buffer for o in outcomes if "buffers" in o.state]
    assert isinstance(engine.gradient, KernelWorkspace) == kernels
    for one, other in zip(*found, strict=True):
        assert float((one - other).norm() / one.norm()) < 1e-12
