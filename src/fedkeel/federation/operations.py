"""What an operator sees of a federation: its audit log, its numbers, its older checkpoints."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedkeel.core.states import beside
from fedkeel.core.trees import Tree
from fedkeel.engines.flower.node_registry import Watch
from fedkeel.errors import FolderError, RunError, explain_os_errors
from fedkeel.federation.audit import AUDIT, AuditLog
from fedkeel.federation.gauges import FINISHED, METRICS, STOPPED, Gauges, read_gauges
from fedkeel.federation.history import keep_checkpoint
from fedkeel.runs.finished_run import Run
from fedkeel.runs.record import RoundRecord, digest


class Operations(Watch):
    """Writes every event into the audit log and the numbers, and keeps every so many rounds a checkpoint (0: none)."""

    def __init__(self, out: Path, history: int = 0):
        self.out, self.history = out, history
        self.audit, self.gauges, self.asked = AuditLog(beside(out, AUDIT)), Gauges(), 0

    @property
    def head(self) -> str:
        return self.audit.head

    def explain_refusal(self) -> contextlib.AbstractContextManager[None]:
        """Make what the system refuses to write within the block one line."""
        then = "then start the server again: the run continues"
        fault, full = f"cannot write beside {self.out}", f"free some space, {then}"
        return explain_os_errors(fault, f"let the server write there, {then}", RunError, full=full)

    def write_gauges(self) -> None:
        with self.explain_refusal():
            self.gauges.write(beside(self.out, METRICS))

    def note(self, event: str, **facts: Any) -> None:
        with self.explain_refusal():
            self.audit.write(event, facts)
        gauges = self.gauges
        if event == "refused":
            gauges.refused_total += 1
        elif event == "absent":
            gauges.absent_total += 1
        elif event == "counted":
            gauges.clients_asked, gauges.clients_counted = self.asked, len(facts["clients"])
            gauges.touch()
        if event != "joined":  # there may be many at once
            self.write_gauges()

    def begin_round(self, round: int, params: Tree, clients: Sequence[int]) -> None:
        if self.history and (round - 1) % self.history == 0 and round > 1:
            with self.explain_refusal():
                keep_checkpoint(self.out, round - 1)
        self.asked = len(clients)  # both numbers are of one round: each may ask others
        self.note("sent", round=round, model=digest({"params": params}), clients=list(clients))

    # ---- the run ---------------------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Hear that a server is there, and waits for its clients: what the one before it left is no longer so."""
        with contextlib.suppress(FolderError):  # there was none, or its numbers are damaged
            before = read_gauges(beside(self.out, METRICS))
            kept = ("rounds_done", "rounds_asked", "clients", "round_seconds", "loss", "accuracy")
            self.gauges = Gauges(**{name: getattr(before, name) for name in kept})
        self.gauges.touch()
        self.write_gauges()

    def start(self, done: int, rounds: int, sizes: Sequence[int], **facts: Any) -> None:
        """Hear that the server has its clients and begins, or goes on."""
        self.gauges.rounds_done, self.gauges.rounds_asked = done, rounds
        self.gauges.clients = sum(size > 0 for size in sizes)
        self.gauges.touch()
        self.note("started", done=done, rounds=rounds, sizes=list(sizes), **facts)

    def see_round(self, record: RoundRecord, connected: int) -> None:
        """Hear what a round has come to, which is kept now."""
        gauges = self.gauges
        gauges.rounds_done = record.round
        gauges.round_seconds, gauges.clients_connected = record.seconds, connected
        gauges.loss = math.nan if record.loss is None else record.loss
        gauges.accuracy = gauges.accuracy if record.accuracy is None else record.accuracy
        gauges.touch()
        self.write_gauges()

    def finish(self, run: Run) -> None:
        """Hear that all rounds are done."""
        self.gauges.state = FINISHED
        self.gauges.touch()
        self.note("finished", rounds=len(run.records), model=run.result["model_digest"])

    def stop(self, line: str) -> None:
        """Hear that the server stops, and why; a disk that is full must not hide that."""
        self.gauges.state = STOPPED
        self.gauges.touch()
        with contextlib.suppress(RunError):
            self.note("stopped", reason=line)
        try:
            self.write_gauges()
        except RunError:
            with contextlib.suppress(OSError):
                self.gauges.overwrite(beside(self.out, METRICS))
