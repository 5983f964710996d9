"""Workers on a Ray cluster, one a core or a GPU: actors that live as long as the crew, and are replaced when they die.

What a client remembers is a value that its worker returned. Ray leaves it in the memory of that worker's machine, which
survives the worker; this process holds its name, and reads it only for a checkpoint or where it is asked for.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch

from fedkeel.core.rule import State
from fedkeel.core.trees import Tree, all_finite, state_bytes
from fedkeel.engines.engine import KeptState, StatesLost
from fedkeel.engines.machine import steady
from fedkeel.engines.measure import Job
from fedkeel.engines.pool import ATTEMPTS, PoolEngine, WorkerDied, describe_setting
from fedkeel.engines.ray_connection import connected, count_workers, import_ray
from fedkeel.engines.worker import Desk, pack, unpack
from fedkeel.errors import RunError
from fedkeel.text import first_line

log = logging.getLogger("fedkeel")

MOMENT = 0.5  # seconds
START = 300.0  # seconds until all workers should be there

LOST = "what clients remember was lost with a machine of the Ray cluster."
RESUME = "a run that has a folder goes on from its last checkpoint: the same command again"


class RayWorker:
    """The desk as an actor; the states it leaves are values of their own."""

    def __init__(self) -> None:
        self.lasting = contextlib.ExitStack()
        self.lasting.enter_context(steady())
        self.desk = Desk()

    def answer(self, kind: str, *payload: Any) -> Any:
        return self.desk.answer(kind, payload)

    def locate(self) -> str:
        """Say on which machine it is."""
        return str(import_ray().get_runtime_context().get_node_id())

    def train(self, clients: Sequence[int], *payload: Any) -> tuple[Any, ...]:
        """Return what the server reads now, then each client's state."""
        answer = self.desk.answer("train", (*payload[:4], clients, *payload[4:]))
        if isinstance(answer, BaseException):
            return (answer, *(None for _ in clients))
        reports, states, seconds = answer
        facts = [(state_bytes(own), all_finite(own)) for own in map(unpack, states)]
        return ((reports, facts, seconds), *states)


class RayState(KeptState):
    """A state in the memory of a machine of the cluster; `place` is that machine."""

    def __init__(self, value: Any, nbytes: int, is_finite: bool, place: str | None, device: torch.device | str):
        super().__init__(partial(read_state, value, device), nbytes, is_finite)
        self.value, self.place = value, place


def read_state(value: Any, device: torch.device | str) -> State:
    ray = import_ray()
    try:
        state: State = unpack(ray.get(value), device)
    except ray.exceptions.RayError as error:
        raise StatesLost(LOST, RESUME) from error
    return state


