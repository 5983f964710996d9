"""What a network changes in place where a stack shares memory and one client alone does not, or the other way round."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from for_each import for_each
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

import fedkeel as fk
from fedkeel.core.objective import Loss
from fedkeel.core.trees import Tree
from fedkeel.engines.stacked.gradients_stacked import StackedWorkspace
from fedkeel.engines.stacked.stacked_batches import StackedBatch
from fedkeel.errors import ModelError
from fedkeel.problems.gradients import Workspace
from fedkeel.problems.task import Batch, Task

REFUSED = "cannot be stacked: it changes a reshaped tensor in place"

Change = Callable[[Tensor, nn.Linear], Tensor]


class Rewriting(nn.Module):
    """Changes what a convolution gives, under another shape or behind one."""

    stochastic = True

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change, self.conv, self.mix, self.head = change, nn.Conv2d(3, 4, 3), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.change(self.conv(x), self.mix).mean((2, 3)))


def compare(change: Change) -> float:
    """How far the slopes of two stacked clients are from those of each alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Rewriting(change)
        clients = [(torch.randn(4, 3, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 0])) for _ in range(2)]
        task = Task(fk.Problem(model=model, loss=cross_entropy, clients=clients), dtype=torch.float64)
        params = task.initial.expand(2)
        params = Tree(params.buffer + 0.05 * torch.randn_like(params.buffer), params.layout)
    noise = torch.tensor([11, 12])
    batch = StackedBatch(tuple(map(torch.stack, zip(*clients, strict=True))), None, (4, 4), noise=noise)
    found = StackedWorkspace(task)(params, batch, Loss(), {}, None).tree.buffer
    far = []
    for c, client in enumerate(clients):
        own = Batch(task.prepare(client), None, None, noise[c])
        alone = Workspace(task)(Tree(params.buffer[c], params.layout), own, Loss(), {}, None).tree.buffer
        far.append(float((found[c] - alone).norm() / alone.norm()))
    return max(far)


def by_groups(x: Tensor, mix: nn.Linear) -> Tensor:
    """A convolution by groups lies with clients inside of samples."""
    return F.conv2d(x, mix.weight[:, :2, None, None], groups=2)


def change_flat(x: Tensor, flat: Tensor) -> Tensor:
    flat *= 3
    return x * flat.square().mean()


def zero_some(flat: Tensor) -> None:
    flat[:, :9] = 0


def behind(x: Tensor, _: nn.Linear) -> Tensor:
    flat = x.view(len(x), -1)
    x *= 2
    return x * flat.mean(1)[:, None, None, None]


def behind_a_norm(x: Tensor, _: nn.Linear) -> Tensor:
    """The norm passes on what it was given: a copy, where that does not lie in one piece."""
    half, flat = x[:, :2], x.flatten(2)
    y = F.group_norm(half, 1).sin()
    flat *= 3
    return x * (half + y).mean()


COPIED: dict[str, Change] = {
    "some of a view": lambda x, _: (zero_some(x.view(len(x), -1)), x)[1],
    "flat": lambda x, _: (x.flatten(1).relu_(), x)[1],
    "twice": lambda x, _: (F.relu(x.reshape(len(x), -1)[:, :9], inplace=True), zero_some(x.reshape(len(x), -1)), x)[2],
    "behind": behind,
    "behind a norm": behind_a_norm,
    "behind an axis": lambda x, _: (flat := x[:, None].flatten(2), x.mul_(2), x * flat.mean())[2],
    "behind an axis in place": lambda x, _: (x.unsqueeze_(1), f := x.flatten(2), x.mul_(2), x[:, 0] * f.mean())[3],
    "in one piece already": lambda x, _: change_flat(x, x.contiguous()),
    "two channels": lambda x, _: change_flat(x, x[:, :2].flatten(1)),
    "groups": lambda x, mix: (y := by_groups(x, mix), change_flat(y, y.contiguous()))[1],
    "dropout of a view": lambda x, _: (F.dropout(x.view(len(x), -1), inplace=True), x)[1],
}
"""What operators give lies with channels last, so that a stack of it is copied where one client has a view."""


def source_first(x: Tensor, _: nn.Linear) -> Tensor:
    rows = x.permute(0, 2, 3, 1).contiguous()
    x *= 3
    return x * rows.mean()


def a_part_of_it(x: Tensor, _: nn.Linear) -> Tensor:
    rows = x.permute(0, 2, 3, 1).contiguous()
    half = rows[..., :2]
    half *= 3
    return x * rows.mean()


def two_of_them(x: Tensor, _: nn.Linear) -> Tensor:
    turned = x.permute(0, 2, 3, 1)
    one, other = turned.contiguous(), turned.contiguous()
    one *= 3
    return other.permute(0, 3, 1, 2) * one.mean()


def behind_a_tanh(x: Tensor, _: nn.Linear) -> Tensor:
    turned = F.dropout(x.permute(0, 2, 3, 1).tanh() * 2, 0.2)
    return change_flat(x * turned.mean(), turned.contiguous()) * turned.mean()


def one_for_all(x: Tensor, _: nn.Linear) -> Tensor:
    kept = torch.ones(4)
    seen = kept.view(2, 2)
    kept.bernoulli_(0.5)
    return x * seen.view(4)[:, None, None]


SHARED: dict[str, Change] = {
    "rows": lambda x, _: change_flat(x, x.permute(0, 2, 3, 1).reshape(-1, 4)),
    "tokens": lambda x, _: change_flat(x, x.flatten(2).transpose(1, 2).contiguous()),
    "a norm": lambda x, _: (x := F.group_norm(x, 2), change_flat(x, x.permute(0, 2, 3, 1).flatten(1)))[1],
    "the source": source_first,
    "a part": a_part_of_it,
    "two": two_of_them,
    "behind a tanh": behind_a_tanh,
    "turned in place": lambda x, _: (x.transpose_(0, 1), change_flat(x, x.flatten(1)).transpose(0, 1))[1],
    "dropout": lambda x, _: (y := x.movedim(1, 3).contiguous(), F.dropout(y, inplace=True), x * y.mean())[2],
    "one for all": one_for_all,
}
"""Here one client has a copy, and a stack has none."""


