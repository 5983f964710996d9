"""A pool of serial engines in processes of their own: bitwise equal to serial, in whatever order clients finish."""

from __future__ import annotations

import contextlib
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
from fedkeel.engines.engine import ClientOutcome, ScoreRequest, Training
from fedkeel.engines.serial import SerialEngine
from fedkeel.engines.worker import pack, receive, send, unpack
from fedkeel.errors import RunError
from fedkeel.problems.problem import Problem
from fedkeel.problems.task import Scores, Task


class Worker:
    """One child process and its two pipes."""

    def __init__(self, number: int):
        # signals reach the whole group, also while a worker is still starting: the parent decides
        ignore = "import signal as s; stops = s.SIGINT, s.SIGTERM; [s.signal(stop, s.SIG_IGN) for stop in stops]"
        unblock = "s.pthread_sigmask(s.SIG_UNBLOCK, stops)"  # `has_pools` says whether there is one
        command = [sys.executable, "-c", f"{ignore}; {unblock}; from fedkeel.engines.worker import main; main()"]
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
            raise self.explain_end() from None

    def answer(self) -> Any:
        try:
            reply = pickle.loads(receive(self.replies))
        except EOFError:
            raise self.explain_end() from None
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def explain_end(self) -> RunError:
        code = self.process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return RunError(f"worker process {self.number} {how}.", "out of memory? Try fewer workers, or --engine serial")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.requests, self.replies):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def pickle_engine(
    problem: Problem, method: Method, training: Training, make_task: Callable[[Problem], Task], where: str
) -> bytes:
    """Pickle a function that makes a serial engine elsewhere."""

    def make() -> SerialEngine:
        return SerialEngine(make_task(problem), method, training)

    try:
        engine: bytes = cloudpickle.dumps(make)
    except Exception as error:
        raise RunError(
            f"this problem cannot be sent to {where}: {error}", "use --engine serial (engine='serial')"
        ) from error
    return engine


class ProcessesEngine:
    """Gives clients to workers as they become free; the parent keeps every client's state."""

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
        """Have every worker make its engine, in place of any earlier one."""
        self.task = task
        engine = pickle_engine(task.problem, method, training, make_task, "worker processes")
        for worker in self.workers:
            worker.ask("setup", {"path": sys.path, "engine": engine, "onednn": bool(torch.backends.mkldnn.enabled)})
        for worker in self.workers:
            worker.answer()

    def train(
        self, message: State, round: int, lr: float, clients: Sequence[int], states: Sequence[State | None]
    ) -> list[ClientOutcome]:
        body = pickle.dumps(("message", pack(message)), protocol=5)
        for worker in self.workers:
            worker.ask_bytes(body)
        asked = [(round, lr, client, pack(state)) for client, state in zip(clients, states, strict=True)]
        answers = self.run_on_workers("train", asked)
        outcomes, reports = [], Stacking(len(clients))
        for i, client in enumerate(clients):
            report, state, seconds = answers[i]
            answers[i] = None  # its report can be freed
            self.seconds.merge(seconds)
            outcomes.append(ClientOutcome(client, reports.put(i, unpack(report)), unpack(state)))
        return outcomes

    def evaluate(self, params: Tree, buffers: Tree | None, split: str) -> list[Scores]:
        parts = list(self.task.parts(split))
        share = max(1, -(-len(parts) // (2 * len(self.workers))))
        model = (pack(params), pack(buffers))
        pieces = [(*model, parts[i : i + share]) for i in range(0, len(parts), share)]
        return [scores for piece in self.run_on_workers("score", pieces) for scores in piece]

    def evaluate_many(self, models: Iterable[ScoreRequest]) -> list[list[Scores]]:
        """Give each worker a model, a few at a time: all of them may not fit into memory."""
        waiting, scores = iter(models), list[list[Scores]]()
        while batch := list(islice(waiting, 2 * len(self.workers))):
            pieces = [(pack(m.params), pack(m.buffers), list(self.task.parts(m.split))) for m in batch]
            scores += self.run_on_workers("score", pieces)
        return scores

    def run_on_workers(self, kind: str, payloads: Sequence[Any]) -> list[Any]:
        """Give payloads to workers as they become free; return answers in the order of the payloads."""
        waiting = deque(enumerate(payloads))
        answers: list[Any] = [None] * len(payloads)
        busy: dict[Worker, int] = {}
        with selectors.DefaultSelector() as ready:
            for worker in self.workers:
                ready.register(worker.replies, selectors.EVENT_READ, worker)
                self._give_next(kind, worker, waiting, busy)
            while busy:
                for event, _ in ready.select():
                    worker = event.data
                    if worker not in busy:
                        raise worker.explain_end()
                    answers[busy.pop(worker)] = worker.answer()
                    self._give_next(kind, worker, waiting, busy)
        return answers

    def _give_next(self, kind: str, worker: Worker, waiting: deque[tuple[int, Any]], busy: dict[Worker, int]) -> None:
        if waiting:
            busy[worker], payload = waiting.popleft()
            worker.ask(kind, payload)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.workers = []
