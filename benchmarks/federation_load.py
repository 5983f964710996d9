"""How many rounds a minute a Flower simulation makes, and whether the server's memory stays flat.

    python benchmarks/federation_load.py                              200 nodes, 200 rounds, 10 clients a round
    python benchmarks/federation_load.py --method fedavg --share 1.0  every node in every round

Prints one JSON object: rounds per minute, and the memory of the server process after a tenth of the rounds, at half,
and at the end: as the system counts it, and what is in use once the allocator has given back what it only keeps in
store. The process holds the server, Flower's link and the states of all nodes.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import logging
import statistics
from pathlib import Path

import fedkeel as fk
from fedkeel.runs.finished_run import Run
from fedkeel.runs.record import RoundRecord


def resident() -> int:
    """Bytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def in_use() -> int:
    """The same without garbage and without what malloc keeps in store."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # of glibc
    return resident()


class Meter:
    """Seconds of every round, and memory at some of them."""

    def __init__(self, rounds: int) -> None:
        self.seconds: list[float] = []
        self.when = {"after_a_tenth": max(1, rounds // 10), "at_the_half": max(1, rounds // 2), "at_the_end": rounds}
        self.memory: dict[str, float] = {}
        self.in_use: dict[str, float] = {}

    def started(self, experiment: fk.Experiment, done: int, engine: str) -> None:
        pass

    def round(self, record: RoundRecord) -> None:
        self.seconds.append(record.seconds)
        for name, round in self.when.items():
            if record.round == round:
                self.memory[name] = rounded(resident())
                self.in_use[name] = rounded(in_use())

    def finished(self, run: Run) -> None:
        pass


def rounded(size: int) -> float:
    return round(size / 2**20, 1)


def make_experiment(asked: argparse.Namespace) -> fk.Experiment:
    """Digits in equal shares, one for each node."""
    return fk.Experiment(
        dataset="digits",
        model=asked.model,
        method=asked.method,
        partition=fk.Iid(clients=asked.nodes),
        rounds=asked.rounds,
        participation=asked.share,
        epochs=1,
        batch_size=8,
        evaluate_every=asked.rounds,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--share", type=float, default=0.05, help="of the nodes, in each round")
    parser.add_argument("--method", default="scaffold")
    parser.add_argument("--model", default="mlp")
    asked = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    meter = Meter(asked.rounds)
    run = fk.run(make_experiment(asked), engine="flower", progress=meter)
    print(
        json.dumps(
            {
                "nodes": asked.nodes,
                "clients_per_round": len(run.records[-1].selected),
                "method": asked.method,
                "parameters": run.server["params"].layout.size,
                "rounds": asked.rounds,
                "rounds_per_minute": round(60 / statistics.mean(meter.seconds), 1),
                "median_seconds": round(statistics.median(meter.seconds), 3),
                "resident_mb": meter.memory,
                "in_use_mb": meter.in_use,
                "dropped": sum(len(record.dropped) for record in run.records),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
