"""What a round cost, and whether its numbers are numbers."""

from __future__ import annotations

import math

from fedkeel.core.contract import FACTS
from fedkeel.core.method import Method
from fedkeel.core.rule import State
from fedkeel.core.trees import Tree
from fedkeel.data.batches import count_steps
from fedkeel.engines.engine import Training
from fedkeel.problems.task import Task


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def uploaded(report: State) -> State:
    """What a client sends, without the facts that the server knows or that weigh nothing."""
    return {name: slot for name, slot in report.items() if name == "delta" or name not in FACTS}


def sent(method: Method, message: State) -> State:
    """What of a message travels."""
    return message | {"params": method.travels(message["params"])}


def whole(message: State, initial: Tree) -> State:
    """What was sent, with the private layers as the server has them: as they were first made."""
    return message | {"params": initial | message["params"]}


def passes(method: Method, training: Training, task: Task, round: int, client: int) -> int:
    """Backward passes of one client in one round, as declared."""
    size, epochs = task.epoch_size(client, training.batch_size), training.epochs_of(round, client)
    return sum(
        p.backward_passes * count_steps(size, training.batch_size, epochs, p.batches_of(size, training.batch_size))
        for p in method.phases
    )
