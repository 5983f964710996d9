"""One round, worked out by hand."""

from dataclasses import replace

import pytest
import torch

import fedkeel as fk
from fedkeel.methods import build
from problems import small_problem


@pytest.mark.parametrize("share", [0.0, 0.25, 2.0])
def test_the_server_goes_its_share_of_the_mean_update(toy, share):
    """w ← w + η_s Δ"""

    def moved(server_lr):
        method = fk.method("mine", weights=fk.Uniform(), server_lr=server_lr)
        settings = {"rounds": 1, "participation": 1.0, "epochs": 1, "batch_size": 1, "lr": 0.1}
        run = fk.run(fk.Experiment(problem=toy, method=method, **settings), dtype=torch.float64, engine="serial")
        return run.params["w"] - torch.ones(2, dtype=torch.float64)

    whole = moved(1.0)
    assert whole.abs().min() > 0
    torch.testing.assert_close(moved(share), share * whole)


@pytest.mark.parametrize(("name", "rho"), [("fedavg", 0.0), ("fedsam", 0.1), ("ditto", 0.0)])
def test_the_loss_is_the_mean_over_samples_of_the_model_that_is_sent(name, rho):
    """f(w) = w² in batches of 2, 2 and 1 samples: (2 f(w_0) + 2 f(w_1) + f(w_2)) / 5, not at the points SAM climbs to.

    Ditto's own models, trained last, are not sent.
    """
    problem = fk.Problem(
        params={"w": torch.ones(1, dtype=torch.float64)},
        loss=lambda params, batch: (params["w"] * batch).square().sum(-1),
        clients=[torch.ones(5, 1, dtype=torch.float64)],
    )
    method = build(name, {"rho": rho} if rho else {})
    made = fk.Experiment(problem=problem, method=method, rounds=1, participation=1.0, epochs=1, batch_size=2, lr=0.1)
    w = [1.0]
    for _ in range(2):
        w.append(w[-1] - 0.1 * 2 * (w[-1] + rho))
    found = fk.run(made, dtype=torch.float64, engine="serial").records[0].loss
    assert found == pytest.approx((2 * w[0] ** 2 + 2 * w[1] ** 2 + w[2] ** 2) / 5, rel=1e-6)


def test_running_statistics_are_those_of_the_pass_that_is_not_perturbed():
    """One step: m ← 0.9 m + 0.1 mean (W x + b), at W and not at W + δ."""
    first = torch.nn.Linear(6, 4)
    model = torch.nn.Sequential(first, torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    problem, method = replace(small_problem(sizes=(8,)), model=model), build("fedsam", {"rho": 0.5})
    expected = 0.1 * first(problem.clients[0][0]).mean(0).detach()
    made = fk.Experiment(problem=problem, method=method, rounds=1, epochs=1, batch_size=8, lr=0.1)
    found = fk.run(made, engine="serial").server["buffers"]["1.running_mean"]
    torch.testing.assert_close(found, expected)
