"""Runs on a local Ray of two workers: one is killed, its run resumes, and results are those of serial runs."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

pytest.importorskip("ray.exceptions", reason='needs ray: pip install "fedkeel[ray]"')

import ray

import fedkeel as fk
from fedkeel.engines.ray_connection import import_ray
from fedkeel.runs.folder import read_rounds
from fedkeel.studies.ray_cluster import RunRequest, choose_on_ray, hire, is_finished, runs_on_ray

pytestmark = [
    pytest.mark.slow,
    # Ray leaves handles of its own processes open
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def two_workers():
    path = os.path.dirname(os.path.dirname(fk.__file__))
    import_ray().init(
        address="local",
        num_cpus=2,
        object_store_memory=200 << 20,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}},
    )
    with hire("cpu", None) as crew:
        yield crew
    ray.shutdown()


def request(out, rounds=3, **changes):
    settings = dict(dataset="digits", model="mlp", method="scaffold", partition="iid:clients=4", participation=0.5)
    exp = fk.Experiment(rounds=rounds, epochs=1, **settings | changes)
    return exp, RunRequest(exp.save(), str(out), engine="serial", device="cpu")


def test_a_killed_worker_costs_nothing_but_time(two_workers, tmp_path, caplog):
    asked = [request(tmp_path / str(seed), rounds=100, seed=seed) for seed in range(2)]
    two_workers.grow(2)
    two_workers.wait_for_start()
    process = ray.get(two_workers.actors[0].answer.remote("call", os.getpid))
    killed = []

    def kill_one():
        """As soon as both runs have a few rounds behind them."""
        until = time.monotonic() + 300
        while time.monotonic() < until and not killed:
            if all(len(read_rounds(tmp_path / str(seed))) > 2 for seed in range(2)):
                os.kill(process, signal.SIGKILL)
                killed.append(process)
            time.sleep(0.05)

    killer = threading.Thread(target=kill_one)
    killer.start()
    ends = runs_on_ray([(r.out, r) for _, r in asked], two_workers)
    killer.join()
    assert killed
    assert "died; another takes its place" in caplog.text
    for (exp, _), end in zip(asked, ends, strict=True):
        assert end.result == fk.run(exp, engine="serial").result


def test_what_is_finished_is_not_made_again_and_a_failure_stops_nobody(two_workers, tmp_path, caplog):
    exp, done = request(tmp_path / "done")
    fk.run(exp, out=done.out, engine="serial")
    stamp = os.stat(os.path.join(done.out, "rounds.jsonl")).st_mtime_ns
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("precious")
    _, wrong = request(tmp_path / "taken")
    _, fresh = request(tmp_path / "fresh", seed=5)
    ends = runs_on_ray([("done", done), ("wrong", wrong), ("fresh", fresh)], two_workers)
    assert [end is not None for end in ends] == [True, False, True]
    assert re.search("wrong failed: .* holds something that is not a run", caplog.text)
    assert os.stat(os.path.join(done.out, "rounds.jsonl")).st_mtime_ns == stamp
    assert [is_finished(r) for r in (done, wrong, fresh)] == [True, False, True]


def test_more_rounds_extend_a_finished_run(two_workers, tmp_path):
    _, short = request(tmp_path / "run", rounds=2)
    exp, longer = request(tmp_path / "run", rounds=4)
    assert runs_on_ray([("short", short)], two_workers)[0].result["rounds"] == 2
    assert runs_on_ray([("longer", longer)], two_workers)[0].result == fk.run(exp, engine="serial").result


def test_a_sweep_gets_its_runs(two_workers, tmp_path, caplog):
    (exp, good), (_, bad) = request(tmp_path / "0"), request(tmp_path / "1", seed=1)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "thesis.tex").write_text("precious")
    made = runs_on_ray([("a", good), ("b", bad)], two_workers)
    assert made[0].result == fk.run(exp, engine="serial").result
    assert made[1] is None
    assert "b failed: " in caplog.text


def test_one_engine_is_chosen_for_all(two_workers, tmp_path):
    asked = [replace(request(tmp_path / str(seed), seed=seed)[1], engine="auto") for seed in range(2)]
    assert choose_on_ray(asked, two_workers) == "serial"  # two rounds are not worth measuring


SWEEP = """
dataset = "digits"
model = "mlp"
partition = "iid:clients=4"
participation = 1.0
epochs = 5
rounds = 60
validation = 0.2
[methods.fedavg]
"""


def test_the_command_stops_at_once_and_goes_on_later(tmp_path):
    """Ctrl-C while the only run is in the middle of its rounds."""
    (tmp_path / "sweep.toml").write_text(SWEEP)
    command = [sys.executable, "-m", "fedkeel", "sweep", "sweep.toml", "--on", "ray", "--engine", "serial"]
    path = {"PYTHONPATH": os.path.dirname(os.path.dirname(fk.__file__)), "OMP_NUM_THREADS": "1"}
    options = dict(cwd=tmp_path, env=os.environ | path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen(command, **options) as going:
        until = time.monotonic() + 120
        while time.monotonic() < until and not any(len(read_rounds(f)) > 2 for f in tmp_path.glob("runs/sweep/*")):
            time.sleep(0.05)
        going.send_signal(signal.SIGINT)
        _, told = going.communicate(timeout=60)
    assert going.returncode == 130, told
    assert "interrupted: the same command again goes on" in told
    (folder,) = tmp_path.glob("runs/sweep/*")
    assert 2 < len(read_rounds(folder)) < 60
    ended = subprocess.run(command, **options, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert "fedavg is done" in ended.stderr
    made = fk.load_run(folder)
    assert made.result["model_digest"] == fk.run(made.experiment, engine="serial").result["model_digest"]
