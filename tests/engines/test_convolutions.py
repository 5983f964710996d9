"""What runs promise of float32 convolutions holds with oneDNN's and with PyTorch's own, whichever a machine takes."""

import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel.engines.machine import steady, uses_onednn

pytestmark = pytest.mark.usefixtures("onednn")


def experiment(**changes):
    draw = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(),
                              nn.Flatten(), nn.Linear(8 * 9, 4))  # fmt: skip

    def samples(size):
        return torch.rand(size, 3, 8, 8, generator=draw), torch.randint(0, 4, (size,), generator=draw)

    problem = fk.Problem(
        model=model,
        loss=nn.CrossEntropyLoss(reduction="none"),
        clients=[samples(size) for size in (40, 33, 17)],
        test=samples(50),
    )
    settings = dict(method="fedsam", rounds=2, participation=1.0, epochs=1, batch_size=16, lr=0.1)
    return fk.Experiment(problem=problem, **settings | changes)


def test_a_run_takes_what_it_should_and_leaves_the_caller_his(onednn):
    before = torch.backends.mkldnn.enabled
    with steady():
        assert torch.backends.mkldnn.enabled == uses_onednn() == onednn
    assert torch.backends.mkldnn.enabled == before


def test_a_caller_who_turned_onednn_off_goes_without(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    with steady():
        assert not torch.backends.mkldnn.enabled


@pytest.mark.slow
def test_processes_are_bitwise_equal_to_serial():
    serial, pool = (fk.run(experiment(), engine=engine, workers=1, device="cpu") for engine in ("serial", "processes"))
    assert serial.result == pool.result


def test_a_resumed_run_is_an_uninterrupted_one(tmp_path):
    fk.run(experiment(rounds=1), engine="serial", out=tmp_path / "run")
    resumed = fk.run(experiment(), engine="serial", out=tmp_path / "run")
    assert resumed.result["model_digest"] == fk.run(experiment(), engine="serial").result["model_digest"]


def test_a_stack_learns_the_same_to_rounding():
    serial, stacked = (fk.run(experiment(), engine=engine) for engine in ("serial", "stacked"))
    for name, value in serial.params.items():
        torch.testing.assert_close(stacked.params[name], value, rtol=1e-4, atol=1e-5)
