"""Measure how long engines take: each trains the same short round on its own model, and nothing of it remains."""

from __future__ import annotations

import logging
import random
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from fedkeel.core.method import Method
from fedkeel.core.round import broadcast, init_server
from fedkeel.data.clients import ClientData, DerivedClients, Rows, Sample
from fedkeel.engines.cost import passes
from fedkeel.engines.engine import Engine, Training
from fedkeel.problems.problem import Problem
from fedkeel.problems.task import Task
from fedkeel.randomness import list_gpus

LR = 1e-3  # of steps whose result is thrown away
TIMES = 3  # that a round is trained to measure it


@dataclass(frozen=True)
class RemainingWork:
    """What is still to be trained: some rounds like the next one, which has these clients."""

    rounds: int = 0
    clients: Sequence[int] = field(default_factory=tuple)


@dataclass(frozen=True)
class Job:
    """What an engine is made for; `make_task` makes the same task again, with its own model."""

    task: Task
    method: Method
    training: Training
    make_task: Callable[[Problem], Task]
    workers: int | None = None
    left: RemainingWork = field(default_factory=RemainingWork)

    def passes(self, clients: Sequence[int]) -> int:
        """Count the backward passes of these clients in a round."""
        return sum(passes(self.method, self.training, self.task, 0, client) for client in clients)

    @property
    def passes_left(self) -> int:
        return self.left.rounds * self.passes(self.left.clients)

    def shorten(self, share: float, clients: Sequence[int]) -> Job:
        """Make the job that is timed: one epoch on a share of each client's samples."""
        training, make = replace(self.training, epochs=1, steps=None), self.make_task

        def make_short(problem: Problem) -> Task:
            task = make(problem)
            task.clients = FewerSamples(task.clients, share, training.batch_size)
            return task

        task, left = make_short(self.task.problem), RemainingWork(1, list(clients))
        return Job(task, self.method, training, make_short, self.workers, left)


class FewerSamples(DerivedClients):
    """Clients with a share of their samples, in whole batches where possible."""

    def __init__(self, clients: ClientData, share: float, batch_size: int):
        self.clients, self.sources = clients, [clients]
        batches = np.ceil(share * clients.sizes / batch_size).astype(np.int64)
        self.sizes = np.minimum(clients.sizes, np.maximum(batches, 1) * batch_size)

    def rows(self, client: int, rows: Rows) -> Sample:
        return self.clients.rows(client, rows)


def now(device: torch.device) -> float:
    """Read the clock after the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def time_call(f: Callable[[], object], device: torch.device) -> float:
    began = now(device)
    f()
    return now(device) - began


def time_round(engine: Engine, job: Job) -> float:
    """Measure a round of the job in seconds: the shorter of two, after one to warm up."""
    server = init_server(job.method, job.task.initial, job.task.buffers)
    message, clients = broadcast(job.method, server), list(job.left.clients)

    def train_round() -> None:
        engine.train(message, 0, LR, clients, [None] * len(clients))

    train_round()
    return min(time_call(train_round, job.task.device) for _ in range(TIMES - 1))


@contextmanager
def without_traces(device: torch.device) -> Iterator[None]:
    """Run a block that leaves random generators, logs and warnings as they were."""
    log = logging.getLogger("fedkeel")
    level, python, numpy = log.level, random.getstate(), np.random.get_state()
    log.setLevel(logging.CRITICAL)
    try:
        with torch.random.fork_rng(list_gpus(device)), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
        random.setstate(python)
        np.random.set_state(numpy)
