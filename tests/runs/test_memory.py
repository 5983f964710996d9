"""A run takes the memory that its parts add up to in `fedkeel doctor`, to a fifth: models, states, reports."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, json, sys, threading
import torch
import fedkeel as fk
from fedkeel.cli.estimate import estimate
from fedkeel.machine import steady
from fedkeel.models import build

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

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
fk.run(exp, engine="serial")
done.set()
watcher.join()
print(json.dumps([peak - before, estimate(exp).total]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(("method", "share"), [("fedavg", 0.1), ("fedsam", 0.3), ("scaffold", 0.3)])
def test_memory_is_what_the_doctor_predicts(method, share):
    command = [sys.executable, "-c", PROGRAM, method, str(share)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    measured, predicted = json.loads(told.splitlines()[-1])
    assert measured == pytest.approx(predicted, rel=0.2)
