"""Networks that change themselves when they are called: refused, or trained as plain PyTorch would train them."""

import pytest
import torch
from for_each import for_each
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fedkeel as fk
from fedkeel.errors import ExperimentError, ModelError
from fedkeel.problems import task as tasks


def train(make, engine="serial", rounds=2):
    draw = torch.Generator().manual_seed(0)
    clients = [(torch.randn(n, 6, generator=draw), torch.randint(3, (n,), generator=draw)) for n in (13, 8, 22)]
    torch.manual_seed(0)
    problem = fk.Problem(model=make(), loss=F.cross_entropy, clients=clients, test=clients[0])
    settings = {"participation": 1.0, "epochs": 1, "batch_size": 5, "lr": 0.1}
    return fk.run(fk.Experiment(problem=problem, rounds=rounds, **settings), engine=engine, dtype=torch.float64)


class Net(nn.Module):
    """Two layers, and something that happens to what lies between them."""

    def __init__(self, between):
        super().__init__()
        self.first, self.last, self.between = nn.Linear(6, 8), nn.Linear(8, 3), between
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("table", torch.zeros(2), persistent=False)
        self.register_buffer("later", None)
        self.key = nn.Linear(6, 8).requires_grad_(False)
        self.key.load_state_dict(self.first.state_dict())
        self.tau, self.made, self.state = 1.0, None, None

    def forward(self, x):
        return self.last(self.between(self, x, self.first(x)))


def replace_a_buffer(net, x, z):
    net.mean = 0.9 * net.mean + 0.1 * z.detach().mean(0)
    return z - net.mean


def grow_a_buffer(net, x, z):
    net.table = torch.arange(8).to(z)
    return z + net.table


def fill_a_buffer(net, x, z):
    net.later = torch.ones(8).to(z)
    return z * net.later


def make_a_layer(net, x, z):
    net.made = nn.Linear(8, 8).to(z) if net.made is None else net.made
    return net.made(z)


def clamp_a_weight(net, x, z):
    net.last.weight.data.clamp_(min=0)
    return z


def follow_a_weight(net, x, z):
    net.key.weight.data.mul_(0.9).add_(0.1 * net.first.weight.data)
    return z + net.key(x)


def cool_down(net, x, z):
    net.tau *= 0.9995
    return z * net.tau


def remember(net, x, z):
    net.state = z.detach().mean(0) if net.state is None else 0.1 * net.state + 0.9 * z.detach().mean(0)
    return z + net.state


REFUSED = {
    replace_a_buffer: "in the place of its buffer mean",
    grow_a_buffer: "makes its part table anew",
    fill_a_buffer: "makes its part later anew",
    make_a_layer: "makes its part made",
    clamp_a_weight: "writes into its weight last.weight",
    follow_a_weight: "writes into its weight key.weight",
    cool_down: "another output for the same sample",
    remember: "another output for the same sample",
}


@for_each("change", REFUSED)
def test_what_training_would_lose_is_refused(change):
    net = Net(change)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(ModelError, match=REFUSED[change]):
        train(lambda: net)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def update_in_place(net, x, z):
    if net.training:
        net.mean.mul_(0.9).add_(0.1 * z.detach().mean(0))
    return z - net.mean


def needs_two_samples(net, x, z):
    assert not net.training or len(z) > 1
    return z


def log_something(net, x, z):
    net.tau, net.state = net.tau + 1, z
    return z


@for_each("change", [update_in_place, needs_two_samples, log_something])
def test_what_changes_nothing_or_a_buffer_is_taken(change):
    serial, stacked = (train(lambda: Net(change), engine) for engine in ("serial", "stacked"))
    torch.testing.assert_close(serial.params, stacked.params)


class Deep(nn.Module):
    """Dropout and a norm in a block that may be computed again for the gradient."""

    def __init__(self, again):
        super().__init__()
        self.first, self.last, self.again = nn.Linear(6, 8), nn.Linear(8, 3), again
        self.block = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5))

    def forward(self, x):
        z = self.first(x)
        return self.last(
            checkpoint(self.block, z, use_reentrant=False) if self.again and self.training else self.block(z)
        )


def test_checkpointed_layers_drop_the_same_when_they_are_computed_again(monkeypatch):
    """Beside the network without checkpoints that draws from the same generator; statistics count once."""
    again = train(lambda: Deep(True))
    with monkeypatch.context() as patch:
        patch.setattr(tasks, "draws_for_gradient", lambda task: True)
        once = train(lambda: Deep(False))
    torch.testing.assert_close(dict(again.model().state_dict()), dict(once.model().state_dict()))
    assert train(lambda: Deep(True)).result["model_digest"] == again.result["model_digest"]


class Enclosing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.drop = nn.Linear(6, 3), lambda z: F.dropout(z, 0.5, self.training)

    def forward(self, x):
        return self.drop(self.layer(x))


def test_functions_over_the_network_itself_and_complex_weights_are_refused():
    with pytest.raises(ExperimentError, match="model's drop is a function that holds the model itself"):
        train(Enclosing)
    hooked = nn.Sequential(nn.Linear(6, 3))
    hooked[0].register_forward_hook(lambda module, given, output: 2 * output)
    train(lambda: hooked)
    hooked[0].register_forward_hook(lambda module, given, output: hooked[0].weight.sum() + output)
    with pytest.raises(ExperimentError, match=r"0\._forward_hooks is a function"):
        train(lambda: hooked)
    net = nn.Linear(6, 3)
    net.register_parameter("phase", nn.Parameter(torch.zeros(3, dtype=torch.cfloat)))
    with pytest.raises(ExperimentError, match="complex parameters"):
        train(lambda: net)
