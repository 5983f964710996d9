"""All clients of a round at once: one batch with a client axis, on any device."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import starmap

import torch
from torch import Tensor

from fedkeel.core.method import Method
from fedkeel.core.round import Lift, PhaseWork, local_round, scan_steps
from fedkeel.core.rule import State
from fedkeel.core.trees import Tree, stack, unstack
from fedkeel.engines.clock import Clock
from fedkeel.engines.engine import Model, Outcome, Training, facts_of, state_of, uploaded_steps
from fedkeel.engines.memory import clients_that_fit, data_budget
from fedkeel.engines.scoring import Scorer
from fedkeel.engines.stacked.client_mapping import lift_for, spread
from fedkeel.engines.stacked.early_finishers import Dropping
from fedkeel.engines.stacked.gradients_stacked import StackedWorkspace, workspace_for
from fedkeel.engines.stacked.graphs import GraphScan
from fedkeel.engines.stacked.stacked_batches import Steps, Store, steps_of
from fedkeel.problems.gradients import Workspace
from fedkeel.problems.task import Scores, Task

log = logging.getLogger("fedkeel")


Sender = Callable[[Sequence[int], Task], tuple[State, Tensor, int | None]]
"""What the clients of a stack are sent, the learning rate, and the client axis of both (see `local_round`)."""


@dataclass(frozen=True)
class Shared:
    """One message for all."""

    message: State
    lr: float

    def __call__(self, clients: Sequence[int], task: Task) -> tuple[State, Tensor, int | None]:
        return self.message, torch.tensor(self.lr, dtype=task.dtype, device=task.device), None


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
        self.gradient = StackedWorkspace(task) if general else workspace_for(task)
        self.workspace = Workspace(task)
        kernels = self.gradient.by_kernels
        self.scorer = Scorer(self.workspace, lowered=kernels and task.compute != task.dtype, stacked=kernels)
        self.store = Store(task, data_budget(task.device))
        self.lift = lift or lift_for(method, task.device)
        self.graphs = GraphScan(self.gradient.separable)
        self.scan = Dropping(self.graphs if task.device.type == "cuda" else scan_steps)
        self.together = together
        self.captures = task.device.type == "cuda"  # a number of clients not seen before costs seconds
        self.captured: set[int] = set()
        self.seconds = Clock()

    def train(
        self, message: State, round: int, lr: float, clients: Sequence[int], states: Sequence[State | None]
    ) -> list[Outcome]:
        given = [state_of(self.method, self.task, state) for state in states]
        return self.train_from(Shared(message, lr), round, clients, given)

    def train_from(self, sender: Sender, round: int, clients: Sequence[int], states: Sequence[State]) -> list[Outcome]:
        known = dict(zip(clients, states, strict=True))
        # neighbours in a stack take about as many steps, so that few of them wait
        order = sorted(clients, key=lambda client: -self.steps(round, client))
        outcomes: dict[int, Outcome] = {}
        while left := [client for client in order if client not in outcomes]:
            some = left[: self.fitting(len(left))]
            wide = self.widened(some) if self.captures else some
            try:
                found = self.train_stack(sender, round, wide, [known[client] for client in wide])[: len(some)]
            except torch.OutOfMemoryError:
                self.shrink(len(some))
                continue
            outcomes |= {outcome.client: outcome for outcome in found}
        return [outcomes[client] for client in clients]

    def steps(self, round: int, client: int) -> int:
        """About how many steps a client takes."""
        batches = -(-int(self.task.clients.sizes[client]) // self.training.batch_size)
        return batches * self.training.epochs_of(round, client)

    def fitting(self, wanted: int) -> int:
        """How many clients to stack."""
        if self.together is None:
            self.together = clients_that_fit(self.task, self.method, self.training)
            log.info("stacking up to %d clients", self.together)
        return min(wanted, self.together)

    def widened(self, clients: list[int]) -> list[int]:
        """Clients filled up with the last of them to a number that has been captured before, where one is near."""
        most = min(max(len(clients) + 3, len(clients) * 3 // 2), self.together or len(clients))
        size = min((n for n in self.captured if len(clients) <= n <= most), default=len(clients))
        self.captured.add(size)
        return [*clients, *clients[-1:] * (size - len(clients))]

    def shrink(self, tried: int) -> None:
        """Half as many: nothing is lost, for a stack changes nothing before it is done."""
        if tried == 1:
            raise
        self.together = tried // 2
        log.warning("%d clients do not fit into memory at once: stacking %d", tried, self.together)
        self.graphs.clear()
        torch.cuda.empty_cache()

    def train_stack(self, sender: Sender, round: int, clients: Sequence[int], states: Sequence[State]) -> list[Outcome]:
        began = time.perf_counter()
        message, rate, sent = sender(clients, self.task)
        if self.store.hold(clients):
            self.graphs.clear()  # what was captured reads from where rows no longer lie
        phases = [
            steps_of(self.store, self.training, round, clients, number, phase)
            for number, phase in enumerate(self.method.phases)
        ]
        taken = [
            uploaded_steps(self.method, [int((p.sizes[:, c] > 0).sum()) for p in phases]) for c in range(len(clients))
        ]
        rates = rate.expand(len(clients))
        facts = stack([facts_of(self.task, *given) for given in zip(clients, taken, rates, strict=True)])
        state = stack(list(states))
        self.seconds.add("data", time.perf_counter() - began)
        began = time.perf_counter()
        work = [stretch(steps) for steps in phases]
        report, state = local_round(
            self.method,
            self.gradient,
            message,
            state,
            work,
            rate,
            facts,
            lift=self.lift,
            scan=self.scan,
            message_axis=sent,
        )
        report, state = spread(report, len(clients)), spread(state, len(clients))
        outcomes = [Outcome(client, unstack(report, i), unstack(state, i)) for i, client in enumerate(clients)]
        self.seconds.add("training", time.perf_counter() - began)
        return outcomes

    def evaluate(self, params: Tree, buffers: Tree | None, split: str) -> list[Scores]:
        if self.task.device.type == "cuda":
            return self.scorer(params, buffers, split)
        return [self.workspace.score(params, buffers, part) for part in self.task.parts(split)]

    def evaluate_many(self, models: Iterable[Model]) -> list[list[Scores]]:
        return self.scorer.many(models) if self.task.device.type == "cuda" else list(starmap(self.evaluate, models))

    def close(self) -> None:
        pass


def stretch(steps: Steps) -> PhaseWork:
    return PhaseWork(steps, steps.shares, steps.padded)
