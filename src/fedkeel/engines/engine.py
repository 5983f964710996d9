"""What an engine is: it trains the clients of a round and scores models. It never imports a rule or a method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.method import Method, Phase
from fedkeel.core.round import init_client
from fedkeel.core.rule import State
from fedkeel.core.trees import Tree
from fedkeel.data.batches import plan_batches
from fedkeel.data.clients import Rows
from fedkeel.problems.task import Scores, Task
from fedkeel.randomness import key, uniforms


@dataclass(frozen=True)
class Training:
    """How much local work a client does."""

    seed: int
    epochs: int | tuple[int, int]
    batch_size: int

    def key(self, purpose: str, round: int, client: int, *numbers: int) -> int:
        """What a client's randomness hangs on."""
        return key(self.seed, purpose, round, client, *numbers)

    def epochs_of(self, round: int, client: int) -> int:
        """The client's local epochs in this round: fixed, or drawn from a range (stragglers do fewer)."""
        if isinstance(self.epochs, int):
            return self.epochs
        low, high = self.epochs
        draw = float(uniforms(self.key("epochs", round, client), 1)[0])
        return low + int(draw * (high - low + 1))


class Outcome(NamedTuple):
    """What a client sends and what it remembers."""

    client: int
    report: State
    state: State


class Request(NamedTuple):
    """One round's work for an engine: what the server sends, to whom, and what each of them remembers."""

    message: State
    round: int
    lr: float
    clients: Sequence[int]
    states: Sequence[State | None]


class Model(NamedTuple):
    """What is to be scored, and on what."""

    params: Tree
    buffers: Tree | None
    split: str


class Engine(Protocol):
    """The contract; `train` may finish clients in any order, but returns them in the order they were asked for.

    An engine that scores several models faster than one by one also has `evaluate_many`, see `evaluated`.
    """

    name: str

    def train(
        self, message: State, round: int, lr: float, clients: Sequence[int], states: Sequence[State | None]
    ) -> list[Outcome]: ...

    def evaluate(self, params: Tree, buffers: Tree | None, split: str) -> list[Scores]: ...

    def close(self) -> None: ...


def evaluated(engine: Engine, models: Iterable[Model]) -> list[list[Scores]]:
    """Scores of several models; `models` may make each as it is asked for, and need not keep it."""
    many: Callable[[Iterable[Model]], list[list[Scores]]] | None = getattr(engine, "evaluate_many", None)
    return list(starmap(engine.evaluate, models)) if many is None else many(models)


def facts_of(task: Task, client: int, steps: int, lr: Tensor) -> State:
    """What the server knows of a client without being told by a rule."""
    size = float(task.clients.sizes[client])
    known = {"size": lr.new_tensor(size), "steps": lr.new_tensor(float(steps)), "lr": lr}
    if "client" in task.asks:
        known["client"] = lr.new_tensor(float(client))
    return known | ({"histogram": task.histogram(client).to(lr)} if "histogram" in task.asks else {})


def planned(task: Task, training: Training, round: int, client: int, number: int, phase: Phase) -> list[Rows]:
    """Which rows of its data a client sees in each step of phase `number`."""
    size, epochs = int(task.clients.sizes[client]), training.epochs_of(round, client)
    of = training.key("batches", round, client, number)
    taken = task.epoch_size(client, training.batch_size)
    rows = plan_batches(of, size, training.batch_size, epochs, phase.batches_of(taken, training.batch_size), taken)
    return rows[:1] * len(rows) if phase.same_batch else rows


def uploaded_steps(method: Method, lengths: Sequence[int]) -> int:
    """K_i: the steps that move the model the client sends."""
    return sum(n for phase, n in zip(method.phases, lengths, strict=True) if phase.trains and phase.uploads)


def state_of(method: Method, task: Task, state: State | None) -> State:
    """A client's state, or that of one who has never taken part."""
    return init_client(method, task.initial, task.buffers) if state is None else state


def step_keys(
    training: Training, round: int, client: int, phase: int, steps: int, device: torch.device | None = None
) -> Tensor:
    """One key per step, for rules that are random: they draw on the device where their key lies."""
    keys = [training.key("rule", round, client, phase, step) for step in range(steps)]
    return torch.as_tensor(np.asarray(keys, dtype=np.int64), device=device)
