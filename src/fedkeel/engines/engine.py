"""What an engine is: it trains the clients of a round and scores models. It never imports a rule or a method."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.client_epochs import ClientEpochs
from fedkeel.core.method import Method, Phase
from fedkeel.core.round import init_client
from fedkeel.core.rule import State
from fedkeel.core.trees import Tree, all_finite
from fedkeel.data.batches import plan_clients
from fedkeel.data.clients import Rows
from fedkeel.errors import RunError
from fedkeel.problems.predictions import Scores
from fedkeel.problems.task import Task
from fedkeel.randomness import key, uniforms


@dataclass(frozen=True)
class Training:
    """How much local work a client does: so many epochs, a share of one included, or so many steps."""

    seed: int
    epochs: float | tuple[int, int] | ClientEpochs
    batch_size: int
    steps: int | None = None

    def key(self, purpose: str, round: int, client: int, *numbers: int) -> int:
        """Return the key of a client's randomness."""
        return key(self.seed, purpose, round, client, *numbers)

    def number_of(self, client: int) -> int:
        """Return the client's number in its run."""
        return client

    def epochs_of(self, round: int, client: int, size: int) -> float:
        """Return the client's local epochs in a round: fixed, its own, or drawn from a range (stragglers do fewer)."""
        if isinstance(self.epochs, ClientEpochs):
            return self.epochs.of(client, size)
        if not isinstance(self.epochs, tuple):
            return self.epochs
        low, high = self.epochs
        draw = float(uniforms(self.key("epochs", round, client), 1)[0])
        return low + int(draw * (high - low + 1))

    def steps_of(self, phase: Phase, round: int, client: int, size: int) -> int:
        """Return the steps of a phase of a client with so many samples in an epoch."""
        return phase.count_steps(size, self.batch_size, self.epochs_of(round, client, size), self.steps)


class KeptState(dict[str, Any]):
    """A client's state that stays where the client was trained, until `fetch` reads it: empty here, but not nothing."""

    def __init__(self, fetch: Callable[[], State], nbytes: int, is_finite: bool):
        super().__init__()
        self.fetch, self.nbytes, self.is_finite = fetch, nbytes, is_finite

    def __bool__(self) -> bool:
        return True

    def __missing__(self, slot: str) -> Any:
        raise TypeError(f"{slot} lies elsewhere: fetch the state first")


class StatesLost(RunError):
    """Kept states are gone with the machine they lay on: the run goes back to its last checkpoint."""


class ClientOutcome(NamedTuple):
    """What a client sends and what it remembers after a round."""

    client: int
    report: State
    state: State

    @property
    def is_finite(self) -> bool:
        """Whether every number of both is finite."""
        kept = self.state.is_finite if isinstance(self.state, KeptState) else all_finite(self.state)
        return kept and all_finite(self.report)


class RoundRequest(NamedTuple):
    """One round's work for an engine: the server's message, the clients, and what each of them remembers."""

    message: State
    round: int
    lr: float
    clients: Sequence[int]
    states: Sequence[State | None]


class ScoreRequest(NamedTuple):
    """A model to be scored, and the split it is scored on."""

    params: Tree
    buffers: Tree | None
    split: str


class Engine(Protocol):
    """The contract; `train` may finish clients in any order, but returns them in the order they were asked for.

    An engine that scores several models faster than one by one also has `evaluate_many`, see `evaluate_all`. One of a
    user's own is a class that is made of (task, method, training): what is learned, from what rules, and how much.
    """

    name: str

    def train(
        self, message: State, round: int, lr: float, clients: Sequence[int], states: Sequence[State | None]
    ) -> list[ClientOutcome]:
        """Train these clients by `local_round`, and return what each sends and remembers, in the order of `clients`.

        `message` is what the server sends to all of them, never written into; `round` counts from 0 and keys all
        randomness; `lr` is the round's rate; `states` are what the clients remember, None before they first take part.
        """
        ...

    def evaluate(self, params: Tree, buffers: Tree | None, split: str) -> list[Scores]:
        """Score a model on each part of a split (`task.parts(split)`), in their order.

        `split` is "test", "validation" or a client's own test set; `buffers` are the model's running statistics, None
        for models without.
        """
        ...

    def close(self) -> None:
        """Let go of processes and memory; called once, at the end."""
        ...


def evaluate_all(engine: Engine, models: Iterable[ScoreRequest]) -> list[list[Scores]]:
    """Score several models; `models` may make each when it is asked for, and need not keep it."""
    many: Callable[[Iterable[ScoreRequest]], list[list[Scores]]] | None = getattr(engine, "evaluate_many", None)
    return list(starmap(engine.evaluate, models)) if many is None else many(models)


