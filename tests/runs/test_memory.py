"""What `fedkeel doctor` predicts a run needs is what it takes, to a fifth."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys, threading
import fedkeel as fk
from fedkeel.cli.estimate import estimate

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

fk.run(fk.Experiment(dataset="digits", model="logistic", rounds=1), engine="serial")
method = sys.argv[1]
size = dict(rounds=2, participation=0.3, epochs=1, batch_size=72)
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
@pytest.mark.parametrize("method", ["fedavg", "fedsam", "scaffold"])
def test_memory_is_what_the_doctor_predicts(method):
    told = subprocess.run([sys.executable, "-c", PROGRAM, method], capture_output=True, text=True, check=True).stdout
    measured, predicted = json.loads(told.splitlines()[-1])
    assert measured == pytest.approx(predicted, rel=0.2)
