"""A method on trial: small runs of it, whose every part is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedkeel.catalogue.cards import quietly
from fedkeel.core.local_step import Gradient
from fedkeel.core.method import Method
from fedkeel.core.objective import Objective
from fedkeel.core.rule import State
from fedkeel.core.trees import Tree
from fedkeel.engines.choose import Choice, make_engine
from fedkeel.engines.engine import ClientOutcome, Engine
from fedkeel.engines.machine import CPU
from fedkeel.engines.measure import Job
from fedkeel.engines.serial import SerialEngine
from fedkeel.engines.stacked.engine import StackedEngine
from fedkeel.errors import FedkeelError
from fedkeel.methods import build
from fedkeel.models.bottleneck import Bottleneck
from fedkeel.problems.problem import Problem
from fedkeel.problems.task import Batch
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.finished_run import Run
from fedkeel.runs.prepare import CrossEntropy
from fedkeel.runs.start import Place, prepare, session
from fedkeel.testing.broken_law import BrokenLaw

SIZES = (7, 4, 5, 1, 6)
SETTINGS: dict[str, Any] = {
    "rounds": 3, "participation": 0.6, "epochs": 1, "batch_size": 3, "lr": 0.05, "weight_decay": 1e-3, "clip": 10.0,
}  # fmt: skip
WHOLE: dict[str, Any] = {"batch_size": 8, "epochs": 2}
"""Measuring phases draw other batches, so clients see all of their data in each step."""

MakeEngine = Callable[[Job], Engine]


def sample_problem(method: Method, sizes: Sequence[int] = SIZES, **changes: Any) -> Problem:
    """Five clients of unequal size and a small network, with all that any method may ask for."""
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(0, 3, (count,), generator=generator)
        return torch.randn(count, 6, generator=generator) + labels[:, None], labels

    clients, test = [draw(count) for count in sizes], draw(4)
    parts: dict[str, Any] = {
        "model": sample_network(method), "loss": CrossEntropy(), "clients": clients, "test": test, "classes": 3,
        "proxy": test, "tests": clients,
    }  # fmt: skip
    return Problem(**parts | changes)


def sample_network(method: Method) -> nn.Module:
    """Two layers; the last one is a random code where the method compares codes."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        body = nn.Sequential(nn.Linear(6, 5), nn.ReLU())
        coded = any(objective.of for objective in method.objectives)
        return Bottleneck(body, 5, 3, code=4, samples=3) if coded else body.append(nn.Linear(5, 3))


def drive(experiment: Experiment, make: MakeEngine, out: Path | None = None) -> Run:
    """Run an experiment in double precision with an engine that is made here."""
    with quietly(), session(CPU) as closing:
        prepared = prepare(experiment, out, Place("serial", CPU, torch.float64), closing)
        loop = prepared.loop

        def engine_for(method: Method, task: Any) -> Engine:
            engine = make(Job(task, method, loop.plan.training, prepared.make_task))
            closing.callback(engine.close)
            return engine

        def tuner() -> Engine:
            return engine_for(loop.method.tuning, prepared.make_task(loop.task.problem))

        engine = engine_for(loop.method, loop.task)
        return prepared.start(engine, Choice(engine.name), None, tuner).drive()


class WatchingEngine(SerialEngine):
    """The reference, which also counts gradients and keeps what clients reported; one client may fail."""

    def __init__(self, job: Job, fails: int | None = None):
        super().__init__(job.task, job.method, job.training)
        self.fails, self.client = fails, 0
        self.taken, self.outcomes = 0, list[list[ClientOutcome]]()

    def train(self, *request: Any) -> list[ClientOutcome]:
        self.outcomes.append(super().train(*request))
        return self.outcomes[-1]

    def train_one(self, message: State, round: int, lr: float, client: int, state: State | None) -> ClientOutcome:
        self.client = client
        return super().train_one(message, round, lr, client, state)

    def gradient(
        self, params: Tree, batch: Batch, objective: Objective, message: State, buffers: Tree | None
    ) -> Gradient:
        self.taken += objective.differentiable
        found = super().gradient(params, batch, objective, message, buffers)
        if self.client != self.fails:
            return found
        return found._replace(tree=found.tree * torch.nan, loss=found.loss * torch.nan)