@for_each("name", [*COPIED, *SHARED])
def test_memory_that_is_shared_otherwise_is_not_taken_for_it(name: str) -> None:
    with pytest.raises(ModelError, match=REFUSED):
        compare((COPIED | SHARED)[name])


def test_steps_in_memory_are_those_of_one_client() -> None:
    with pytest.raises(ModelError, match="it takes steps in memory"):
        compare(lambda x, _: x * x.as_strided((4, 8), (144, 4)).mean())
    assert compare(lambda x, _: x * x.contiguous().as_strided((4, 8), (144, 4)).mean()) < 1e-12


def test_a_write_over_what_only_a_stack_keeps_for_its_slopes_is_refused() -> None:
    with pytest.raises(ModelError, match="of which a gradient needs the old values"):
        compare(lambda x, _: (y := x.index_select(1, torch.tensor([0, 1])), x.mul_(2), x * y.mean())[2])


def add_places(x: Tensor, mix: nn.Linear) -> Tensor:
    """A ReLU keeps what it gave for its slopes: one client adds to a copy."""
    tokens = F.relu(x).flatten(2).transpose(1, 2).contiguous()
    tokens += mix.bias
    with torch.no_grad():
        tokens *= 3
    return tokens.transpose(1, 2).reshape(x.shape)


def change_parts(x: Tensor, _: nn.Linear) -> Tensor:
    rows = x.permute(0, 2, 3, 1).reshape(len(x), -1, 4)
    one, other = rows[..., :2], rows[..., 2:]
    one *= 3
    split = rows.reshape(len(x), -1, 2, 2)
    split += 1
    return torch.cat([one, other], -1).transpose(1, 2).reshape(x.shape)


def last_and_back(x: Tensor, mix: nn.Linear) -> Tensor:
    """What a product gives lies as it does for one client."""
    y = F.gelu(mix(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
    y = change_flat(y, y.flatten(1))
    return change_flat(y, y.permute(0, 2, 3, 1).contiguous())


FINE: dict[str, Change] = {
    "not read": lambda x, _: x.flatten(1).relu_().view(x.shape),
    "copied for one, too": lambda x, _: (zero_some(x.transpose(2, 3).reshape(len(x), -1)), x)[1],
    "in turn": lambda x, _: x.mul_(2).view(len(x), -1).add_(1).view(len(x), 4, 6, 6),
    "pixels": lambda x, _: change_flat(x, x.flatten(2)),
    "pixels of groups": lambda x, mix: (y := by_groups(x, mix), change_flat(y, y.flatten(2)))[1],
    "groups not read": lambda x, mix: by_groups(x, mix).flatten(1).relu_().view(x.shape),
    "not copied": lambda x, _: change_flat(x, x[:, :, :2].flatten(1)),
    "places": add_places,
    "parts": change_parts,
    "last and back": last_and_back,
    "no dropout": lambda x, _: (y := x.movedim(1, 3).contiguous(), F.dropout(y, 0.0, inplace=True), x * y.mean())[2],
}
DROPPED: dict[str, Change] = {
    "a part": lambda x, _: (F.dropout(x[:, :2], inplace=True), x)[1],
    "a module": lambda x, _: (nn.Dropout(0.3, inplace=True)(x[:, 1]), x)[1],
    "channels": lambda x, _: (F.dropout2d(x[:, :3], inplace=True), x)[1],
    "of a norm": lambda x, _: (x := F.group_norm(x, 2), F.dropout(x[:, :2], inplace=True), x)[2],
    "the whole": lambda x, _: (y := x[:, :2], F.dropout(x, inplace=True), x * y.mean())[2],
    "numbers": lambda x, _: (y := x.new_ones(len(x), 4), y[:, :2].bernoulli_(0.5), x * y[:, :, None, None])[2],
}


@for_each("name", [*FINE, *DROPPED])
def test_what_is_changed_in_place_is_changed_as_for_one_client(name: str) -> None:
    assert compare((FINE | DROPPED)[name]) < 1e-12


class Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.copies = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.copies += func in (torch.ops.aten.clone.default, torch.ops.aten.copy_.default)
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
def test_nothing_is_copied_where_nothing_is_changed() -> None:
    def block(x: Tensor, mix: nn.Linear) -> Tensor:
        y = mix(F.layer_norm(x.permute(0, 2, 3, 1), (4,)))
        return x + y.permute(0, 3, 1, 2)

    def in_one_piece(x: Tensor, mix: nn.Linear) -> Tensor:
        y = mix(F.layer_norm(x.permute(0, 2, 3, 1).contiguous(), (4,)).reshape(len(x), -1, 4))
        return x + y.reshape(len(x), 6, 6, 4).permute(0, 3, 1, 2)

    found = []
    for change in (block, in_one_piece):
        client = (torch.randn(4, 3, 8, 8), torch.zeros(4).long())
        task = Task(fk.Problem(model=Rewriting(change), loss=cross_entropy, clients=[client]))
        batch = StackedBatch((torch.randn(2, 4, 3, 8, 8), torch.zeros(2, 4).long()), None, (4, 4))
        workspace = StackedWorkspace(task)
        with Count() as count:
            workspace(task.initial.expand(2), batch._replace(noise=torch.tensor([1, 2])), Loss(), {}, None)
        found.append(count.copies)
    assert found[0] == found[1] > 0
