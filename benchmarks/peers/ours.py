"""fedkeel on the same work: whole rounds, with selection, aggregation and the server's step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from peers.workload import Work
from torch import nn

from fedkeel.core.method import Method
from fedkeel.core.round import broadcast, init_server, server_round
from fedkeel.core.trees import stack
from fedkeel.engines.engine import Engine, Training
from fedkeel.methods import build
from fedkeel.problems.problem import Problem
from fedkeel.problems.task import Task
from fedkeel.runs.participation import Participation
from fedkeel.runs.prepare import cross_entropy

Make = Callable[[Task, Method, Training], Engine]


class Ours:
    """`rounds(n)` trains n rounds more by the engine that `make` makes."""

    def __init__(self, work: Work, make: Make, device: str = "cpu", dtype: torch.dtype = torch.float32):
        self.work, self.lr, self.done = work, work.lr, 0
        problem = Problem(model=work.module(), loss=cross_entropy, clients=work.data())
        self.task, self.method = Task(problem, device=device, dtype=dtype), build("fedavg")
        self.engine = make(self.task, self.method, Training(0, 1, work.batch))
        self.server = init_server(self.method, self.task.initial, self.task.buffers)
        self.chosen = Participation(0, self.task.clients.sizes, work.selected / work.clients)
        self.population = torch.tensor(float(work.clients), device=device)

    def rounds(self, count: int) -> None:
        for _ in range(count):
            selected = self.chosen.selected(self.done)
            message = broadcast(self.method, self.server)
            outcomes = self.engine.train(message, self.done, self.lr, selected, [None] * len(selected))
            reports = stack([outcome.report for outcome in outcomes]) | {"population": self.population}
            self.server = server_round(self.method, self.server, reports)
            self.done += 1

    @property
    def module(self) -> nn.Module:
        """The server's model."""
        module = self.work.module().to(self.task.device)
        module.load_state_dict(self.server["params"].named())
        return module
