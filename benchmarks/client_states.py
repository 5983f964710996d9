"""Many clients with large states: SCAFFOLD's control variates of a ResNet-18, 45 MB for each client that took part.

python benchmarks/client_states.py [--clients 10000] [--rounds 62] [--selected 10] [--out FOLDER]

Clients have one sample of 8×8 pixels, so that states, not training, are what the run consists of. The folder of the
run needs 45 MB of free disk for each client that takes part, and is removed in the end.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import fedkeel as fk
from fedkeel.machine import free_memory
from fedkeel.models import build
from fedkeel.record import RoundRecord
from fedkeel.setup import cross_entropy

SHAPE = (3, 8, 8)


class Noise(Sequence[tuple[Tensor, Tensor]]):
    """Clients with one random sample each, drawn when it is asked for."""

    def __init__(self, clients: int):
        self.sizes = np.ones(clients, np.int64)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, client: int) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        draw = torch.Generator().manual_seed(client)
        return torch.randn(1, *SHAPE, generator=draw), torch.tensor([client % 10])


class Watch:
    """Prints how the run goes: states, disk, memory."""

    def __init__(self, folder: Path, base: int, every: int):
        self.folder, self.base, self.every = folder, base, every
        self.began, self.seen = time.perf_counter(), set[int]()

    def started(self, experiment: fk.Experiment, done: int, engine: str) -> None:
        print(f"{free_memory() / 1e9:.1f} GB of memory are free, engine {engine}", flush=True)

    def round(self, record: RoundRecord) -> None:
        self.seen.update(record.selected)
        if record.round % self.every == 0:
            self.tell(record.round)

    def tell(self, rounds: int) -> None:
        files = list(self.folder.rglob("clients-*"))
        disk = sum(path.stat().st_size for path in files)
        each = (time.perf_counter() - self.began) / rounds
        print(
            f"round {rounds:4d}: {len(self.seen)} states; {len(files)} files, {disk / 1e9:.2f} GB on disk; "
            f"peak memory {(peak() - self.base) / 1e9:.2f} GB; {each:.1f} s a round",
            flush=True,
        )

    def finished(self, run: object) -> None:
        self.tell(len(run.records) if isinstance(run, fk.Run) else 1)


def peak() -> int:
    """The most memory this process has had resident."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=62)
    parser.add_argument("--selected", type=int, default=10)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    problem = fk.Problem(
        model=build("resnet18-gn", shape=SHAPE, classes=10, seed=0),
        loss=cross_entropy,
        clients=Noise(asked.clients),
        classes=10,
    )
    experiment = fk.Experiment(
        problem=problem,
        method="scaffold",
        rounds=asked.rounds,
        participation=asked.selected / asked.clients,
        epochs=1,
        batch_size=1,
        lr=0.01,
        evaluate_every=asked.rounds,
    )
    folder = asked.out or Path(tempfile.mkdtemp(prefix="client-states-"))
    try:
        fk.run(experiment, out=folder, engine="serial", progress=Watch(folder, peak(), max(1, asked.rounds // 12)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
