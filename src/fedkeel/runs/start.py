"""`fk.run`: from an experiment to a trained model, in memory or in a folder."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import torch

from fedkeel.core.method import Method
from fedkeel.engines.choose import Choice, ChosenEngine, check_name, choose_engine, settle_device
from fedkeel.engines.engine import Engine, StatesLost
from fedkeel.engines.machine import check_workers, device_of, read_precision, steady
from fedkeel.engines.measure import Job, RemainingWork
from fedkeel.engines.memory import explain_device_errors
from fedkeel.engines.stacked.engine import StackedEngine
from fedkeel.errors import RequestError, explain_typos
from fedkeel.problems.metrics import Given as Metrics
from fedkeel.problems.metrics import Metric, find_metrics, name_metrics
from fedkeel.problems.personal_data import check_own_tests
from fedkeel.problems.problem import Problem
from fedkeel.problems.scored_alone import check_scored
from fedkeel.problems.sound_data import check_data, check_pairs
from fedkeel.problems.task import Task
from fedkeel.problems.try_out import try_out
from fedkeel.randomness import in_turn
from fedkeel.ranges import NonNegative
from fedkeel.runs.callbacks import Callback
from fedkeel.runs.claim import check_same_clients, claim, warn_of_changes
from fedkeel.runs.disk_room import check_room
from fedkeel.runs.environment import (
    check_same_data,
    data_digest,
    describe_functions,
    engines_before,
    environment,
    start_digest,
    undivided_data,
)
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.finished_run import Run
from fedkeel.runs.folder import CLIENTS, ENVIRONMENT, read_environment, rounds_in
from fedkeel.runs.following import Given, find_callbacks, list_callbacks, warn_of_stop, warn_of_unmade
from fedkeel.runs.loop import Loop, Progress, RunInProgress
from fedkeel.runs.notes import describe_task, describe_unmeasured, describe_unsaid_model, list_surprises
from fedkeel.runs.observers import Observer, as_list, find_observers
from fedkeel.runs.prepare import method_of, problem_of, task_maker
from fedkeel.runs.progress_line import ProgressLine, follow
from fedkeel.runs.run_folder import RunFolder
from fedkeel.typed_values import read_values, types_of

log = logging.getLogger("fedkeel")

CHECKPOINT_SECONDS = 30.0
ATTEMPTS = 4  # to go on when a machine dies with what clients remember


@explain_typos("fk.run", precision="dtype")
def run(
    experiment: Experiment,
    *,
    out: str | PathLike[str] | None = None,
    engine: str = "auto",
    device: str = "auto",
    dtype: torch.dtype | str = torch.float32,
    keep_params: bool = False,
    workers: int | None = None,
    progress: Progress | bool | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    command: Sequence[str] | None = None,
    track: Sequence[str | Observer] | str | Observer = (),
    callbacks: Sequence[Given] | Given = (),
    metrics: Metrics = (),
) -> Run:
    """Train. With a folder `out`, a run that stands there already goes on from its last checkpoint, bit for bit.

    `track` names what else is measured in every round: "drift", "spectrum", "state", or functions of one's own.
    `callbacks` are told of every round, keep models and may stop the run: fk.KeepBest(), fk.EarlyStop(), your own.
    `metrics` are measured in every evaluation: "f1", "auc", "ece", functions of (predictions, targets), "module:name".
    `progress` None shows a line in a terminal or a notebook, True always, False never; or give a follower of your own.
    `dtype` is torch.float32, torch.bfloat16 or torch.float64, or its name: "bfloat16".
    Runs in several threads of a process take turns.
    """
    followers = as_list(track), find_callbacks(callbacks), find_metrics(metrics)
    place = device_of(settle_device(engine, device))
    on = Place(engine, place, read_precision(dtype), workers, keep_params, checkpoint_seconds, command, *followers)
    attempts = 1
    while True:
        try:
            with in_turn(), session(on.device) as closing:
                follower = follow(progress)
                if isinstance(follower, ProgressLine):
                    closing.callback(follower.end)
                started = start(experiment, out, on, follower, closing)
                check_room([started.loop])
                return started.drive()
        except StatesLost as error:
            if out is None or attempts == ATTEMPTS:
                raise
            log.warning("%s The run goes back to its last checkpoint", error.message)
            attempts += 1


@contextlib.contextmanager
def session(device: torch.device) -> Iterator[contextlib.ExitStack]:
    """Provide what runs are made in: what they open is closed at the end."""
    with explain_device_errors(device), steady(device), contextlib.ExitStack() as closing:
        yield closing


@dataclass(frozen=True)
class Place:
    """Where and how a run is made; none of it is part of what a result is."""

    engine: str
    device: torch.device
    dtype: torch.dtype = torch.float32
    workers: int | None = None
    keep_params: bool = False
    checkpoint_seconds: NonNegative = CHECKPOINT_SECONDS
    command: Sequence[str] | None = None
    track: Sequence[str | Observer] = ()
    callbacks: Sequence[Callback] = ()
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    stack: Sequence[str] = ()  # the folders of all runs that train as one stack
    latest: int | None = None  # the round from which the stack goes on
    federation: bool = False  # sites train, and this machine does not

    def __post_init__(self) -> None:
        check_name(self.engine)
        check_workers(self.workers)
        asked = {"checkpoint_seconds": self.checkpoint_seconds, "keep_params": self.keep_params}
        read_values(asked, types_of(Place), RequestError)


class Started(NamedTuple):
    """A run that has an engine."""

    loop: Loop
    engine: Engine
    rounds: RunInProgress
    conclude: Callable[[], Run]

    def drive(self) -> Run:
        """Train all rounds that are left with its own engine."""
        try:
            request = next(self.rounds)
            while True:
                request = self.rounds.send(self.engine.train(*request))
        except StopIteration:
            return self.conclude()
        finally:
            self.rounds.close()  # where training failed, the run still writes its checkpoint


@dataclass(frozen=True)
class Prepared:
    """A run that is checked and brought to its last checkpoint, and has no engine yet."""

    loop: Loop
    on: Place
    make_task: Callable[[Problem], Task]
    engines: Sequence[Mapping[str, Any]]  # of the rounds that are done
    before: str | None  # the engine of all rounds that were ever made, also of those after the last checkpoint
    began: float

    def start(self, engine: Engine, choice: Choice, progress: Progress | None, tuner: Callable[[], Engine]) -> Started:
        """Write the engine into the folder, and tell the progress display."""
        loop, on = self.loop, self.on
        if isinstance(engine, StackedEngine):
            engine.captured = loop.captured
        loop.seconds.add("setup", time.perf_counter() - self.began)
        if loop.folder is not None:
            engines = [*self.engines, choice.record(loop.done)]
            parts = (*loop.method.rules, *loop.plan.parts)
            made_with = environment(on.device, on.dtype, engine.name, on.command, engines, parts, on.track)
            asked = {"callbacks": list_callbacks(on.callbacks), "metrics": name_metrics(on.metrics)}
            made_of: dict[str, Any] = {"data": data_digest(loop.plan), "federation": on.federation}
            made_of |= {"undivided": undivided_data(loop.experiment, loop.folder.path), "stack": list(on.stack) or None}
            if loop.rounds_left():
                made_of |= {"functions": describe_functions(loop.plan), "init": start_digest(loop.plan)}
            else:  # rounds of an older version do not say what made them
                before = read_environment(loop.folder.path)
                made_of |= {name: before.get(name) for name in ("functions", "init")}
            # first, so that every run tells `fedkeel resume` how it is made
            loop.folder.write_json(ENVIRONMENT, made_with | asked | made_of)
            loop.folder.write_experiment(loop.experiment.save())
            loop.folder.begin(loop.lines, on.latest)
            title = loop.plan.source.title if isinstance(loop.plan.source, Problem) else loop.plan.source.dataset
            loop.folder.write_json(CLIENTS, {"problem": title, "sizes": loop.task.problem.data.sizes.tolist()})
        if progress is not None:
            progress.started(loop.experiment, loop.done, engine.name)
        return Started(loop, engine, loop.run_rounds(engine, progress), partial(loop.conclude, engine, progress, tuner))


def prepare(
    experiment: Experiment,
    out: str | PathLike[str] | None,
    on: Place,
    closing: contextlib.ExitStack,
    problem: Problem | None = None,
) -> Prepared:
    """Check an experiment and all it is made of, and resume it, whoever trains it then. What must be closed afterwards
    goes to `closing`; `problem` is given where the plan does not make it."""
    require_experiment(experiment)
    plan, folder = experiment.plan, None if out is None else RunFolder.of(out)
    if folder is not None:
        folder.open()
        closing.callback(folder.close)
        claim(folder, experiment, federation=on.federation)
    made = 0 if folder is None else len(rounds_in(folder.path).lines)
    if not made:
        plan.check_new()
    began = time.perf_counter()
    make_task = task_maker(plan, on.device, on.dtype)
    problem = problem_of(plan) if problem is None else problem
    if folder is not None:
        check_same_data(folder.path, plan)  # when they are here
        if (unsaid := describe_unsaid_model(plan)) is not None:
            log.warning("%s", unsaid)
    describe_functions(plan)  # before a loss is called, which may make a part of itself then
    task = make_task(replace(problem, metrics=problem.metrics | on.metrics) if on.metrics else problem)
    try_out(task)
    check_data(task, begun=bool(made))
    log.info("%s", describe_task(task))
    method = method_of(plan, task)
    for told in list_surprises(experiment, method, task):
        log.warning("%s", told)
    followers = find_observers(on.track), on.callbacks
    loop = Loop(experiment, task, method, folder, on.keep_params, on.checkpoint_seconds, *followers)
    closing.callback(loop.store.close)
    if not made:
        check_new(loop)
    before = None if folder is None else folder.read_experiment()
    loop.restore(on.latest)
    if folder is not None and loop.done:
        if before != experiment.save():  # more rounds are asked for
            warn_of_stop(folder.path, loop.callbacks.stopped, plan.rounds)
        warn_of_changes(folder.path, plan, on.dtype)
        if loop.rounds_left() == 0:
            warn_of_unmade(folder.path, loop.records, loop.callbacks.state.kept, on.callbacks, on.metrics)
    engines = [] if folder is None else engines_before(folder.path, loop.done)
    seen = engines if folder is None else engines_before(folder.path, max(made, loop.done))
    return Prepared(loop, on, make_task, engines, seen[-1]["engine"] if seen else None, began)


def check_new(loop: Loop) -> None:
    """Refuse a run that would fail in a later round, or be judged on nothing; one that has begun may go on."""
    plan, task = loop.plan, loop.task
    check_scored(task)
    if plan.evaluation is not None:
        given = isinstance(plan.source, Problem) and plan.source.tests is not None
        check_own_tests(task.problem, None if given else plan.evaluation.share)
    final = plan.evaluation is not None and loop.method.final is not None  # every client trains in it
    single = np.flatnonzero(task.clients.sizes == 1).tolist()
    if single and task.needs_pairs and not final:
        single = sorted(loop.participation.answering_ever(plan.rounds).intersection(single))
    check_pairs(task, single, plan.batch_size)


def require_experiment(given: object) -> None:
    if not isinstance(given, Experiment):
        raise RequestError(f"an Experiment is run, not {given!r}.", 'fk.run(fk.Experiment(dataset="digits"))')


def start(
    experiment: Experiment,
    out: str | PathLike[str] | None,
    on: Place,
    progress: Progress | None,
    closing: contextlib.ExitStack,
) -> Started:
    """Start a run on this machine, up to its first round."""
    prepared = prepare(experiment, out, on, closing)
    loop = prepared.loop
    if loop.folder is not None and loop.done:
        check_same_clients(loop.folder.path, loop.task.problem)
    if loop.rounds_left() and (told := describe_unmeasured(loop.plan, loop.task)) is not None:
        log.warning("%s", told)

    def engine_for(method: Method, task: Task, left: RemainingWork, before: str | None) -> ChosenEngine:
        job = Job(task, method, loop.plan.training, prepared.make_task, on.workers, left)
        chosen = choose_engine(on.engine, job, before)
        closing.callback(chosen.engine.close)
        return chosen

    made, choice = engine_for(loop.method, loop.task, loop.left(), prepared.before)

    def tuner() -> Engine:
        everyone = RemainingWork(1, [int(client) for client in np.flatnonzero(loop.task.clients.sizes > 0)])
        return engine_for(loop.method.tuning, prepared.make_task(loop.task.problem), everyone, made.name).engine

    return prepared.start(made, choice, progress, tuner)
