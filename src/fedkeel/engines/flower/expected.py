"""What messages, reports and states of a method look like, found by a round in which no gradient is taken."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from fedkeel.accounting import sent
from fedkeel.engines.engine import facts_of
from fedkeel.method import Method
from fedkeel.objectives import Objective
from fedkeel.round import Gradient, Moment, Stretch, broadcast, init_client, init_server, local_round
from fedkeel.rule import State
from fedkeel.task import Task
from fedkeel.trees import Tree


class Expected(NamedTuple):
    """One of each, with the right slots, layouts and types; the numbers mean nothing."""

    message: State
    report: State
    state: State


def expected(method: Method, task: Task) -> Expected:
    """A node cannot make the server reserve memory: what it may send is known before it sends anything."""
    message = broadcast(method, init_server(method, task.initial, task.buffers))
    state = init_client(method, task.initial, task.buffers)
    lr = torch.ones((), dtype=task.dtype, device=task.device)
    nothing = torch.zeros((), dtype=torch.int64)
    work = [Stretch([Moment(None, nothing, nothing)], torch.ones(1).to(lr)) for _ in method.phases]
    facts = facts_of(task, int(task.clients.sizes.argmax()), 1, lr)
    report, _ = local_round(method, _still, message, state, work, lr, facts)
    return Expected(sent(method, message), report, state)


def _still(params: Tree, batch: Any, objective: Objective, message: State, buffers: Tree | None) -> Gradient:
    return Gradient(params.zeros(), params.scalar(), buffers)
