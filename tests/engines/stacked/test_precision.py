"""Perturbed steps in bfloat16 do what those in float32 do: rounding does not hide the perturbation."""

import pytest
import torch
from torch.nn import functional as F

import fedkeel as fk
from fedkeel.models import build

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def move(method, model, size, device, **given):
    """How far one round of two clients, each with classes of its own, moves a network."""
    draw = torch.Generator().manual_seed(0)
    clients = [(torch.randn(8, 3, size, size, generator=draw) + label, torch.full((8,), label)) for label in (0, 1)]
    network = build(model, shape=(3, size, size), classes=10, seed=0)
    start = torch.cat([weight.detach().flatten() for weight in network.parameters()])
    problem = fk.Problem(model=network, loss=F.cross_entropy, clients=clients, test=clients[0])
    settings = {"rounds": 1, "participation": 1.0, "epochs": 1, "batch_size": 8, "lr": 0.01}
    run = fk.run(fk.Experiment(problem=problem, method=method, **settings), device=device, **given)
    return torch.cat([weight.flatten().cpu() for weight in run.params.values()]) - start


@pytest.mark.parametrize(
    ("model", "size", "device"),
    [
        pytest.param("resnet20-gn", 12, "cpu", marks=pytest.mark.slow),
        pytest.param("resnet20-gn", 32, "cuda", marks=GPU),
        pytest.param("resnet18-gn", 32, "cuda", marks=GPU),
    ],
)
def test_a_perturbation_changes_a_step_in_bfloat16_as_it_does_in_float32(model, size, device):
    exact, rounded = [
        {rho: move(fk.METHODS["fedsam"](rho=rho), model, size, device, **given) for rho in (0.0, 0.1)}
        for given in ({"engine": "serial"}, {"engine": "stacked", "dtype": torch.bfloat16})
    ]
    for rho in (0.0, 0.1):
        assert F.cosine_similarity(exact[rho], rounded[rho], dim=0) > 0.99
    assert F.cosine_similarity(exact[0.1] - exact[0.0], rounded[0.1] - rounded[0.0], dim=0) > 0.95
