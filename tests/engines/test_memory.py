"""A run takes the memory that its parts add up to in `fedkeel doctor`, to a fifth: models, states, reports."""

import json
import platform
import subprocess
import sys

import pytest
import torch

import fedkeel as fk
from fedkeel.cli.estimate import KERNEL, PASSES, Convolution, estimate, onednn_bytes
from fedkeel.engines import machine
from fedkeel.engines.machine import ONEDNN

PROGRAM = """
import ctypes, json, sys, threading
import torch
import fedkeel as fk
from fedkeel.engines import machine
from fedkeel.cli.estimate import estimate
from fedkeel.engines.machine import steady
from fedkeel.models import build

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

machine.ONEDNN = sys.argv[3] == "True"
fk.run(fk.Experiment(dataset="digits", model="logistic", rounds=1), engine="serial")
with steady(), torch.no_grad():  # PyTorch's convolutions keep buffers of their own for good
    build("resnet18-gn", shape=(1, 8, 8), classes=10, seed=0)(torch.zeros(500, 1, 8, 8))
ctypes.CDLL("libc.so.6").malloc_trim(0)
method, share = sys.argv[1], float(sys.argv[2])
size = dict(rounds=2, participation=share, epochs=1, batch_size=72)
exp = fk.Experiment(dataset="digits", model="resnet18-gn", method=method, lr=0.01, **size)
before, peak, done = resident(), 0, threading.Event()

def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, resident())

watcher = threading.Thread(target=watch)
watcher.start()
fk.run(exp, engine="serial", device="cpu")
done.set()
watcher.join()
print(json.dumps([peak - before, estimate(exp).total]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("method", "share", "onednn"),
    [("fedavg", 0.1, True), ("fedavg", 0.1, False), ("fedsam", 0.3, ONEDNN), ("scaffold", 0.3, ONEDNN)],
)
def test_memory_is_what_the_doctor_predicts(method, share, onednn):
    command = [sys.executable, "-c", PROGRAM, method, str(share), str(onednn)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    measured, predicted = json.loads(told.splitlines()[-1])
    assert measured == pytest.approx(predicted, rel=0.2)


@pytest.mark.parametrize(
    ("machine_name", "method", "share", "measured"),
    [
        ("x86_64", "fedavg", 0.1, 552e6),
        ("x86_64", "fedsam", 0.3, 785e6),
        ("aarch64", "fedavg", 0.1, 439e6),
        ("aarch64", "fedsam", 0.3, 669e6),
        ("aarch64", "scaffold", 0.3, 1556e6),
    ],
)
def test_memory_measured_elsewhere_is_what_the_doctor_predicts_there(
    monkeypatch, constant_weights, machine_name, method, share, measured
):
    """Measured once by the program above, on one machine of each kind."""
    monkeypatch.setattr(platform, "machine", lambda: machine_name)
    monkeypatch.setattr(machine, "ONEDNN", machine_name == "x86_64")
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    settings = dict(rounds=2, participation=share, epochs=1, batch_size=72, lr=0.01)
    experiment = fk.Experiment(dataset="digits", model="resnet18-gn", method=method, **settings)
    assert measured == pytest.approx(estimate(experiment).total, rel=0.2)


def test_onednn_is_counted_by_layer_and_by_kind_of_convolution(monkeypatch):
    same = [Convolution(("3×3",), 10, 20, 100), Convolution(("3×3",), 10, 20, 100)]
    other = Convolution(("1×1",), 1000, 500, 1)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert onednn_bytes([]) == 0
    assert onednn_bytes(same) == 2 * 10 + 2 * 20 + 3 * 100
    assert onednn_bytes([*same, other]) == 2 * 1000 + 2 * 500 + 3
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert onednn_bytes([*same, other]) == 3003 + 2 * PASSES * KERNEL
