"""Engines that hand clients out to workers: the same for child processes and for a Ray cluster.

Reports are combined in client order, so the result depends neither on who trained whom nor on who finished first.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar, Protocol

import cloudpickle
import torch

from fedkeel.core.method import Method
from fedkeel.core.rule import State
from fedkeel.core.stacking import Stacking
from fedkeel.core.trees import Tree
from fedkeel.engines.cost import Clock, passes
from fedkeel.engines.engine import ClientOutcome, Engine, ScoreRequest, Training
from fedkeel.engines.measure import Job
from fedkeel.engines.serial import SerialEngine
from fedkeel.engines.stacked.engine import StackedEngine
from fedkeel.engines.worker import unpack
from fedkeel.errors import RunError
from fedkeel.problems.predictions import Scores
from fedkeel.problems.task import Part, Task

ATTEMPTS = 4  # that a piece of work is begun when its worker dies


class WorkerDied(RunError):
    """What comes instead of an answer when a worker dies that can be replaced."""


class Crew(Protocol):
    """Workers (`worker.Desk`) and how they are reached."""

    size: int

    def set_up(self, number: int, engine: bytes) -> None:
        """Have every worker make an engine, in place of any earlier one of that number."""

    def share(self, message: State) -> Any:
        """Bring a round's message to all workers; what requests name it by."""

    def lend(self, state: State | Tree | None) -> Any:
        """Make a state or a model ready to travel with requests."""

    def place_of(self, state: State | None) -> Any:
        """Where a state lies, if its client had better be trained there."""

    def find_free(self) -> dict[int, Any]:
        """Find the workers that wait for a request, and the place of each."""

    def ask(self, worker: int, kind: str, payload: Sequence[Any]) -> None:
        """Send a free worker a request."""

    def wait(self) -> list[tuple[int, Any]]:
        """Wait for workers; return those that were asked and have answered, or died and are replaced."""

    def close(self) -> None: ...


def spread(
    crew: Crew, kind: str, payloads: Sequence[Sequence[Any]], places: Sequence[Any] = ()
) -> Iterator[tuple[int, Any]]:
    """Give payloads to workers as they become free, those that lie there first; yield answers as they come.

    The payload of a worker that dies is given to another, a few times; then `WorkerDied` is its answer.
    """
    waiting, busy, deaths = list(range(len(payloads))), dict[int, int](), Counter[int]()
    while waiting or busy:
        for worker, place in crew.find_free().items() if waiting else ():
            if not waiting:
                break
            near = (piece for piece in waiting if places and place is not None and places[piece] == place)
            busy[worker] = next(near, waiting[0])
            waiting.remove(busy[worker])
            crew.ask(worker, kind, payloads[busy[worker]])
        for worker, answer in crew.wait():
            piece = busy.pop(worker)
            deaths[piece] += isinstance(answer, WorkerDied)
            if isinstance(answer, WorkerDied) and deaths[piece] < ATTEMPTS:
                waiting.insert(0, piece)
            else:
                yield piece, answer


def deal(costs: Sequence[float], shares: int) -> list[list[int]]:
    """Divide pieces of work into so many shares of about equal cost, the longest first; none of them is empty.

    It follows from the costs alone: who is stacked with whom does not depend on what happened before.
    """
    loads, dealt = [0.0] * shares, [list[int]() for _ in range(shares)]
    for i in longest_first(costs):
        least = loads.index(min(loads))
        loads[least] += costs[i]
        dealt[least].append(i)
    return [sorted(share) for share in dealt if share]


def longest_first(costs: Sequence[float]) -> list[int]:
    return sorted(range(len(costs)), key=lambda i: -costs[i])


def pickle_engine(job: Job, where: str, kind: Callable[[Task, Method, Training], Engine] = SerialEngine) -> bytes:
    """Pickle a function that makes an engine elsewhere."""
    problem, method, training, make_task = job.task.problem, job.method, job.training, job.make_task

    def make() -> Engine:
        return kind(make_task(problem), method, training)

    try:
        engine: bytes = cloudpickle.dumps(make)
    except Exception as error:
        raise RunError(
            f"this problem cannot be sent to {where}: {error}", "use --engine serial (engine='serial')"
        ) from error
    return engine


