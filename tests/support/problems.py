"""Small problems that many tests share."""

from copy import deepcopy
from functools import cache

import torch

import fedkeel as fk
from fedkeel.methods import build
from fedkeel.models.bottleneck import Bottleneck

CURVATURE = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
CENTRE = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)

ABLATIONS = [
    fk.HighPass(0.05, order="random"),
    fk.HighPass(0.05, order="2310"),
    fk.HighPass2d(0.05),
    fk.GaussianDetrend(2.0),
    fk.PoolDetrend(5),
    fk.Rescale(0.05),
    fk.Rescale(0.05, whole=True),
    fk.LowPass(0.05),
    fk.RandomBand(0.05),
    fk.RandomEnergy(0.05),
    fk.ClipMedian(),
]
"""What the papers put in the place of their filters."""

OPTIMISERS = [
    fk.LocalMomentum(0.9, nesterov=True),
    fk.LocalMomentum(0.9, dampening=0.1),
    fk.AdamW(),
    fk.Adagrad(),
    fk.Lion(),
    fk.Muon(),
    fk.Muon(without=("fc.*",), precision="bfloat16"),
]
"""What a client may step with; the last one rounds as the processor does."""


def quadratic(params, batch):
    """f_i(w) = ½ Σ_j H_ij (w_j − b_ij)²: one value per sample."""
    curvature, centre = batch
    return (0.5 * curvature * (params["w"] - centre) ** 2).sum(-1)


INNER = {
    "fedala": {"passes": 2}, "fedawa": {"steps": 2}, "fedawa@released": {"steps": 2}, "ghbm": {"tau": 1},
    "feddecorr": {"beta": 0.01}, "fedlaw": {"epochs": 2},
}  # fmt: skip
"""Loops inside of a round, which laws need not wait for, rounds before a momentum begins, and a penalty that divides
features by their spread, so that a strong one enlarges rounding from step to step."""


def quick(name):
    """The method with its inner loops cut short."""
    return build(name, INNER.get(name, {}))


def model_for(method, otherwise):
    """`otherwise`, or that network with a random code if the method needs one."""
    method = build(method) if isinstance(method, str) else method
    if not any(objective.of for objective in method.objectives):
        return otherwise
    *body, last = otherwise
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return Bottleneck(torch.nn.Sequential(*body), last.in_features, last.out_features, code=4, samples=3)


@cache
def network(classes):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, classes))


def small_problem(sizes=(7, 12, 5, 1, 9, 16), classes=3, test=40):
    generator = torch.Generator().manual_seed(0)

    def draw(n):
        y = torch.randint(0, classes, (n,), generator=generator)
        return torch.randn(n, 6, generator=generator) + y[:, None], y

    loss = torch.nn.CrossEntropyLoss(reduction="none")
    return fk.Problem(
        model=deepcopy(network(classes)), loss=loss, clients=[draw(n) for n in sizes], test=draw(test), classes=classes
    )