def stack_facts(
    task: Task, clients: Sequence[int], steps: Sequence[int], lr: Tensor, numbers: Sequence[int] | None = None
) -> State:
    """Gather what the server knows of clients without a rule's report; `lr` has one rate for each.

    `numbers` are those that the clients have in their runs, where they are others than in the task.
    """

    def column(values: Iterable[float]) -> Tensor:
        return lr.new_tensor([float(value) for value in values])

    facts = {"size": column(task.clients.sizes[client] for client in clients), "steps": column(steps), "lr": lr}
    if "client" in task.asks:
        facts["client"] = column(clients if numbers is None else numbers)
    if "histogram" in task.asks:
        facts["histogram"] = torch.stack([task.histogram(client).to(lr) for client in clients])
    return facts


def client_facts(task: Task, client: int, steps: int, lr: Tensor) -> State:
    """Gather the same of one client."""
    return {name: fact[0] for name, fact in stack_facts(task, [client], [steps], lr.reshape(1)).items()}


def plan_rows(task: Task, training: Training, round: int, client: int, number: int, phase: Phase) -> list[Rows]:
    """Choose the rows of its data that a client sees in each step of phase `number`."""
    return plan_rows_of_each(task, training, round, [client], number, phase)[0]


def plan_rows_of_each(
    task: Task, training: Training, round: int, clients: Sequence[int], number: int, phase: Phase
) -> list[list[Rows]]:
    """Do the same for several clients, those with as many samples at once."""
    alike: dict[tuple[int, int, int], list[int]] = {}
    for client in clients:
        size, taken = int(task.clients.sizes[client]), task.epoch_size(client, training.batch_size)
        alike.setdefault((size, taken, training.steps_of(phase, round, client, taken)), []).append(client)
    plans: dict[int, list[Rows]] = {}
    for (size, taken, steps), members in alike.items():
        keys = [training.key("batches", round, client, number) for client in members]
        planned = plan_clients(keys, size, training.batch_size, steps, taken)
        plans |= zip(members, planned, strict=True)
    return [plans[client][:1] * len(plans[client]) if phase.same_batch else plans[client] for client in clients]


def sent_steps(method: Method, lengths: Sequence[int]) -> int:
    """Count K_i: the steps that move the model which the client sends."""
    return sum(n for phase, n in zip(method.phases, lengths, strict=True) if phase.trains and phase.uploads)


def scale_rates(method: Method, round: int, lengths: Sequence[int]) -> list[list[float] | None]:
    """By what the rate is multiplied in the steps of each phase of so many steps; None where it does not change.

    Steps that move the model which is sent are counted through all such phases, others within their own.
    """
    scales: list[list[float] | None] = []
    total, taken = sent_steps(method, lengths), 0
    for phase, steps in zip(method.phases, lengths, strict=True):
        is_sent = phase.trains and phase.uploads
        first, of = (taken, total) if is_sent else (0, steps)
        taken += steps if is_sent else 0
        varies = phase.varies_rate
        scales.append([phase.scale_rate(round, (first + k) / of) for k in range(steps)] if varies else None)
    return scales


def mean_scale(method: Method, lengths: Sequence[int], scales: Sequence[list[float] | None]) -> float:
    """By what the mean rate of the K_i steps that are sent differs from the round's."""
    sent = [
        ([1.0] * steps if scale is None else scale)
        for phase, steps, scale in zip(method.phases, lengths, scales, strict=True)
        if phase.trains and phase.uploads
    ]
    return math.fsum(one for scale in sent for one in scale) / max(1, sum(map(len, sent)))


def known_facts(method: Method, task: Task, training: Training, round: int, lr: float, client: int) -> State:
    """Compute the facts of a client's round without its data: what a server need not ask a node for."""
    taken = task.epoch_size(client, training.batch_size)
    lengths = [training.steps_of(phase, round, client, taken) for phase in method.phases]
    rate = torch.tensor(lr, dtype=task.dtype, device=task.device)
    mean = rate * mean_scale(method, lengths, scale_rates(method, round, lengths))
    return client_facts(task, client, sent_steps(method, lengths), mean)


def client_state(method: Method, task: Task, state: State | None) -> State:
    """Return a client's state, from wherever it stays, or the initial one of a client that has never taken part."""
    if isinstance(state, KeptState):
        return state.fetch()
    return init_client(method, task.initial, task.buffers) if state is None else state


def step_keys(
    training: Training, round: int, client: int, phase: int, steps: int, device: torch.device | None = None
) -> Tensor:
    """One key per step, for rules that are random: they draw on the device where their key lies."""
    keys = [training.key("rule", round, client, phase, step) for step in range(steps)]
    return torch.as_tensor(np.asarray(keys, dtype=np.int64), device=device)


def end_keys(
    method: Method, training: Training, round: int, clients: Sequence[int], phase: int, steps: Sequence[int],
    device: torch.device,
) -> Tensor | None:  # fmt: skip
    """One key per client for `finish`, that of the step after its last; None where no rule draws there."""
    if not any(rule.random and "finish" in rule.stages for rule in method.local_rules):
        return None
    keys = [training.key("rule", round, client, phase, last) for client, last in zip(clients, steps, strict=True)]
    return torch.as_tensor(np.asarray(keys, dtype=np.int64), device=device)
