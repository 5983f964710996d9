"""How long the report of many long runs takes: invented numbers, every file as a real run would leave it.

    python benchmarks/report.py [runs] [rounds]

The whole command is timed, the start of Python and the imports included; less than 10 s is asked for 30 × 800.
"""

from __future__ import annotations

import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import fedkeel as fk
from fedkeel.runs.record import RoundRecord
from fedkeel.runs.run_folder import RunFolder

METHODS = ("fedavg", "fedprox", "scaffold", "feddyn", "fedcm", "fedsam", "mofedsam", "fedfft", "fedfft-s", "fedfft-d")
COMMAND = "import sys; from fedkeel.cli.main import call; sys.exit(call(sys.argv[1:]))"


def write_run(folder: Path, method: str, seed: int, rounds: int) -> None:
    experiment = fk.Experiment(dataset="digits", method=method, rounds=rounds, seed=seed)
    held = RunFolder(folder)
    held.open()
    held.write_experiment(experiment.save())
    held.write_json("environment.json", {"engine": "serial", "command": ["fedkeel", "run"]})
    lines = []
    for t in range(1, rounds + 1):
        accuracy = 0.9 * (1 - math.exp(-t / (100 + 10 * seed)))
        extra: dict[str, float | None] = {"test_loss": 2 - accuracy}
        extra |= {f"update/{name}": math.sin(t) + 2 for name in ("least", "most", "spread", "cosine", "agreement")}
        if t % 5 == 1:
            extra |= {f"spectrum/{kind}/{m}": t / m for kind in ("distance", "deviation") for m in range(1, 11)}
        record = RoundRecord(
            t, list(range(10)), 1 / t, 0.3, 500, 10**7, 10**7, 1.234567, accuracy=accuracy, extra=extra
        )
        lines.append(record.dumps())
    (folder / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    held.close()


def main(runs: str = "30", rounds: str = "800") -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number in range(int(runs)):
            method, seed = METHODS[number % len(METHODS)], number // len(METHODS)
            write_run(Path(folder) / "runs" / method / str(seed), method, seed, int(rounds))
        file = Path(folder) / "report.html"
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", COMMAND, "report", f"{folder}/runs", "-o", str(file)], check=True)
        seconds = time.perf_counter() - began
        used = resource.getrusage(resource.RUSAGE_CHILDREN)  # what it takes on a machine with nothing else to do
        cpu, size = used.ru_utime + used.ru_stime, file.stat().st_size / 1e6
        print(f"{runs} runs of {rounds} rounds: {seconds:.1f} s ({cpu:.1f} s of CPU), {size:.2f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:])
