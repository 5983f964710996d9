"""A pool of serial engines in processes of their own: bitwise equal to serial, in whatever order clients finish."""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO, cast

from fedkeel.core.rule import State
from fedkeel.core.trees import Tree
from fedkeel.engines.machine import cores
from fedkeel.engines.measure import Job
from fedkeel.engines.pool import PoolEngine, describe_setting
from fedkeel.engines.worker import pack, receive, send
from fedkeel.errors import RunError


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
        why = "out of memory? Try fewer workers, or" if code < 0 else "does code of yours end it? Try"
        return RunError(f"worker process {self.number} {how}.", f"{why} --engine serial")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.requests, self.replies):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class ProcessCrew:
    """Child processes of this one, which keeps every client's state; none is replaced."""

    def __init__(self, workers: int):
        self.size, self.workers = workers, list[Worker]()
        self.busy: set[Worker] = set()
        self.ready = selectors.DefaultSelector()
        try:
            for number in range(workers):
                self.workers.append(Worker(number))
                self.ready.register(self.workers[-1].replies, selectors.EVENT_READ, number)
        except BaseException:
            self.close()
            raise

    def set_up(self, number: int, engine: bytes) -> None:
        for worker in self.workers:
            worker.ask("set_up", (number, engine, *describe_setting()))
        for worker in self.workers:
            worker.answer()

    def share(self, message: State) -> None:
        body = pickle.dumps(("hear", (pack(message),)), protocol=5)
        for worker in self.workers:
            worker.ask_bytes(body)

    def lend(self, state: State | Tree | None) -> Any:
        return pack(state)

    def place_of(self, state: State | None) -> None:
        return None

    def find_free(self) -> dict[int, Any]:
        return {number: None for number, worker in enumerate(self.workers) if worker not in self.busy}

    def ask(self, worker: int, kind: str, payload: Sequence[Any]) -> None:
        self.workers[worker].ask(kind, tuple(payload))
        self.busy.add(self.workers[worker])

    def wait(self) -> list[tuple[int, Any]]:
        answers = []
        for event, _ in self.ready.select():
            worker = self.workers[event.data]
            if worker not in self.busy:
                raise worker.explain_end()
            answers.append((event.data, worker.answer()))
            self.busy.remove(worker)
        return answers

    def close(self) -> None:
        self.ready.close()
        for worker in self.workers:
            worker.close()
        self.workers = []


class ProcessesEngine(PoolEngine):
    """A pool of serial engines in processes of their own."""

    name = "processes"
    where = "worker processes"

    def __init__(self, job: Job):
        super().__init__(ProcessCrew(job.workers or cores()), job)
