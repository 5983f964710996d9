"""The form of a method's messages, reports and states, found by a round without gradients."""

from __future__ import annotations

from fedkeel.core.method import Method
from fedkeel.core.round import init_client
from fedkeel.engines.cost import sent
from fedkeel.engines.rehearsal import Rehearsal, rehearse_client
from fedkeel.problems.task import Task


def expected_messages(method: Method, task: Task) -> Rehearsal:
    """Return the form of what nodes may send, known in advance, so that no node can make the server reserve memory."""
    message, report, _ = rehearse_client(method, task)
    return Rehearsal(sent(method, message), report, init_client(method, task.initial, task.buffers))
