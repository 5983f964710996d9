"""Many clients with large states: SCAFFOLD's control variates of a ResNet-18, 45 MB for each client that took part.

python benchmarks/client_states.py [--clients 10000] [--rounds 62] [--selected 10] [--out FOLDER]
python benchmarks/client_states.py --checkpoint cuda     how long a checkpoint of 100 such states takes

Clients have one sample of 8×8 pixels, so that states, not training, are what the run consists of. The folder of the
run needs 45 MB of free disk for each client that takes part, and is removed in the end.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import fedkeel as fk
from fedkeel.core.trees import Tree
from fedkeel.engines.machine import free_memory
from fedkeel.models import build
from fedkeel.runs.prepare import cross_entropy
from fedkeel.runs.record import RoundRecord
from fedkeel.runs.store import ClientStore

SHAPE = (3, 8, 8)
PARAMETERS = 11_181_642


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


def checkpoint(device: str, folder: Path, clients: int = 100) -> None:
    """Seconds to write all states, to write a tenth of them again, and to read all back."""
    store = ClientStore(folder, device)

    def fill(clients: int, round: int) -> None:
        for client in range(clients):
            store.put(client, {"c_i": Tree.of({"w": torch.randn(PARAMETERS, device=device)})}, round)

    def told(what: str, call: Callable[[], object]) -> None:
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        print(f"{what}: {time.perf_counter() - began:.2f} s", flush=True)

    fill(clients, 1)
    told(f"{store.held / 1e9:.2f} GB in {clients} states, all new", store.save)
    fill(clients // 10, 2)
    told(f"{clients // 10} of them new", store.save)
    again = ClientStore(folder, device)
    again.restore(store.places)
    told("read back", lambda: [again.get(client) for client in range(clients)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=62)
    parser.add_argument("--selected", type=int, default=10)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--checkpoint", metavar="DEVICE")
    asked = parser.parse_args()
    folder = asked.out or Path(tempfile.mkdtemp(prefix="client-states-"))
    folder.mkdir(parents=True, exist_ok=asked.out is None)  # it is removed in the end, so it must be a new one
    try:
        if asked.checkpoint:
            checkpoint(asked.checkpoint, folder)
        else:
            train(asked.clients, asked.rounds, asked.selected, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def train(clients: int, rounds: int, selected: int, folder: Path) -> None:
    problem = fk.Problem(
        model=build("resnet18-gn", shape=SHAPE, classes=10, seed=0),
        loss=cross_entropy,
        clients=Noise(clients),
        classes=10,
    )
    experiment = fk.Experiment(
        problem=problem,
        method="scaffold",
        rounds=rounds,
        participation=selected / clients,
        epochs=1,
        batch_size=1,
        lr=0.01,
        evaluate_every=rounds,
    )
    fk.run(experiment, out=folder, engine="serial", progress=Watch(folder, peak(), max(1, rounds // 12)))


if __name__ == "__main__":
    main()
