"""A zoo of networks as users write them: gradients of stacked clients are those of each client alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedkeel as fk
from fedkeel.core.objective import Loss
from fedkeel.core.objectives import Distilled
from fedkeel.core.round import broadcast, init_server
from fedkeel.core.trees import Tree
from fedkeel.engines.engine import Training
from fedkeel.engines.serial import SerialEngine
from fedkeel.engines.stacked.engine import StackedEngine
from fedkeel.engines.stacked.gradients_stacked import StackedWorkspace
from fedkeel.engines.stacked.stacked_batches import StackedBatch
from fedkeel.kernels.keyed_dropout import KeyedDropout
from fedkeel.methods import build
from fedkeel.problems.gradients import Workspace
from fedkeel.problems.task import Batch, Task
from support.zoo import CLASSES, NETWORKS, draw_inputs

CLIENTS, SAMPLES = 3, 4
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=NO_GPU)]


def judge(output: Tensor | tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    if isinstance(output, tuple):
        return cross_entropy(output[0], target) + output[1].square().mean()
    return cross_entropy(output, target)


def torchvision(name: str, **options: object) -> nn.Module:
    models = pytest.importorskip("torchvision.models")
    return getattr(models, name)(num_classes=CLASSES, **options)


def timm(name: str, **options: object) -> nn.Module:
    return pytest.importorskip("timm").create_model(name, num_classes=CLASSES, **options)


PUBLIC = {
    "torchvision resnet18": (lambda: torchvision("resnet18"), ((3, 40, 40),)),
    "torchvision densenet121": (lambda: torchvision("densenet121"), ((3, 33, 33),)),
    "torchvision mobilenet_v2": (lambda: torchvision("mobilenet_v2"), ((3, 40, 40),)),
    "torchvision efficientnet_b0": (lambda: torchvision("efficientnet_b0"), ((3, 40, 40),)),
    "torchvision convnext_tiny": (lambda: torchvision("convnext_tiny"), ((3, 32, 32),)),
    "torchvision vit_b_32": (lambda: torchvision("vit_b_32", image_size=32, dropout=0.1), ((3, 32, 32),)),
    "timm vit_tiny_patch16_224": (lambda: timm("vit_tiny_patch16_224", img_size=32, drop_path_rate=0.1),
                                  ((3, 32, 32),)),
    "timm mixer_s32_224": (lambda: timm("mixer_s32_224", img_size=64), ((3, 64, 64),)),
    "timm resnet10t": (lambda: timm("resnet10t"), ((3, 40, 40),)),
}  # fmt: skip
"""Networks of other people, where they are installed."""


def make_task(name: str, device: str, dtype: torch.dtype) -> tuple[Task, list[tuple[Tensor, ...]]]:
    make, shapes = (NETWORKS | PUBLIC)[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make()
    draw = torch.Generator().manual_seed(1)
    clients = [
        (*draw_inputs(shapes, SAMPLES, draw), torch.randint(0, CLASSES, (SAMPLES,), generator=draw))
        for _ in range(CLIENTS)
    ]
    task = Task(fk.Problem(model=model, loss=judge, clients=clients), device=device, dtype=dtype)
    return task, [task.prepare(client) for client in clients]


def stack_weights(tree: Tree, spread: float) -> Tree:
    """Give every client other weights."""
    draw = torch.Generator().manual_seed(2)
    noise = torch.randn(CLIENTS, tree.buffer.numel(), generator=draw, dtype=torch.float64).to(tree.buffer)
    return Tree(tree.buffer + spread * noise, tree.layout)


def compare(name: str, device: str, sizes: tuple[int, ...] = (SAMPLES,) * CLIENTS) -> float:
    """How far stacked clients are from each alone; short batches are filled up and masked."""
    task, samples = make_task(name, device, torch.float64)
    params = stack_weights(task.initial, 0.05)
    buffers = None if task.buffers is None else stack_weights(task.buffers, 0.0)
    mask = torch.tensor([[i < size for i in range(SAMPLES)] for size in sizes], dtype=torch.float64, device=device)
    batch = StackedBatch(
        tuple(map(torch.stack, zip(*samples, strict=True))), None if mask.all() else mask, sizes,
        noise=torch.arange(CLIENTS, device=device) + 11 if task.stochastic else None,
    )  # fmt: skip
    found = StackedWorkspace(task)(params, batch, Loss(), {}, buffers)
    alone, far = Workspace(task), 0.0
    for c in range(CLIENTS):
        noise = None if batch.noise is None else batch.noise[c]
        own = Batch(tuple(part[: sizes[c]] for part in samples[c]), None, None, noise)
        kept = None if buffers is None else Tree(buffers.buffer[c], buffers.layout)
        one = alone(Tree(params.buffer[c], params.layout), own, Loss(), {}, kept)
        pairs = [(found.tree.buffer[c], one.tree.buffer), (found.loss[c], one.loss)]
        if one.buffers is not None:
            pairs.append((found.buffers.buffer[c], one.buffers.buffer))
        far = max(far, *(float((a - b).norm() / b.norm()) for a, b in pairs))
        assert one.tree.buffer.norm() > 1e-3
    return far


@pytest.mark.parametrize("device", DEVICES)
def test_stacked_gradients_are_those_of_each_client_alone(device: str) -> None:
    wrong = {name: far for name in NETWORKS if not (far := compare(name, device)) < 1e-10}
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PUBLIC)
def test_networks_of_other_people(name: str, device: str) -> None:
    assert compare(name, device) < 1e-10


@pytest.mark.parametrize("device", DEVICES)
def test_short_batches_are_filled_up(device: str) -> None:
    """Norms, dropout and losses leave out what only fills a batch up."""
    names = [
        "ResNet as torchvision writes it",
        "batch norms of vectors",
        "dropout",
        "a transformer encoder",
        "GRU",
        "two outputs",
        "frozen norms, norms without biases",
        "cells",
        "a batch norm read in another order",
        "samples that meet",  # batches of one size at a time
        "dropout, tokens first",
    ]
    wrong = {name: far for name in names if not (far := compare(name, device, (4, 2, 3))) < 1e-10}
    assert not wrong


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["a vision transformer", "a transformer encoder", "a frozen base with an adapter"])
def test_gradients_in_bfloat16_are_those_in_float64_up_to_rounding(name: str, device: str) -> None:
    """The second pass knows which weights are multiplied, and has them all shortened at once."""
    found = []
    for dtype in (torch.float64, torch.bfloat16):
        task, samples = make_task(name, device, dtype)
        params, gradient = stack_weights(task.initial, 0.05), StackedWorkspace(task)
        batch = StackedBatch(tuple(map(torch.stack, zip(*samples, strict=True))), None, (SAMPLES,) * CLIENTS)
        found += [gradient(params, batch, Loss(), {}, None).tree.buffer.double() for _ in range(2)]
    assert max(float((one - found[0]).norm() / found[0].norm()) for one in found) < 0.03


def test_attention_leaves_out_what_either_of_its_masks_does() -> None:
    layer, x = nn.MultiheadAttention(8, 2).double(), torch.rand(5, 3, 8, dtype=torch.float64)
    later, padding = torch.ones(5, 5).triu(1).bool(), torch.tensor([[0] * 5, [0, 0, 1, 0, 0], [0, 0, 0, 1, 1]]).bool()
    expected = layer(x, x, x, attn_mask=later, key_padding_mask=padding)
    with KeyedDropout(torch.tensor(0)):
        found = layer(x, x, x, attn_mask=later, key_padding_mask=padding)
    torch.testing.assert_close(found, expected)


def test_recurrent_layers_leave_their_weights_where_they_lie() -> None:
    """On a GPU PyTorch would look for the memory of all clients' weights, to move them into a buffer of cuDNN's."""
    module = make_task("GRU", "cpu", torch.float64)[0].module
    assert module is not None
    cell = module.get_submodule("cell")
    assert isinstance(cell, nn.GRU)
    del cell._flat_weights  # PyTorch's own would look into them
    cell.flatten_parameters()


@NO_GPU
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # importing torch's own compiler gives some
@pytest.mark.parametrize("name", NETWORKS)
def test_steps_of_any_network_are_captured_on_a_gpu(name: str) -> None:
    """In float32, by the kernels of the GPU; clients have batches of unequal sizes."""
    make, shapes = NETWORKS[name]
    torch.manual_seed(0)
    model, draw = make(), torch.Generator().manual_seed(1)
    clients = [(*draw_inputs(shapes, n, draw), torch.randint(0, CLASSES, (n,), generator=draw)) for n in (8, 6, 7)]
    found, method = [], build("fedavg")
    for engine_type, dtype in ((SerialEngine, torch.float64), (StackedEngine, torch.float32)):
        task = Task(fk.Problem(model=model, loss=judge, clients=clients), device="cuda", dtype=dtype)
        engine = engine_type(task, method, Training(seed=1, epochs=2, batch_size=4))
        message = broadcast(method, init_server(method, task.initial, task.buffers))
        for t in range(2):  # the second round replays what the first has captured
            outcomes = engine.train(message, t, 0.01, [0, 1, 2], [None] * 3)
        found.append(torch.stack([outcome.report["delta"].buffer.double() for outcome in outcomes]))
    assert float((found[1] - found[0]).norm() / found[0].norm()) < 2e-3
    assert engine.graphs.possible
    assert engine.graphs.graphs or not engine.gradient.separable


@pytest.mark.parametrize("shared", [True, False])
def test_a_model_of_the_server_judges_alike(shared: bool) -> None:
    """A teacher that all clients share is not stacked; one for each run of a joint stack is."""
    for name in ("LSTM", "a frozen base with an adapter", "ResNet as torchvision writes it"):
        task, samples = make_task(name, "cpu", torch.float64)
        params, sent = stack_weights(task.initial, 0.05), stack_weights(task.initial, 0.1)
        sent = Tree(sent.buffer[0], sent.layout) if shared else sent
        buffers = None if task.buffers is None else stack_weights(task.buffers, 0.0)
        batch = StackedBatch(tuple(map(torch.stack, zip(*samples, strict=True))), None, (SAMPLES,) * CLIENTS)
        found = StackedWorkspace(task)(params, batch, Distilled(), {"params": sent}, buffers)
        for c in range(CLIENTS):
            message = {"params": sent if shared else Tree(sent.buffer[c], sent.layout)}
            kept = None if buffers is None else Tree(buffers.buffer[c], buffers.layout)
            one = Workspace(task)(Tree(params.buffer[c], params.layout), Batch(samples[c]), Distilled(), message, kept)
            assert float((found.tree.buffer[c] - one.tree.buffer).norm() / one.tree.buffer.norm()) < 1e-10, name


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # PyTorch says so of its own kernels
@pytest.mark.parametrize("part", [slice(0, None, 10), pytest.param(slice(None), marks=pytest.mark.slow)], ids=str)
def test_low_precision_reaches_every_function(part: slice) -> None:
    """In bfloat16 no function meets two types, and gradients are near those of float32."""
    for name in list(NETWORKS)[part]:
        found = []
        for dtype in (torch.float32, torch.bfloat16):
            task, samples = make_task(name, "cpu", dtype)
            params = stack_weights(task.initial, 0.05)
            buffers = None if task.buffers is None else stack_weights(task.buffers, 0.0)
            noise = torch.arange(CLIENTS) + 11 if task.stochastic else None
            together = tuple(map(torch.stack, zip(*samples, strict=True)))
            batch = StackedBatch(together, None, (SAMPLES,) * CLIENTS, None, noise)
            workspace = StackedWorkspace(task)
            once, again = (workspace(params, batch, Loss(), {}, buffers).tree.buffer for _ in range(2))
            torch.testing.assert_close(once, again)  # the second pass knows which weights to shorten at once
            found.append(again)
        assert found[1].dtype == torch.float32
        assert float((found[1] - found[0]).norm() / found[0].norm()) < 0.1, name
