"""What messages, reports and states of a method look like, found by a round in which no gradient is taken."""

from __future__ import annotations

from fedkeel.core.method import Method
from fedkeel.core.round import init_client
from fedkeel.engines.cost import sent
from fedkeel.engines.rehearsal import Rehearsed, rehearse_client
from fedkeel.problems.task import Task


def expected(method: Method, task: Task) -> Rehearsed:
    """A node cannot make the server reserve memory: what it may send is known before it sends anything."""
    message, report, _ = rehearse_client(method, task)
    return Rehearsed(sent(method, message), report, init_client(method, task.initial, task.buffers))
