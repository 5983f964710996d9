"""One round, worked out by hand."""

import pytest
import torch

import fedkeel as fk


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