class RayCrew:
    """Actors with `cpus` cores and `gpus` GPUs each, as many as are asked for and the cluster has room for."""

    shared: ClassVar[RayCrew | None] = None
    """The crew of this process's engines: a second engine, of a method's final phase, finds no room beside it."""

    def __init__(self, workers: int | None = None, cpus: float = 1.0, gpus: float = 0.0):
        self.closing, self.cpus, self.size, self.actors = contextlib.ExitStack(), cpus, 0, dict[int, Any]()
        self.users, self.numbers, self.engines = 1, itertools.count(), dict[int, Any]()
        self.device: torch.device | str = "cpu"
        self.starting: dict[Any, int] = {}  # requests that no one waits for, by their worker
        self.asked: dict[Any, tuple[int, Sequence[Any]]] = {}  # by their worker, with the states it will return
        self.places: dict[int, str | None] = {}
        self.failed_starts = 0
        self.ray = self.closing.enter_context(connected(workers))
        try:
            self.remote = self.ray.remote(RayWorker).options(num_cpus=cpus, num_gpus=gpus, max_restarts=0)
            self.room = count_workers(self.ray, workers, cpus, gpus)
        except BaseException:
            self.close()
            raise

    @classmethod
    def join(cls, workers: int | None, device: torch.device) -> RayCrew:
        """Return the crew of this process, or make it."""
        if cls.shared is None:
            crew = cls(workers, gpus=1.0 if device.type == "cuda" else 0.0)
            crew.device = device
            crew.grow(crew.room)
            cls.shared = crew
        else:
            cls.shared.users += 1
        return cls.shared

    def grow(self, size: int) -> None:
        """Start workers until there are so many, as far as there is room."""
        while self.size < min(size, self.room):
            self.start(self.size)
            self.size += 1

    def start(self, worker: int) -> None:
        """Start a worker, or another in its place; it is free when it has made its engines."""
        self.starting = {request: other for request, other in self.starting.items() if other != worker}
        self.actors[worker] = self.remote.remote()
        self.places.pop(worker, None)
        for number, engine in self.engines.items():
            self.starting[self.actors[worker].answer.remote("set_up", number, engine, *describe_setting())] = worker
        self.starting[self.actors[worker].locate.remote()] = worker

    def wait_for_start(self) -> None:
        """Wait until all workers are ready; after some minutes, be content with those that are."""
        until = time.monotonic() + START
        while self.starting and (time.monotonic() < until or not self.find_free()):
            self.settle(self.first(self.starting))
        if self.starting:
            log.warning("%d of %d workers are there; the others may come later", len(self.find_free()), self.size)

    def set_up(self, number: int, engine: bytes) -> None:
        self.engines[number] = self.ray.put(engine)
        for worker, actor in self.actors.items():
            request = actor.answer.remote("set_up", number, self.engines[number], *describe_setting())
            self.starting[request] = worker
        self.wait_for_start()

    def share(self, message: State) -> Any:
        return self.ray.put(pack(message))

    def lend(self, state: State | Tree | None) -> Any:
        if isinstance(state, RayState):
            return state.value
        return None if state is None else self.ray.put(pack(state))

    def place_of(self, state: State | None) -> str | None:
        return state.place if isinstance(state, RayState) else None

    def find_free(self) -> dict[int, Any]:
        occupied = {*self.starting.values(), *(worker for worker, _ in self.asked.values())}
        return {worker: self.places.get(worker) for worker in self.actors if worker not in occupied}

    def ask(self, worker: int, kind: str, payload: Sequence[Any]) -> None:
        actor = self.actors[worker]
        if kind == "train":
            number, message, round, lr, clients, *states = payload
            calling = actor.train.options(num_returns=1 + len(clients))
            first, *left = calling.remote(clients, number, message, round, lr, *states)
        else:
            first, left = actor.answer.remote(kind, *payload), []
        self.asked[first] = worker, left

    def wait(self) -> list[tuple[int, Any]]:
        request = self.first([*self.asked, *self.starting])
        if request is None:
            return []
        if request in self.starting:
            self.settle(request)
            return []
        worker, left = self.asked.pop(request)
        try:
            answer = self.ray.get(request)
        except self.ray.exceptions.ObjectLostError as error:
            raise StatesLost(LOST, RESUME) from error
        except self.deaths as error:
            return [(worker, self.replace(worker, error))]
        except self.ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, self.ray.exceptions.ObjectLostError):
                raise StatesLost(LOST, RESUME) from error
            raise RunError(f"Ray failed: {first_line(error)}", RESUME) from error
        if left and not isinstance(answer, BaseException):
            reports, facts, seconds = answer
            place = self.places.get(worker)
            kept = [
                RayState(value, nbytes, is_finite, place, self.device) if nbytes else {}
                for value, (nbytes, is_finite) in zip(left, facts, strict=True)
            ]
            answer = reports, kept, seconds
        return [(worker, answer)]

    def settle(self, request: Any) -> None:
        """Note what a starting worker says."""
        if request is None:
            return
        worker = self.starting.pop(request)
        try:
            answer = self.ray.get(request)
        except self.deaths as error:
            self.failed_starts += 1
            if self.failed_starts >= ATTEMPTS * self.size:
                raise RunError(f"workers on Ray die when they start: {first_line(error)}", "see Ray's logs") from None
            self.replace(worker, error)
            return
        if isinstance(answer, BaseException):
            raise answer
        if answer != "ready":
            self.places[worker] = answer

    def replace(self, worker: int, error: Exception) -> WorkerDied:
        """Start another worker in the place of one that died."""
        log.warning("worker %d on Ray died; another takes its place", worker)
        self.start(worker)
        return WorkerDied(f"a worker on Ray died {ATTEMPTS} times: {first_line(error)}", "out of memory? Fewer workers")

    @property
    def deaths(self) -> tuple[type[Exception], ...]:
        """What Ray raises when a worker or its machine dies."""
        known = self.ray.exceptions
        return known.RayActorError, known.WorkerCrashedError, known.NodeDiedError, known.OutOfMemoryError

    def first(self, requests: Iterable[Any]) -> Any:
        """The next of these that ends, or None. Ray hears no signal while it waits, so it waits for a moment."""
        try:
            done, _ = self.ray.wait(list(requests), num_returns=1, timeout=MOMENT, fetch_local=True)
        except SystemError as error:  # it hides what a signal's handler raises behind one
            raise error.__cause__ or error from None
        return done[0] if done else None

    def close(self) -> None:
        self.users -= 1
        if self.users > 0:
            while self.asked:  # of an engine that failed: the next one must not take its answers for its own
                self.asked.pop(self.first(self.asked), None)
            return
        if RayCrew.shared is self:
            RayCrew.shared = None
        for actor in self.actors.values():
            self.ray.kill(actor)
        self.closing.close()


class RayEngine(PoolEngine):
    """Long-lived workers on Ray, each a serial engine (the bits of `serial`) or a stacked one."""

    where = "workers on Ray"

    def __init__(self, job: Job, *, stacks: bool = False):
        crew = RayCrew.join(job.workers, job.task.device)
        self.name, self.number = "ray-stacked" if stacks else "ray", next(crew.numbers)
        super().__init__(crew, job, stacks=stacks)
