"""Several runs in one stack; they differ in data, weights, seed and learning rate only."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.rule import State
from fedkeel.core.trees import stack
from fedkeel.data.clients import ClientData, DerivedClients, Rows
from fedkeel.engines.engine import ClientOutcome, RoundRequest, Training, client_state
from fedkeel.engines.stacked.engine import StackedEngine, explain_by_copies
from fedkeel.problems.calling import as_given
from fedkeel.problems.likeness import are_networks_alike
from fedkeel.problems.problem import digest_tensors
from fedkeel.problems.task import Task


class JoinedClients(DerivedClients):
    """The clients of several runs under consecutive numbers; their rows have names where those of the runs do."""

    def __init__(self, runs: Sequence[ClientData], names: Sequence[str] | None):
        self.runs = self.sources = runs
        self.names = names
        self.sizes = np.concatenate([clients.sizes for clients in runs])
        self.starts = [0, *np.cumsum([len(clients.sizes) for clients in runs])[:-1].tolist()]

    def run_of(self, client: int) -> tuple[int, int]:
        """Return the run of a client and its number in that run."""
        run = bisect_right(self.starts, client) - 1
        return run, client - self.starts[run]

    def rows(self, client: int, rows: Rows) -> Any:
        run, number = self.run_of(client)
        found = self.runs[run].rows(number, rows)
        return found if self.names is None else as_given(found, self.names)


@dataclass(frozen=True, kw_only=True)
class JointTraining(Training):
    """The same amount of work in every run, and the randomness of each."""

    clients: JoinedClients
    runs: tuple[Training, ...]

    def key(self, purpose: str, round: int, client: int, *numbers: int) -> int:
        run, number = self.clients.run_of(client)
        return self.runs[run].key(purpose, round, number, *numbers)

    def number_of(self, client: int) -> int:
        return self.clients.run_of(client)[1]

    def epochs_of(self, round: int, client: int, size: int) -> float:
        run, number = self.clients.run_of(client)
        return self.runs[run].epochs_of(round, number, size)


class JointEngine:
    """Trains the clients of several runs as one stack, each as it would be trained in its run alone."""

    def __init__(self, engines: Sequence[StackedEngine]):
        self.engines = engines
        first = engines[0]
        self.clients = JoinedClients([engine.task.clients for engine in engines], first.task.problem.names)
        problem = replace(first.task.problem, clients=self.clients, test=None, tests=None, proxy=None)
        given = first.task
        task = Task(problem, device=given.device, dtype=given.compute, asks=given.asks, start=given.start)
        trainings = tuple(engine.training for engine in engines)
        joint = JointTraining(**vars(first.training), clients=self.clients, runs=trainings)
        self.stacked = StackedEngine(task, first.method, joint)

    def train(self, requests: Mapping[int, RoundRequest]) -> dict[int, list[ClientOutcome]]:
        """Train one round of the runs that ask for it, by number of run; all ask for the same round."""
        (round,) = {request.round for request in requests.values()}
        task = self.stacked.task

        def send(clients: Sequence[int]) -> tuple[State, Tensor, int | None]:
            """Give each client the message and the learning rate of its run."""
            asked = [requests[self.clients.run_of(client)[0]] for client in clients]
            rates = torch.tensor([request.lr for request in asked], dtype=task.dtype, device=task.device)
            return stack([request.message for request in asked]), rates, 0

        clients, states = [], []
        for run, request in requests.items():
            engine = self.engines[run]
            clients += [self.clients.starts[run] + client for client in request.clients]
            states += [client_state(engine.method, engine.task, state) for state in request.states]
        outcomes: dict[int, list[ClientOutcome]] = {run: [] for run in requests}
        before = dict(self.stacked.seconds)
        with explain_by_copies(task):
            trained = self.stacked.train_from(send, round, clients, states)
        for outcome in trained:
            run, number = self.clients.run_of(outcome.client)
            outcomes[run].append(outcome._replace(client=number))
        for name, seconds in self.stacked.seconds.items():
            for run in requests:  # each has its share
                self.engines[run].seconds.add(name, (seconds - before.get(name, 0.0)) / len(requests))
        return outcomes


def joinable(engines: Sequence[StackedEngine]) -> bool:
    """Whether the runs agree in everything that a stack shares."""
    first, *others = engines
    settings, network = stack_settings(first), first.task.problem.model
    return all(
        stack_settings(other) == settings and are_networks_alike(network, other.task.problem.model) for other in others
    )


def stack_settings(engine: StackedEngine) -> tuple[object, ...]:
    """List what all clients of a stack must have in common besides the plain attributes of their network."""
    task, training = engine.task, engine.training
    problem = task.problem
    trained = set(task.initial) | set(task.buffers or ())
    buffers = {} if task.module is None else dict(task.module.named_buffers())
    fixed = digest_tensors({name: buffer for name, buffer in buffers.items() if name not in trained})
    network = (repr(task.module), task.base, fixed, task.initial.layout, task.device, task.compute)
    given = (problem.loss, problem.prepare, problem.classes, problem.names)
    return (*network, *given, engine.method, training.epochs, training.batch_size, training.steps)
