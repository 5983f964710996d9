"""All clients of a round at once: one batch with a client axis, on any device."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import starmap

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.local_step import Lift
from fedkeel.core.method import Method
from fedkeel.core.objective import Loss
from fedkeel.core.round import PhaseWork, local_round, scan_steps
from fedkeel.core.rule import State
from fedkeel.core.trees import Tree, stack
from fedkeel.engines.cost import Clock
from fedkeel.engines.engine import (
    ClientOutcome,
    ScoreRequest,
    Training,
    client_state,
    end_keys,
    mean_scale,
    scale_rates,
    sent_steps,
    stack_facts,
)
from fedkeel.engines.memory import clients_that_fit, data_budget
from fedkeel.engines.rehearsal import rehearse_client
from fedkeel.engines.scoring import Scorer
from fedkeel.engines.stacked.client_mapping import choose_lift, share_constants, unstack
from fedkeel.engines.stacked.early_finishers import drop_finished
from fedkeel.engines.stacked.gradients_stacked import StackedWorkspace, choose_workspace
from fedkeel.engines.stacked.graphs import GraphScan
from fedkeel.engines.stacked.stacked_batches import RowStore, StackedBatch, plan_stack
from fedkeel.problems.gradients import Workspace
from fedkeel.problems.predictions import Scores
from fedkeel.problems.task import Task
from fedkeel.problems.try_objectives import bear_filling
from fedkeel.problems.try_out import FAILURES, explain_by_rows, is_of_device

log = logging.getLogger("fedkeel")


Sender = Callable[[Sequence[int]], tuple[State, Tensor, int | None]]
"""Gives the message to the clients of a stack, the learning rate, and the client axis of both (`local_round`)."""


class StackedEngine:
    """Trains clients together, as many as memory holds; the rest in further stacks.

    `together` sets how many by hand; `lift` replaces the way rules are applied; `general` takes gradients by vmap even
    of networks that have kernels.
    """

    name = "stacked"

    def __init__(
        self,
        task: Task,
        method: Method,
        training: Training,
        *,
        together: int | None = None,
        lift: Lift | None = None,
        general: bool = False,
    ):
        self.task, self.method, self.training = task, method, training
        with explain_by_rows(task):
            self.gradient = StackedWorkspace(task) if general else choose_workspace(task)
            if not bear_filling(task, method):
                self.gradient.separable = self.gradient.report.fills_up = False
        self.workspace = Workspace(task)
        kernels = self.gradient.by_kernels
        self.scorer = Scorer(self.workspace, lowered=kernels and task.compute != task.dtype, stacked=kernels)
        self.store = RowStore(task, data_budget(task.device))
        self.lift = lift or choose_lift(method, task.device)
        self.graphs = GraphScan(self.gradient.separable)
        self.scan = partial(drop_finished, self.graphs if task.device.type == "cuda" else scan_steps)
        self.together, self.described = together, task.module is None
        self.captures = task.device.type == "cuda"  # a number of clients not seen before costs seconds
        self.captured: set[int] = set()  # decides how many copies fill up a stack: a run's checkpoint keeps it
        self.form: State | None = None  # of a client's report
        self.seconds = Clock()

    def train(
        self, message: State, round: int, lr: float, clients: Sequence[int], states: Sequence[State | None]
    ) -> list[ClientOutcome]:
        given = [client_state(self.method, self.task, state) for state in states]
        rate = torch.tensor(lr, dtype=self.task.dtype, device=self.task.device)
        with explain_by_copies(self.task), explain_by_rows(self.task, clients, round):
            return self.train_from(lambda _: (message, rate, None), round, clients, given)

    def train_from(
        self, sender: Sender, round: int, clients: Sequence[int], states: Sequence[State]
    ) -> list[ClientOutcome]:
        known = dict(zip(clients, states, strict=True))
        # neighbours in a stack take about as many steps, so that few of them wait
        order = sorted(clients, key=lambda client: -self.estimate_steps(round, client))
        outcomes: dict[int, ClientOutcome] = {}
        while left := [client for client in order if client not in outcomes]:
            chosen = left[: self.stack_size(len(left))]
            padded = self.pad_to_captured(chosen) if self.captures else chosen
            try:
                trained = self.train_stack(sender, round, padded, [known[client] for client in padded])[: len(chosen)]
            except torch.OutOfMemoryError:
                self.shrink(len(chosen))
                continue
            outcomes |= {outcome.client: outcome for outcome in trained}
            if not self.described and log.isEnabledFor(logging.INFO):  # not while engines are timed
                log.info("%s", self.gradient.report.describe())
                self.described = True
        return [outcomes[client] for client in clients]

    def estimate_steps(self, round: int, client: int) -> float:
        """Estimate how many steps a client takes."""
        size = int(self.task.clients.sizes[client])
        batches = -(-size // self.training.batch_size)
        return self.training.steps or batches * self.training.epochs_of(round, client, size)

    def stack_size(self, wanted: int) -> int:
        """Decide how many clients to stack."""
        if self.together is None:
            self.together = clients_that_fit(self.task, self.method, self.training)
            log.info("stacking up to %d clients", self.together)
        return min(wanted, self.together)

    def pad_to_captured(self, clients: list[int]) -> list[int]:
        """Repeat the last client up to a number of clients that has been captured before, where one is near."""
        most = min(max(len(clients) + 3, len(clients) * 3 // 2), self.together or len(clients))
        size = min((n for n in self.captured if len(clients) <= n <= most), default=len(clients))
        self.captured.add(size)
        return [*clients, *clients[-1:] * (size - len(clients))]

    def shrink(self, tried: int) -> None:
        """Halve the stack; nothing is lost, because a stack changes nothing before it is done."""
        if tried == 1:
            raise
        self.together = tried // 2
        log.warning("%d clients do not fit into memory at once: stacking %d", tried, self.together)
        self.graphs.clear()
        torch.cuda.empty_cache()

    def train_stack(
        self, sender: Sender, round: int, clients: Sequence[int], states: Sequence[State]
    ) -> list[ClientOutcome]:
        began = time.perf_counter()
        message, rate, axis = sender(clients)
        if self.store.hold(clients):
            self.graphs.clear()  # what was captured reads from where rows no longer lie
        phases = [
            plan_stack(self.store, self.training, round, clients, number, phase)
            for number, phase in enumerate(self.method.phases)
        ]
        lengths = list(zip(*((p.sizes > 0).sum(0).tolist() for p in phases), strict=True))
        taken = [sent_steps(self.method, own) for own in lengths]
        alike = {own: scale_rates(self.method, round, own) for own in set(lengths)}
        scales = [alike[own] for own in lengths]
        for steps, of_phase in zip(phases, zip(*scales, strict=True), strict=True):
            steps.set_scales(of_phase)
        means = {own: mean_scale(self.method, own, scale) for own, scale in alike.items()}
        rates = rate.expand(len(clients)) * rate.new_tensor([means[own] for own in lengths])
        facts = stack_facts(self.task, clients, taken, rates, [*map(self.training.number_of, clients)])
        if self.form is None:
            one = message if axis is None else unstack(message, 1, copy=False)[0]
            self.form = rehearse_client(self.method, self.task, one, states[0]).report
        told = [name for name in facts if name in states[0]]  # a new client's slot may have another shape than the fact
        state = stack([one | {name: facts[name][i] for name in told} for i, one in enumerate(states)])
        self.seconds.add("data", time.perf_counter() - began)
        began = time.perf_counter()
        ends = [
            end_keys(self.method, self.training, round, clients, number, of_phase, self.task.device)
            for number, of_phase in enumerate(zip(*lengths, strict=True))
        ]
        work = [PhaseWork(steps, steps.shares, key, steps.padded) for steps, key in zip(phases, ends, strict=True)]
        report, state = local_round(
            self.method, self.gradient, message, state, work, rate, facts, lift=self.lift, scan=self.scan,
            message_axis=axis
        )  # fmt: skip
        report = share_constants(report, self.form, len(clients))
        reports, states = unstack(report, len(clients), copy=False), unstack(state, len(clients), copy=True)
        outcomes = [ClientOutcome(*given) for given in zip(clients, reports, states, strict=True)]
        self.seconds.add("training", time.perf_counter() - began)
        return outcomes

    def evaluate(self, params: Tree, buffers: Tree | None, split: str) -> list[Scores]:
        if self.task.device.type == "cuda":
            return self.scorer(params, buffers, split)
        return [self.workspace.score(params, buffers, part) for part in self.task.parts(split)]

    def evaluate_many(self, models: Iterable[ScoreRequest]) -> list[list[Scores]]:
        return self.scorer.many(models) if self.task.device.type == "cuda" else list(starmap(self.evaluate, models))

    def close(self) -> None:
        pass


def describe_network(task: Task) -> dict[str, str]:
    """Say which functions of a network run stacked, by a pass of two clients with the first samples of one."""
    workspace = choose_workspace(task)
    if not workspace.by_kernels:
        client = int(task.clients.sizes.argmax())
        one = task.batch(client, np.arange(min(2, int(task.clients.sizes[client])))).tensors
        batch = StackedBatch(tuple(torch.stack([part, part]) for part in one), None, (len(one[0]),) * 2)
        if task.stochastic:
            batch = batch._replace(noise=torch.zeros(2, dtype=torch.int64, device=task.device))
        buffers = None if task.buffers is None else task.buffers.expand(2)
        workspace(task.initial.expand(2), batch, Loss(), {}, buffers)
    return workspace.report.lines()


@contextmanager
def explain_by_copies(task: Task) -> Iterator[None]:
    """Where training fails, refuse a network that cannot be stacked for copies of one client either.

    A function that gives each client another shape, such as `pack_padded_sequence`, fails without saying why.
    """
    try:
        yield
    except FAILURES as error:
        if not is_of_device(error):
            with suppress(*FAILURES):
                describe_network(task)
        raise
