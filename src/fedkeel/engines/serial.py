"""One client after another: the reference for every other engine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedkeel.core.local_step import Gradient, StepInput
from fedkeel.core.method import Method, Phase
from fedkeel.core.objective import Objective
from fedkeel.core.round import PhaseWork, local_round
from fedkeel.core.rule import State
from fedkeel.core.stacking import Stacking
from fedkeel.core.trees import Tree
from fedkeel.data.batches import sample_keys
from fedkeel.data.clients import Rows
from fedkeel.engines.cost import Clock
from fedkeel.engines.engine import (
    ClientOutcome,
    Training,
    client_facts,
    client_state,
    end_keys,
    mean_scale,
    plan_rows,
    scale_rates,
    sent_steps,
    step_keys,
)
from fedkeel.engines.machine import keep_large_buffers
from fedkeel.problems.gradients import Workspace
from fedkeel.problems.predictions import Scores
from fedkeel.problems.task import Batch, Task
from fedkeel.problems.try_out import explain_by_rows
from fedkeel.randomness import key


class SerialEngine:
    """Trains clients in the calling process."""

    name = "serial"

    def __init__(self, task: Task, method: Method, training: Training):
        self.task, self.method, self.training = task, method, training
        self.workspace = Workspace(task)
        if task.initial.buffer.nbytes > 32 << 20:
            keep_large_buffers()
        self.seconds = Clock()  # by part of the work
        self.counters = torch.arange(64).unbind()
        self.no_key = torch.zeros((), dtype=torch.int64)

    def train(
        self, message: State, round: int, lr: float, clients: Sequence[int], states: Sequence[State | None]
    ) -> list[ClientOutcome]:
        outcomes, reports = [], Stacking(len(clients), self.method)
        for i, (client, state) in enumerate(zip(clients, states, strict=True)):
            with explain_by_rows(self.task, [client], round):
                outcome = self.train_one(message, round, lr, client, state)
            outcomes.append(outcome._replace(report=reports.put(i, outcome.report)))
        return outcomes

    def train_one(self, message: State, round: int, lr: float, client: int, state: State | None) -> ClientOutcome:
        rate = torch.tensor(lr, dtype=self.task.dtype, device=self.task.device)
        began, spent = time.perf_counter(), self.seconds["data"] + self.seconds["gradients"]
        phases, task, training = self.method.phases, self.task, self.training
        plans = [plan_rows(task, training, round, client, i, phase) for i, phase in enumerate(phases)]
        lengths = [len(rows) for rows in plans]
        scales = scale_rates(self.method, round, lengths)
        mean = rate * mean_scale(self.method, lengths, scales)
        facts = client_facts(self.task, client, sent_steps(self.method, lengths), mean)
        work = []
        for i, phase in enumerate(phases):
            sizes = rate.new_tensor([float(len(rows)) for rows in plans[i]])
            inputs = self.step_inputs(round, client, i, phase, plans[i], scales[i])
            keys = end_keys(self.method, training, round, [client], i, [lengths[i]], task.device)
            work.append(PhaseWork(inputs, sizes / sizes.sum(), None if keys is None else keys[0]))
        state = client_state(self.method, self.task, state)
        report, state = local_round(self.method, self.gradient, message, state, work, rate, facts)
        spent = self.seconds["data"] + self.seconds["gradients"] - spent
        self.seconds.add("rules", time.perf_counter() - began - spent)
        return ClientOutcome(client, report, state)

    def step_inputs(
        self, round: int, client: int, index: int, phase: Phase, plan: list[Rows], scales: list[float] | None
    ) -> Iterator[StepInput]:
        """Make the inputs of a phase's steps one at a time, as they are used."""
        of = key(self.training.seed, "samples", round, client, index)
        random = self.task.needs_keys or any(rule.random for rule in phase.rules)
        keys = step_keys(self.training, round, client, index, len(plan), self.task.device) if random else None
        by = None if scales is None else torch.tensor(scales, dtype=self.task.dtype, device=self.task.device)
        for step, rows in enumerate(plan):
            began = time.perf_counter()
            seeds = sample_keys(of, step, rows) if self.task.augments else None
            seed = key(of, "module", step) if self.task.stochastic else None
            noise = keys[step] if self.task.needs_keys and keys is not None else None
            batch = self.task.batch(client, rows, seeds, seed, noise)
            self.seconds.add("data", time.perf_counter() - began)
            scale = None if by is None else by[step]
            yield StepInput(batch, self.counter(step), self.no_key if keys is None else keys[step], None, scale)

    def counter(self, step: int) -> Tensor:
        if step >= len(self.counters):
            self.counters = torch.arange(2 * step).unbind()
        return self.counters[step]

    def gradient(
        self, params: Tree, batch: Batch, objective: Objective, message: State, buffers: Tree | None
    ) -> Gradient:
        began = time.perf_counter()
        result = self.workspace(params, batch, objective, message, buffers)
        self.seconds.add("gradients", time.perf_counter() - began)
        return result

    def evaluate(self, params: Tree, buffers: Tree | None, split: str) -> list[Scores]:
        return [self.workspace.score(params, buffers, part) for part in self.task.parts(split)]

    def close(self) -> None:
        pass
