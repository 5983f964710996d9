"""The loop over rounds: choose, broadcast, train, combine, evaluate, record, checkpoint."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Protocol

import torch

from fedkeel.core.method import Method
from fedkeel.core.round import broadcast, deploy, init_server, measure_moves, remember, server_round
from fedkeel.core.rule import State
from fedkeel.core.trees import all_finite, stack, state_bytes
from fedkeel.engines.cost import Clock, finite, passes, sent, uploaded
from fedkeel.engines.engine import ClientOutcome, Engine, RoundRequest, Training, client_state
from fedkeel.engines.machine import delay_signals, used_by_others
from fedkeel.engines.measure import RemainingWork
from fedkeel.engines.memory import state_budget
from fedkeel.engines.serial import SerialEngine
from fedkeel.errors import FolderError
from fedkeel.problems.sound_data import DivergedError, explain_by_data, explain_divergence, explain_server_divergence
from fedkeel.problems.task import Task
from fedkeel.runs import checkpoint
from fedkeel.runs.callbacks import Callback
from fedkeel.runs.checkpoint import Checkpoint, check_base, take_up
from fedkeel.runs.evaluate import Judge, PersonalScores
from fedkeel.runs.experiment import Experiment, fingerprint_of
from fedkeel.runs.finished_run import Run
from fedkeel.runs.folder import DIVERGED, TIMING, read_environment, read_json
from fedkeel.runs.following import Callbacks
from fedkeel.runs.observers import Observer, Seen, check_names, observe_round
from fedkeel.runs.probe import Probe
from fedkeel.runs.record import RoundRecord, result
from fedkeel.runs.run_folder import RunFolder
from fedkeel.runs.save_clock import SaveClock
from fedkeel.runs.store import ClientStore

log = logging.getLogger("fedkeel")

RunInProgress = Generator[RoundRequest, list[ClientOutcome], None]
"""A run that asks for the training of its clients, and is sent what came of it, up to its last checkpoint."""


class Progress(Protocol):
    """Who wants to know how a run goes."""

    def started(self, experiment: Experiment, done: int, engine: str) -> None: ...

    def round(self, record: RoundRecord) -> None: ...

    def finished(self, run: Run) -> None: ...


class Loop:
    """A run between rounds: what the server knows, what clients remember, what has been recorded."""

    def __init__(
        self,
        experiment: Experiment,
        task: Task,
        method: Method,
        folder: RunFolder | None,
        keep_params: bool,
        checkpoint_seconds: float,
        observers: Sequence[Observer] = (),
        callbacks: Sequence[Callback] = (),
    ):
        self.experiment, self.plan = experiment, experiment.plan
        self.task, self.method, self.folder = task, method, folder
        self.done, self.observers = 0, observers
        self.callbacks = Callbacks(callbacks, None if folder is None else folder.path)
        self.together = 1  # runs in one stack, which share each round's time
        self.shared = False  # whether rounds took as long as they did because of something else
        self.server: State = init_server(method, task.initial, task.buffers)
        self.store = ClientStore(None if folder is None else folder.checkpoints, task.device, state_budget(task.device))
        self.records, self.lines = list[RoundRecord](), list[str]()
        self.history: list[dict[str, torch.Tensor]] | None = [] if keep_params else None
        self.seconds = Clock()
        self.judge = Judge(self.plan, task, method, self.store, self.seconds)
        self.saved, self.saving, self.checkpoint_seconds, self.clock = -1, 0.0, checkpoint_seconds, SaveClock()
        self.server_engine: SerialEngine | None = None
        self.captured = set[int]()  # what a StackedEngine on a GPU has captured
        self.participation = self.plan.participation_of(task.clients.sizes)

    def rounds_left(self) -> int:
        return 0 if self.callbacks.stopped else self.plan.rounds - self.done

    def left(self) -> RemainingWork:
        """Return what is still to be trained."""
        rounds = max(0, self.rounds_left())
        return RemainingWork(rounds, self.participation.selected(self.done) if rounds else ())

    # ---- before and after ----------------------------------------------------------------------------------------
    def restore(self, latest: int | None = None) -> None:
        """Go back to the last checkpoint of the folder, if there is one, or the last one up to a round; nothing is
        written."""
        if self.folder is None:
            return
        there = self.folder.read_experiment()
        identity = None if there is None else fingerprint_of(there, self.plan.sets_copies_aside)
        found, warnings = checkpoint.find_newest(self.folder.checkpoints, self.task.device, identity, latest)
        if found is not None:
            if found.round > self.plan.rounds:
                raise FolderError(
                    f"{self.folder.path} is at round {found.round} already, past the {self.plan.rounds} asked for.",
                    "ask for more rounds, or choose another folder with --out",
                )
            if self.history is not None and found.round:
                raise FolderError(
                    f"{self.folder.path} is at round {found.round} already, and keeps no parameters of rounds.",
                    "keep_params=True needs a new folder, or none",
                )
            check_base(self.folder.path, found.base, self.task.base)
            self.done = self.saved = found.round
            self.server = take_up(found, self.method, self.participation.population)
            self.store.restore(found.places)
            self.judge.recall(found.scores)
            self.captured |= {*found.captured}
            self.callbacks.restore(found.followed, found.round)
        start = 0 if checkpoint.list_checkpoints(self.folder.checkpoints) else None
        self.lines = self.folder.lines_of(start if found is None else found.round)
        self.records = [RoundRecord.loads(line) for line in self.lines]
        read_environment(self.folder.path)  # to know that it can be read
        self.shared = bool(read_json(self.folder.path / TIMING).get("shared"))
        for line in warnings:
            log.warning("%s", line)

    def save(self) -> None:
        """Write a checkpoint of the last finished round."""
        if self.folder is None or self.saved == self.done:
            return
        began = time.perf_counter()
        with delay_signals():
            self.folder.sync()
            places, identity = self.store.save(), self.experiment.fingerprint()
            followed, scores = self.callbacks.save(self.folder.checkpoints, identity), self.judge.tested.unchanged
            kept = (self.done, self.server, places, scores, self.task.base, True, followed, self.captured)
            Checkpoint(*kept, self.participation.population).save(self.folder.checkpoints, identity)
            checkpoint.prune(self.folder.checkpoints)
            self.saved, self.saving = self.done, time.perf_counter() - began
            if not self.folder.kept_before():
                self._write_timing()
        self.seconds.add("checkpoints", self.saving)

    def run_rounds(self, engine: Engine, progress: Progress | None = None) -> RunInProgress:
        """Run all rounds that are left; the caller trains the clients, the engine here only scores."""
        told = self.done
        self.clock.restart()
        try:
            self.call_back()  # of the last round, where the run was killed between it and its callbacks
            while self.rounds_left() > 0:
                record = yield from self.run_round(engine)
                self.call_back()
                if progress is not None:
                    progress.round(record)
                if self.folder is not None and self.clock.is_due(self.done, self.checkpoint_seconds, self.saving):
                    self.save()
                    self.callbacks.see_checkpoint(self.experiment, self.records, deploy(self.method, self.server))
                    self.clock.restart()
                    told = self.done
        except DivergedError as error:
            if self.folder is not None:
                self.folder.write_json(DIVERGED, {"round": self.done + 1, "reason": error.message})
            raise
        finally:
            # Ctrl-C and failures included: state is replaced only when a round is complete
            self.save()
            self.seconds.merge(getattr(engine, "seconds", {}))
            self._write_timing()
        if told < self.done and self.folder is not None:
            self.callbacks.see_checkpoint(self.experiment, self.records, deploy(self.method, self.server))

    def conclude(
        self, engine: Engine, progress: Progress | None = None, tuner: Callable[[], Engine] | None = None
    ) -> Run:
        """Judge what was trained, and write the result."""
        identity = self.experiment.fingerprint()
        model, trained = deploy(self.method, self.server), self.server if self.method.deploys_another else None
        final = result(self.records, model, self.plan.evaluate_every, identity, trained)
        final |= self.judge.verdict(engine, tuner, self.server, self.records) | self.callbacks.result()
        if self.folder is not None:
            self.folder.write_result(final)
        path = None if self.folder is None else self.folder.path
        given, kept = (self.task.problem, self.history), (self.callbacks.state.kept, self.callbacks.models)
        run = Run(self.experiment, self.records, final, self.server, path, *given, *kept, base=self.task.base)
        self.callbacks.see_end(run)
        if progress is not None:
            progress.finished(run)
        return run

    def call_back(self) -> None:
        """Tell the callbacks of the last round, if they have not been told yet."""
        if self.callbacks.state.seen < self.done:
            self.callbacks.see_round(self.experiment, self.records, deploy(self.method, self.server))
            self.saved = -1

    def _write_timing(self) -> None:
        if self.folder is not None:
            total = sum(record.seconds for record in self.records)
            parts = {name: round(value, 3) for name, value in sorted(self.seconds.items())}
            self.folder.write_json(TIMING, {"seconds": round(total, 3), "shared": self.shared, "this_session": parts})

    # ---- one round -----------------------------------------------------------------------------------------------
    def run_round(self, engine: Engine) -> Generator[RoundRequest, list[ClientOutcome], RoundRecord]:
        began, t = time.perf_counter(), self.done
        self.shared |= self.together > 1 or used_by_others(self.task.device)
        selected = self.participation.selected(t)
        answering = self.participation.answering(t, selected)
        message = broadcast(self.method, self.server)
        lr = self.plan.lr_at(t)
        policy = self.plan.evaluation if self.plan.evaluates(t + 1) else None
        personal = PersonalScores({}, {})
        if policy is not None and policy.when == "before":
            personal = self.judge.personal(engine, self.server, policy, selected)
        outcomes = yield RoundRequest(message, t, lr, answering, [self.store.get(client) for client in answering])
        kept, dropped = self.drop_nonfinite(outcomes, t)
        server, loss, drift, tracked = self.server, math.nan, math.nan, {}
        timed = time.perf_counter()
        if kept:
            reports = stack([outcome.report for outcome in kept])
            reports["population"] = reports["lr"].new_tensor(float(self.participation.population))
            if self.method.server_phase is not None:
                reports["learned"] = self.run_server_phase(message, reports, t, lr)
            server = server_round(self.method, server, reports, self.plan.server_share_at(t))
            if not all_finite(server):  # momenta and control variates, too: they are the next round's
                raise explain_server_divergence(server, t + 1)
            loss = float(reports["loss"].to(torch.float64).mean())
            if reports["delta"].layout.size:  # else rules send what clients learned in slots of their own
                drift = float(measure_moves(self.method, reports).to(torch.float64).mean())
            if self.observers:
                clients = [outcome.client for outcome in kept]
                states = [client_state(self.method, self.task, outcome.state) for outcome in kept]
                # the store still has the clients as they were before the round
                probe = Probe(self.task, self.method, self.plan, self.server, t, clients, self.store.get)
                seen = Seen(t + 1, message, reports, server, self.method, states, probe, self.plan.rounds)
                tracked = observe_round(self.observers, seen)
        else:
            server = remember(self.method, server)
        self.seconds.add("aggregation", time.perf_counter() - timed)
        measures = self.judge.evaluate(engine, server, t + 1)
        if policy is not None:
            if policy.when == "after":
                personal = self.judge.personal(engine, server, policy, selected, {o.client: o.state for o in kept})
            # a run that judges clients' models is judged by them
            measures = self.judge.by_clients(measures, personal.measures)
        check_names(tracked, measures)
        record = RoundRecord(
            round=t + 1,
            selected=selected,
            loss=finite(loss),
            drift=finite(drift),
            backward_passes=sum(passes(self.method, self.plan.training, self.task, t, client) for client in answering),
            bytes_down=state_bytes(sent(self.method, message)) * len(selected),
            bytes_up=state_bytes([uploaded(outcome.report) for outcome in outcomes]),
            seconds=round((time.perf_counter() - began) / self.together, 6),
            accuracy=measures.pop("accuracy", None),
            absent=sorted(set(selected) - {outcome.client for outcome in outcomes}),
            dropped=dropped,
            extra=measures | tracked,
            clients=personal.clients,
        )
        with delay_signals():  # no signal leaves half a round behind
            if self.folder is not None:
                self.folder.append(record)
            if self.history is not None:
                self.history.append(server["params"].named())
            self.records.append(record)
            self.done, self.server = t + 1, server
            self.judge.settle(outcome.client for outcome in kept)
            for outcome in kept:
                if outcome.state:
                    self.store.put(outcome.client, outcome.state, self.done)
        self.store.trim()
        return record

    def run_server_phase(self, message: State, reports: State, t: int, lr: float) -> State:
        """Run the server's own phase on proxy data: the same round, with the server as its only client."""
        assert self.method.server_phase is not None
        if self.server_engine is None:
            alone = Method(self.method.name, (self.method.server_phase,), self.method.weights)
            problem = replace(self.task.problem, clients=[self.task.problem.proxy], tests=None)
            task = Task(problem, device=self.task.device, dtype=self.task.dtype, start=self.task.start)
            self.server_engine = SerialEngine(task, alone, Training(self.plan.seed, 1, self.plan.batch_size))
        start = self.method.weights.begin(reports, self.server)
        return self.server_engine.train_one(message, t, lr, 0, start).state

    def drop_nonfinite(self, outcomes: list[ClientOutcome], t: int) -> tuple[list[ClientOutcome], list[int]]:
        """Return the outcomes whose every number is finite, and the other clients: those change nothing."""
        kept = [outcome for outcome in outcomes if outcome.is_finite]
        dropped = sorted({o.client for o in outcomes} - {o.client for o in kept})
        if dropped and (self.plan.on_nonfinite == "stop" or not kept):
            raise explain_divergence(self.task, dropped, len(outcomes), t + 1)
        if dropped:
            why = explain_by_data(self.task, dropped)
            log.warning("round %d: left out the reports of clients %s, which are not finite%s", t + 1, dropped, why)
        return kept, dropped
