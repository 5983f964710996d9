"""What many tests share: small problems with a known shape."""

import os

import pytest
import torch

import fedkeel as fk
from fedkeel.engines import machine
from problems import CENTRE, CURVATURE, quadratic, small_problem

os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)


@pytest.fixture
def toy():
    """Three clients with one quadratic each, the shared toy of the test vectors."""
    clients = [(CURVATURE[i : i + 1], CENTRE[i : i + 1]) for i in range(3)]
    return fk.Problem(params={"w": torch.ones(2, dtype=torch.float64)}, loss=quadratic, clients=clients)


@pytest.fixture
def small():
    """A small module and six clients of unequal size, one of them with a single sample."""
    return small_problem()


@pytest.fixture(params=[True, False], ids=["oneDNN", "no oneDNN"])
def onednn(request, monkeypatch):
    """Convolutions by oneDNN and by PyTorch itself, whichever this machine would take."""
    if request.param and not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch was built without oneDNN")
    monkeypatch.setattr(machine, "ONEDNN", request.param)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", request.param)
    return request.param
