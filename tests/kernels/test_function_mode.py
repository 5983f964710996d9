"""Which functions of a network are taken over, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from for_each import for_each
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import fedkeel as fk
from fedkeel.core.objective import Loss
from fedkeel.engines.stacked.engine import describe_network
from fedkeel.engines.stacked.gradients_stacked import StackedWorkspace
from fedkeel.engines.stacked.stacked_batches import StackedBatch
from fedkeel.errors import ModelError
from fedkeel.kernels import row_norms
from fedkeel.kernels.function_mode import OPERATORS
from fedkeel.kernels.operators import StackedPass
from fedkeel.kernels.unbind import Unbind
from fedkeel.problems.task import Task
from support.zoo import NETWORKS, draw_inputs


def task_of(model: nn.Module, shapes: tuple[tuple[int, ...], ...]) -> Task:
    draw = torch.Generator().manual_seed(0)
    inputs = draw_inputs(shapes, 4, draw)
    return Task(fk.Problem(model=model, loss=cross_entropy, clients=[(*inputs, torch.tensor([0, 1, 2, 0]))]))


def describe(name: str) -> dict[str, str]:
    make, shapes = NETWORKS[name]
    return describe_network(task_of(make(), shapes))


def test_norms_take_shortcuts_and_relus_with_them() -> None:
    """A residual network as torchvision writes it calls nothing between its convolutions and norms."""
    said = describe("ResNet as torchvision writes it")
    assert said == {"stacked": "conv2d ×6, batch_norm ×6, relu ×5, max_pool2d, add ×2, adaptive_avg_pool2d, linear"}


def test_what_is_not_taken_over_is_said() -> None:
    assert "conv_transpose2d (" in describe("U-Net")["vmapped one by one"]
    assert "conv2d" in describe("ConvNeXt")["vmapped one by one"]  # one in groups
    assert "bilinear" in describe("two inputs")["client by client"]
    assert describe("GRU")["stacked"] == "embedding, linear ×2, gru"
    for name in ("a vision transformer", "a transformer encoder", "LSTM", "RMS norms", "DenseNet"):
        assert list(describe(name)) == ["stacked"]


class Floor(torch.autograd.Function):
    """A function of a user's own, as it was written before vmap."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.floor()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy


class Negate(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.neg_()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.mark_dirty(*inputs)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return -dy


def keep_gradient(x: Tensor) -> Tensor:
    if torch.is_grad_enabled():
        x = x + torch.ones(4, requires_grad=True)
        x.retain_grad()
    return x


def test_a_network_that_cannot_be_stacked_is_refused_with_the_reason_and_its_place() -> None:
    class Curious(nn.Linear):
        def __init__(self, look: Callable[[Tensor], Tensor]) -> None:
            super().__init__(4, 3)
            self.look = look

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.look(x))

    odd: list[tuple[str, Callable[[Tensor], Tensor]]] = [
        ("a turn that it takes depends on data", lambda x: x if x.sum() > 0 else -x),
        ("reads a number out of a tensor", lambda x: x / x.max().item()),
        ("takes numbers out of tensors", lambda x: x * float(x.numpy().mean())),
        ("a shape depends on data", lambda x: x * x[x > 0].mean()),
        ("its own autograd.Function", Floor.apply),
        ("draws random numbers", lambda x: x + torch.randn(4)),
        ("writes into a tensor that it has made", lambda x: torch.zeros(len(x), 4).add_(x)),
        ("uses the data of a tensor", lambda x: x.data),
        ("writes into a tensor that it has made", lambda x: torch.zeros(len(x), 4).scatter_add_(1, (x > 0).long(), x)),
        ("asks for an order in memory", lambda x: x[..., None, None].to(memory_format=torch.channels_last).flatten(1)),
        ("asks for an order in memory", lambda x: x.contiguous(memory_format=torch.preserve_format)),
        ("keeps the gradient of a tensor", keep_gradient),
        ("its own autograd.Function writes into what it is given", lambda x: Negate.apply(x * 1)),
        ("vmap does not know a function that it calls, div", lambda x: torch.div(x, 2, out=torch.empty_like(x))),
    ]
    for reason, look in odd:
        with pytest.raises(ModelError, match=f"cannot be stacked: .*{reason}.*test_function_mode.py, line") as caught:
            describe_network(task_of(Curious(look), ((4,),)))
        assert "serial" in (caught.value.hint or "")


def test_a_network_that_computes_parts_again_for_the_gradient_is_refused_with_the_reason() -> None:
    class Checkpointed(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(super().forward, x, use_reentrant=False)

    with pytest.raises(ModelError, match="cannot be stacked: it computes something again"):
        describe_network(task_of(Checkpointed(4, 3), ((4,),)))


def test_an_embedding_that_counts_how_often_rows_are_asked_for_is_refused() -> None:
    """PyTorch's vmap gives rows that pad a slope, other than those of the first client."""
    table = nn.Embedding(7, 3, padding_idx=0, scale_grad_by_freq=True)
    inputs = torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 2, 0])
    task = Task(fk.Problem(model=table, loss=cross_entropy, clients=[inputs]))
    with pytest.raises(ModelError, match="cannot be stacked: an embedding divides gradients by how often"):
        describe_network(task)