class PoolEngine:
    """Gives clients to workers as they become free, those with most to do first.

    `stacks`: each worker is a stacked engine and takes its share of a round at once; else it is a serial one.
    """

    name: str
    where: ClassVar[str] = "workers"
    number = 0  # of its engines at the workers

    def __init__(self, crew: Crew, job: Job, *, stacks: bool = False):
        self.crew, self.seconds, self.stacks = crew, Clock(), stacks
        try:
            self.prepare(job)
        except BaseException:
            self.close()
            raise

    def prepare(self, job: Job) -> None:
        """Have every worker make its engine, in place of any earlier one."""
        self.task, self.method, self.training = job.task, job.method, job.training
        kind = StackedEngine if self.stacks else SerialEngine
        self.crew.set_up(self.number, pickle_engine(job, self.where, kind))

    def train(
        self, message: State, round: int, lr: float, clients: Sequence[int], states: Sequence[State | None]
    ) -> list[ClientOutcome]:
        shared = self.crew.share(message)
        pieces = self.cut(round, clients)
        payloads = [
            (self.number, shared, round, lr, [clients[i] for i in piece], *(self.crew.lend(states[i]) for i in piece))
            for piece in pieces
        ]
        places = [self.crew.place_of(states[piece[0]]) for piece in pieces]
        outcomes, reports = dict[int, ClientOutcome](), Stacking(len(clients), self.method)
        for number, (packed, left, seconds) in self.run_on_workers("train", payloads, places):
            self.seconds.merge(seconds)
            for i, report, state in zip(pieces[number], packed, left, strict=True):
                row = reports.put(i, unpack(report, self.task.device))
                outcomes[i] = ClientOutcome(clients[i], row, unpack(state, self.task.device))
        return [outcomes[i] for i in range(len(clients))]

    def cut(self, round: int, clients: Sequence[int]) -> list[list[int]]:
        """Divide a round's clients, by their positions, into what is handed out at once: one client, or a stack."""
        costs = [passes(self.method, self.training, self.task, round, client) for client in clients]
        return deal(costs, self.crew.size) if self.stacks else [[i] for i in longest_first(costs)]

    def evaluate(self, params: Tree, buffers: Tree | None, split: str) -> list[Scores]:
        parts = self.parts(split)
        share = max(1, -(-len(parts or ()) // (2 * self.crew.size)))
        pieces = [None] if parts is None else [parts[i : i + share] for i in range(0, len(parts), share)]
        model = self.crew.lend(params), self.crew.lend(buffers)
        found = dict(self.run_on_workers("score", [(self.number, *model, split, piece) for piece in pieces]))
        return [scores for i in range(len(pieces)) for scores in found[i]]

    def parts(self, split: str) -> list[Part] | None:
        """List the parts of a split that workers share; None where one device scores a whole split at once."""
        return list(self.task.parts(split)) if self.task.device.type == "cpu" else None

    def evaluate_many(self, models: Iterable[ScoreRequest]) -> list[list[Scores]]:
        """Give each worker a model, a few at a time: all of them may not fit into memory."""
        waiting, scores = iter(models), list[list[Scores]]()
        while batch := list(islice(waiting, 2 * self.crew.size)):
            pieces = []
            for model in batch:
                lent = self.crew.lend(model.params), self.crew.lend(model.buffers)
                pieces.append((self.number, *lent, model.split, self.parts(model.split)))
            found = dict(self.run_on_workers("score", pieces))
            scores += [found[i] for i in range(len(batch))]
        return scores

    def run_on_workers(
        self, kind: str, payloads: Sequence[Sequence[Any]], places: Sequence[Any] = ()
    ) -> Iterator[tuple[int, Any]]:
        """Have workers answer payloads; yield the number of each and its answer as they come; raise what they raise."""
        for number, answer in spread(self.crew, kind, payloads, places):
            if isinstance(answer, BaseException):
                raise answer
            yield number, answer

    def close(self) -> None:
        self.crew.close()


def describe_setting() -> tuple[list[str], bool]:
    """What a worker takes over from this process: where modules are found, and whose convolutions."""
    return sys.path, bool(torch.backends.mkldnn.enabled)