class WatchingStack(StackedEngine):
    """The stacked engine, which also keeps what clients reported."""

    def __init__(self, job: Job):
        super().__init__(job.task, job.method, job.training)
        self.outcomes = list[list[ClientOutcome]]()

    def train(self, *request: Any) -> list[ClientOutcome]:
        self.outcomes.append(super().train(*request))
        return self.outcomes[-1]


class Watched(NamedTuple):
    """A run and the engine that trained its rounds; clients that are tuned at its end have another."""

    run: Run
    engine: WatchingEngine


class Trial:
    """A method and its plain run of three rounds by the reference, which several laws look at."""

    def __init__(self, method: Method, problem: Problem | None = None):
        self.method = method
        self.problem = sample_problem(method) if problem is None else problem

    def experiment(self, problem: Problem | None = None, method: Method | None = None, **changes: Any) -> Experiment:
        return Experiment(problem=problem or self.problem, method=method or self.method, **SETTINGS | changes)

    def run(self, problem: Problem | None = None, engine: str = "serial", out: Path | None = None, **how: Any) -> Run:
        """Train with an engine by name."""
        return self.drive(self.experiment(problem, **how), partial(make_engine, engine), out)

    def drive(self, experiment: Experiment, make: MakeEngine, out: Path | None = None) -> Run:
        """Train; a method that cannot be trained breaks the first law of all."""
        try:
            return drive(experiment, make, out)
        except FedkeelError as error:
            raise BrokenLaw(f"{self.name} cannot be trained: {error.message}", error.hint) from error

    def watch(self, problem: Problem | None = None, fails: int | None = None, **changes: Any) -> Watched:
        """Train with the reference that watches; the numbers of the client that fails are NaN."""
        made: list[WatchingEngine] = []

        def make(job: Job) -> Engine:
            made.append(WatchingEngine(job, fails))
            return made[-1]

        run = self.drive(self.experiment(problem, **changes), make)
        return Watched(run, made[0])

    def watch_stack(self) -> tuple[Run, list[list[ClientOutcome]]]:
        """Train with the stacked engine; also return what clients reported and remembered in each round."""
        made: list[WatchingStack] = []

        def make(job: Job) -> Engine:
            made.append(WatchingStack(job))
            return made[-1]

        return self.drive(self.experiment(), make), made[0].outcomes

    @property
    def name(self) -> str:
        return f"method {self.method.name!r}"

    @cached_property
    def watched(self) -> Watched:
        return self.watch()

    @property
    def plain(self) -> Run:
        return self.watched.run

    def spoiled(self, client: int, change: Callable[[Tensor], Tensor]) -> Problem:
        """The same problem with other inputs of one client."""
        clients = [(change(one[0]), *one[1:]) if i == client else one for i, one in enumerate(self.clients)]
        return replace(self.problem, clients=clients, tests=clients)

    @property
    def clients(self) -> Sequence[Any]:
        return self.problem.clients


def as_method(given: Any) -> Method:
    """A method by its name, of a function that makes one, or itself."""
    if isinstance(given, str):
        return build(given)
    made = given if isinstance(given, Method) else built(given) if callable(given) else None
    if not isinstance(made, Method):
        raise BrokenLaw(f"{given!r} is no method.", "give a Method, a function that returns one, or a name")
    return made


def built(make: Callable[[], Any]) -> Any:
    """What a function makes; a method that is refused breaks the first law of all."""
    try:
        return make()
    except FedkeelError as error:
        raise BrokenLaw(error.message, error.hint) from error


def difference(one: Run, other: Run) -> float:
    """The largest difference between two models."""
    return max(float((one.params[name] - other.params[name]).abs().max()) for name in one.params)


@lru_cache(maxsize=64)
def train_whole(method: Method) -> Run:
    """Train on all data of a client in each step; bases of many methods are asked for again."""
    return Trial(method).run(**WHOLE)
