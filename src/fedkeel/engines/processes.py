"""A pool of serial engines in processes of their own: bitwise equal to serial, whoever finishes first."""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, BinaryIO, cast

import cloudpickle
import torch

from fedkeel.core.method import Method
from fedkeel.core.rule import State
from fedkeel.core.trees import Stacking, Tree
from fedkeel.engines.clock import Clock
from fedkeel.engines.engine import Model, Outcome, Training
from fedkeel.engines.serial import SerialEngine
from fedkeel.engines.worker import pack, receive, send, unpack
from fedkeel.errors import RunError
from fedkeel.problems.problem import Problem
from fedkeel.problems.task import Scores, Task


class Worker:
    """One child process and its two pipes."""

    def __init__(self, number: int):
        # signals reach the whole group, also while a worker is still starting: the parent decides
        deaf = "import signal as s; stops = s.SIGINT, s.SIGTERM; [s.signal(stop, s.SIG_IGN) for stop in stops]"
        heard = "s.pthread_sigmask(s.SIG_UNBLOCK, stops)"
        command = [sys.executable, "-c", f"{deaf}; {heard}; from fedkeel.engines.worker import main; main()"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        package_root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        paths = [package_root, *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        self.number = number
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))  # the child inherits it
        try:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self.requests = cast(BinaryIO, self.process.stdin)
        self.replies = cast(BinaryIO, self.process.stdout)

    def ask(self, kind: str, payload: Any) -> None:
        self.ask_bytes(pickle.dumps((kind, payload), protocol=5))

    def ask_bytes(self, body: bytes) -> None:
        try:
            send(self.requests, body)
        except BrokenPipeError:
            raise self.gone() from None

    def answer(self) -> Any:
        try:
            reply = pickle.loads(receive(self.replies))
        except EOFError:
            raise self.gone() from None
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def gone(self) -> RunError:
        code = self.process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return RunError(f"worker process {self.number} {how}.", "out of memory? Try fewer workers, or --engine serial")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.requests, self.replies):
            try:
                pipe.close()
            except BrokenPipeError:
                pass


class ProcessesEngine:
    """Hands clients to workers as they become free; the parent keeps every client's state."""

    name = "processes"

    def __init__(
        self, task: Task, method: Method, training: Training, *, workers: int, make_task: Callable[[Problem], Task]
    ):
        self.seconds = Clock()
        self.workers: list[Worker] = []
        try:
            self.workers = [Worker(number) for number in range(workers)]
            self.prepare(task, method, training, make_task)
        except BaseException:
            self.close()
            raise

    def prepare(self, task: Task, method: Method, training: Training, make_task: Callable[[Problem], Task]) -> None:
        """Have every worker make its engine; what it was made for before is forgotten."""
        self.task, problem = task, task.problem

        def make() -> SerialEngine:
            return SerialEngine(make_task(problem), method, training)

        try:
            engine = cloudpickle.dumps(make)
        except Exception as error:
            raise RunError(
                f"this problem cannot be sent to worker processes: {error}", "use --engine serial (engine='serial')"
            ) from error
        for worker in self.workers:
            worker.ask("setup", {"path": sys.path, "engine": engine, "onednn": bool(torch.backends.mkldnn.enabled)})
        for worker in self.workers:
            worker.answer()

    def train(
        self, message: State, round: int, lr: float, clients: Sequence[int], states: Sequence[State | None]
    ) -> list[Outcome]:
        body = pickle.dumps(("message", pack(message)), protocol=5)
        for worker in self.workers:
            worker.ask_bytes(body)
        known = [None if state is None else pack(state) for state in states]
        answers = self.spread("train", [(round, lr, *pair) for pair in zip(clients, known, strict=True)])
        outcomes, reports = [], Stacking(len(clients))
        for i, client in enumerate(clients):
            report, state, seconds = answers[i]
            answers[i] = None  # its report can be freed
            self.seconds.merge(seconds)
            outcomes.append(Outcome(client, reports.put(i, unpack(report)), unpack(state)))
        return outcomes

    def evaluate(self, params: Tree, buffers: Tree | None, split: str) -> list[Scores]:
        parts = list(self.task.parts(split))
        share = max(1, -(-len(parts) // (2 * len(self.workers))))
        model = (pack(params), None if buffers is None else pack(buffers))
        pieces = [(*model, parts[i : i + share]) for i in range(0, len(parts), share)]
        return [scores for piece in self.spread("score", pieces) for scores in piece]

    def evaluate_many(self, models: Iterable[Model]) -> list[list[Scores]]:
        """A model to a worker; a few at a time, for all of them may not fit into memory."""
        waiting, found = iter(models), list[list[Scores]]()
        while some := list(islice(waiting, 2 * len(self.workers))):
            packed = [(pack(m.params), None if m.buffers is None else pack(m.buffers), m.split) for m in some]
            found += self.spread("score", [(*model, list(self.task.parts(split))) for *model, split in packed])
        return found

    def spread(self, kind: str, payloads: Sequence[Any]) -> list[Any]:
        """Ask workers as they become free; answers in the order of the payloads."""
        waiting = deque(enumerate(payloads))
        answers: list[Any] = [None] * len(payloads)
        busy: dict[Worker, int] = {}
        with selectors.DefaultSelector() as ready:
            for worker in self.workers:
                ready.register(worker.replies, selectors.EVENT_READ, worker)
                self._next(kind, worker, waiting, busy)
            while busy:
                for event, _ in ready.select():
                    worker = event.data
                    if worker not in busy:
                        raise worker.gone()
                    answers[busy.pop(worker)] = worker.answer()
                    self._next(kind, worker, waiting, busy)
        return answers

    def _next(self, kind: str, worker: Worker, waiting: deque[tuple[int, Any]], busy: dict[Worker, int]) -> None:
        if waiting:
            busy[worker], payload = waiting.popleft()
            worker.ask(kind, payload)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.workers = []