def test_short_batches_that_a_network_joins_are_refused() -> None:
    """Which of the joined samples only fill a batch up cannot be told."""

    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.layer = nn.BatchNorm1d(4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            one, other = self.norm(torch.cat([x, -x])).chunk(2)
            return self.layer(one * other)

    task = task_of(Joined(), ((4,),))
    batch = StackedBatch((torch.randn(2, 4, 4), torch.zeros(2, 4, dtype=torch.int64)), None, (4, 4))
    workspace, moments = StackedWorkspace(task), task.buffers
    assert moments is not None
    workspace(task.initial.expand(2), batch, Loss(), {}, moments.expand(2))
    short = batch._replace(mask=torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0]]), sizes=(4, 2))
    with pytest.raises(ModelError, match="another number of samples"):
        workspace(task.initial.expand(2), short, Loss(), {}, moments.expand(2))


def test_a_network_that_remembers_its_samples_sees_no_filled_up_batch() -> None:
    class Memory(nn.Module):
        def __init__(self, learns: bool) -> None:
            super().__init__()
            self.learns, self.layer = learns, nn.Linear(4, 3)
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            if self.learns:
                self.mean.lerp_(x.detach().mean(0), 0.1)
            return self.layer(x - self.mean)

    assert StackedWorkspace(task_of(Memory(learns=False), ((4,),))).separable
    assert not StackedWorkspace(task_of(Memory(learns=True), ((4,),))).separable


@for_each("padding", [None, 0, 6, -1, -7])
def test_a_row_that_pads_has_no_slope_however_it_is_counted(padding: int | None) -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Parameter(torch.ones(7, 3))

        def forward(self, tokens: Tensor) -> Tensor:
            return F.embedding(tokens, self.words, padding).sum(1)

    task, tokens = task_of(Table(), ((5,),)), torch.tensor([[0, 1, 2, 3, 6], [6, 5, 4, 1, 0]])
    batch = StackedBatch((tokens.expand(2, 2, 5), torch.tensor([[0, 1], [1, 2]])), None, (2, 2))
    slopes = StackedWorkspace(task)(task.initial.expand(2), batch, Loss(), {}, None).tree["words"]
    still = set(range(7)) - {int(row) for row in slopes.abs().sum((0, 2)).nonzero()}
    assert still == (set() if padding is None else {padding % 7})


def test_frozen_weights_are_one_copy_and_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(4, 5, bias=False), nn.Tanh(), nn.Linear(5, 3, bias=False))
    model[0].weight.requires_grad_(False)
    task = task_of(model, ((4,),))
    batch = StackedBatch((torch.randn(2, 4, 4), torch.zeros(2, 4, dtype=torch.int64)), None, (4, 4))
    workspace, products, linear = StackedWorkspace(task), [], F.linear

    def note(x: Tensor, weight: Tensor, *bias: Tensor | None) -> Tensor:
        products.append((tuple(x.shape), tuple(weight.shape)))
        return linear(x, weight, *bias)

    monkeypatch.setattr(F, "linear", note)
    found = workspace(task.initial.expand(2), batch, Loss(), {}, None)
    assert found.tree.layout.size == 15
    assert ((2, 4, 4), (5, 4)) in products  # two clients of four samples, and the weight as it is


def test_gradients_are_written_where_they_belong() -> None:
    """A weight that is used once needs no copy; one that is used twice, or through a view, gets the sum."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    workspace = StackedWorkspace(task_of(model, ((4,),)))
    batch = StackedBatch((torch.randn(2, 4, 4), torch.zeros(2, 4, dtype=torch.int64)), None, (4, 4))
    found = workspace(workspace.task.initial.expand(2), batch, Loss(), {}, None)
    assert found.tree.buffer.isfinite().all()
    assert found.tree["0.weight"].untyped_storage().data_ptr() == found.tree.buffer.untyped_storage().data_ptr()


def test_operators_choose_the_precision_where_autocast_serves_a_frozen_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU autocast would have norms in float32, and with them all that is added to what they return."""
    seen = []

    def note(at: StackedPass, *args: Any, **options: Any) -> Tensor | None:
        seen.append((torch.is_autocast_enabled("cpu"), args[0].value.dtype))
        return row_norms.layer_norm(at, *args, **options)

    monkeypatch.setitem(OPERATORS, F.layer_norm, note)
    base = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 3))
    problem = task_of(fk.lora(base, 2, on=("0", "2")), ((4,),)).problem
    describe_network(Task(problem, dtype=torch.bfloat16))
    assert set(seen) == {(False, torch.bfloat16)}


@for_each("order", [(0, 1, 2, 3, 4), (0, 3, 1, 4, 2), (0, 4, 3, 2, 1), (3, 0, 1, 2, 4)])
def test_slopes_of_unbound_parts_lie_as_the_whole_does(order: tuple[int, ...]) -> None:
    base = torch.randn(2, 3, 4, 5, 6, dtype=torch.float64, requires_grad=True)
    x = base.permute(order)
    for axis in range(1, 5):
        parts = Unbind.apply(x, axis)
        assert all(map(torch.equal, parts, x.unbind(axis)))
        factors = [torch.randn(part.shape, dtype=torch.float64) for part in parts]
        (found,), (wanted,) = (torch.autograd.grad(one, x, factors) for one in (parts, x.unbind(axis)))
        assert torch.equal(found, wanted)
        assert found.stride() == x.stride()
    (alone,) = torch.autograd.grad(Unbind.apply(x, 1)[0].sum(), x)  # slopes of the others are 0
    assert torch.equal(alone, torch.zeros_like(x).index_fill_(1, torch.tensor([0]), 1.0))
