"""Small networks of one's own, and how the engines train them."""

import torch
from torch import nn
from torch.nn import functional as F

import fedkeel as fk

SHAPE, CLASSES = (3, 6, 6), 3


class Net(nn.Module):
    """Layers by name, and a function of them and the images."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.layers, self.called = nn.ModuleDict(layers), forward

    def forward(self, x):
        return self.called(self.layers, x)


def make_clients(ordered):
    generator = torch.Generator().manual_seed(3)
    clients = []
    for size in (18, 33):  # the second batch of the first is short, so that a stack fills it up
        y = torch.randint(0, CLASSES, (size,), generator=generator)
        clients.append((torch.randn(size, *SHAPE, generator=generator) + y[:, None, None, None], y))
    return [(x[y.argsort()], y.sort().values) for x, y in clients] if ordered else clients


def train(engine, network, loss=F.cross_entropy, ordered=False):
    torch.manual_seed(0)
    clients = make_clients(ordered)
    problem = fk.Problem(model=network(), loss=loss, clients=clients, test=clients[0])
    experiment = fk.Experiment(problem=problem, rounds=2, participation=1.0, epochs=1, batch_size=16, lr=0.1)
    run = fk.run(experiment, engine=engine, dtype=torch.float64)
    return torch.cat([leaf.flatten() for leaf in run.params.values()])


def same_on_engines(network, *given, **changes):
    one_by_one, together = (train(engine, network, *given, **changes) for engine in ("serial", "stacked"))
    torch.testing.assert_close(together, one_by_one, rtol=1e-9, atol=1e-11)


class Permuted(nn.Module):
    """Sees half of the pixels; which ones, each network draws for itself and keeps as plain numbers."""

    def __init__(self, shape=(64,), classes=10):
        super().__init__()
        self.order = torch.randperm(64).tolist()[:32]
        self.layer = nn.Linear(32, classes)

    def forward(self, x):
        return self.layer(x.flatten(1)[:, self.order])
