"""benchmarks/flower_load.py in its smallest form: the server's memory stays flat, and nothing is left running."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

from deployments import MISSING, PATIENCE, SOURCE, living_in

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not on this machine: {', '.join(MISSING)}"),
]
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "flower_load.py"


def start(folder, *arguments):
    command = [sys.executable, str(BENCHMARK), "--folder", str(folder), *arguments]
    path = os.pathsep.join(filter(None, [SOURCE, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_memory_of_the_server_stays_flat(tmp_path):
    load = start(tmp_path, "--nodes", "4", "--rounds", "6", "--share", "0.25")
    out, err = load.communicate(timeout=3 * PATIENCE)
    assert load.returncode == 0, err
    found = json.loads(out)
    assert (found["joined"], found["refused"], found["absent_or_late"]) == (4, 0, 0)
    for kind, taken in found["server_mb"].items():
        assert taken["most"] < taken["round 1"] + 48, kind  # loosely: the link fills its caches first
    assert not living_in(tmp_path / "home" / ".flwr")


def test_ctrl_c_ends_all_that_was_started(tmp_path):
    load, until = start(tmp_path, "--nodes", "2", "--rounds", "50"), time.monotonic() + PATIENCE
    while not (tmp_path / "node-1.log").exists() and load.poll() is None and time.monotonic() < until:
        time.sleep(0.5)
    assert living_in(tmp_path / "home" / ".flwr")
    load.send_signal(signal.SIGINT)
    load.communicate(timeout=PATIENCE)
    assert load.returncode == 130
    assert not living_in(tmp_path / "home" / ".flwr")
