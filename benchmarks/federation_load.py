"""How many rounds a minute a Flower simulation makes, and whether the server's memory stays flat.

    python benchmarks/federation_load.py                              200 nodes, 200 rounds, 10 clients a round
    python benchmarks/federation_load.py --method fedavg --share 1.0  every node in every round

Prints one JSON object: rounds per minute, and the resident memory of the server process after a tenth of the rounds, at
the half, and at the end. It holds the server, Flower's link and the states of all nodes.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
from pathlib import Path

import fedkeel as fk
from fedkeel.record import RoundRecord
from fedkeel.runs import Run


def resident() -> int:
    """Bytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


class Meter:
    """Seconds and memory of every round."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.memory: list[int] = []

    def started(self, experiment: fk.Experiment, done: int, engine: str) -> None:
        pass

    def round(self, record: RoundRecord) -> None:
        self.seconds.append(record.seconds)
        self.memory.append(resident())

    def finished(self, run: Run) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--share", type=float, default=0.05, help="of the nodes, in each round")
    parser.add_argument("--method", default="scaffold")
    parser.add_argument("--model", default="mlp")
    asked = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    experiment = fk.Experiment(
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
    meter = Meter()
    run = fk.run(experiment, engine="flower", progress=meter)
    tenth = max(1, asked.rounds // 10)
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
                "memory_mb": {
                    "after_a_tenth": round(meter.memory[tenth - 1] / 2**20, 1),
                    "at_the_half": round(meter.memory[asked.rounds // 2 - 1] / 2**20, 1),
                    "at_the_end": round(meter.memory[-1] / 2**20, 1),
                },
                "dropped": sum(len(record.dropped) for record in run.records),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
