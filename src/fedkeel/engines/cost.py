"""What a round costs: seconds, backward passes, and what travels."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedkeel.core.contract import FACTS
from fedkeel.core.method import Method
from fedkeel.core.rule import State
from fedkeel.core.trees import Tree
from fedkeel.engines.engine import Training
from fedkeel.problems.task import Task


class Clock(dict[str, float]):
    """Adds up seconds by part of the work: `clock.add("data", 0.1)`; parts never added are zero."""

    def __missing__(self, part: str) -> float:
        return 0.0

    def add(self, part: str, seconds: float) -> None:
        self[part] = self[part] + seconds

    def merge(self, other: Mapping[str, float]) -> None:
        for part, seconds in other.items():
            self.add(part, seconds)

    def take(self) -> dict[str, float]:
        """Return what was counted since the last call, and start anew."""
        counted = dict(self)
        self.clear()
        return counted


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
    size = task.epoch_size(client, training.batch_size)
    return sum(p.backward_passes * training.steps_of(p, round, client, size) for p in method.phases)
