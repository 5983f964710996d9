"""Run folders with invented numbers: what a report reads, without training."""

import math

import fedkeel as fk
from fedkeel.runs.record import RoundRecord
from fedkeel.runs.run_folder import RunFolder


def made_up(folder, *, method="fedavg", seed=0, rounds=20, tracked=True, level=0.8, extra=None, **settings):
    """A run folder with invented numbers: what a report reads, without training."""
    exp = fk.Experiment(dataset="digits", method=method, rounds=rounds, seed=seed, partition_seed=0, **settings)
    held = RunFolder(folder)
    held.open()
    held.write_experiment(exp.save())
    held.write_json("environment.json", {"engine": "serial", "command": ["python", "train.py"]})
    lines = []
    for t in range(1, rounds + 1):
        accuracy = level * (1 - math.exp(-t / 8)) + 0.01 * seed
        measured = {"test_loss": 2 - accuracy} | (extra or {})
        if tracked:
            measured |= {f"spectrum/distance/{m}": 1 / m + 0.01 * t for m in range(1, 11)}
            measured |= {f"spectrum/deviation/{m}": 0.1 / m for m in range(1, 11)}
            measured |= {"update/cosine": 0.1, "update/spread": 1 / t}
        lines.append(RoundRecord(t, [0, 1], 1 / t, 0.5, 40, 1000, 500, 0.25, accuracy=accuracy, extra=measured).dumps())
    (folder / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    held.close()
    return folder


def record(number, **measured):
    """A round with invented numbers: it took a second and sent 1500 bytes."""
    fixed = dict(selected=[0], loss=1.0, drift=1.0, backward_passes=1, bytes_down=1000, bytes_up=500, seconds=1.0)
    return RoundRecord(number, **fixed | measured)
