"""The loop over rounds: choose, broadcast, train, combine, evaluate, record, checkpoint."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from fedkeel import checkpoint
from fedkeel.checkpoint import Checkpoint
from fedkeel.clock import Clock
from fedkeel.data.batches import steps
from fedkeel.engines.choose import make_engine
from fedkeel.engines.engine import Engine, Outcome, Training, state_of
from fedkeel.engines.serial import SerialEngine
from fedkeel.environment import environment
from fedkeel.errors import FolderError, RunError
from fedkeel.evaluation import Evaluation, spread
from fedkeel.experiment import Experiment
from fedkeel.folder import RunFolder
from fedkeel.machine import device_of, state_budget, steady, undisturbed
from fedkeel.method import FACTS, Method
from fedkeel.participation import Participation
from fedkeel.record import RoundRecord, result
from fedkeel.round import begin, broadcast, init_server, server_round
from fedkeel.rule import State
from fedkeel.runs import Run
from fedkeel.setup import method_of, problem_of, task_maker
from fedkeel.store import ClientStore
from fedkeel.task import CLIENT, Scores, Task, add_up
from fedkeel.tracking import Observer, Seen, observed, observers
from fedkeel.trees import stack, tensors

log = logging.getLogger("fedkeel")

CHECKPOINT_SECONDS = 30.0
SHARE = 20  # a checkpoint that takes long is written more seldom: a twentieth of the time at most


class Progress(Protocol):
    """Who wants to know how a run goes."""

    def started(self, experiment: Experiment, done: int, engine: str) -> None: ...

    def round(self, record: RoundRecord) -> None: ...

    def finished(self, run: Run) -> None: ...


def run(
    experiment: Experiment,
    *,
    out: str | PathLike[str] | None = None,
    engine: str = "auto",
    device: str = "auto",
    dtype: torch.dtype = torch.float32,
    keep_params: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    command: Sequence[str] | None = None,
    track: Sequence[str | Observer] = (),
) -> Run:
    """Train. With a folder `out`, a run that stands there already goes on from its last checkpoint, bit for bit.

    `track` names what is measured in every round besides: "drift", "spectrum", "state", or functions of one's own.
    """
    where = device_of(device)
    folder = None if out is None else RunFolder(Path(out))
    with steady(), contextlib.ExitStack() as closing:
        if folder is not None:
            folder.open()
            closing.callback(folder.close)
            claim(folder, experiment)
        began = time.perf_counter()
        maker = task_maker(experiment, where, dtype)
        task = maker(problem_of(experiment))
        method = method_of(experiment, task)
        assert experiment.epochs is not None
        assert experiment.batch_size is not None
        training = Training(experiment.seed, experiment.epochs, experiment.batch_size)
        loop = Loop(experiment, task, method, folder, keep_params, checkpoint_seconds, observers(track))
        closing.callback(loop.store.close)
        loop.restore()
        made = make_engine(engine, task, method, training, maker, workers, loop.trainings_left())
        closing.callback(made.close)
        loop.seconds.add("setup", time.perf_counter() - began)
        if folder is not None:
            folder.write_json("environment.json", environment(where, dtype, made.name, command))
        if progress is not None:
            progress.started(experiment, loop.done, made.name)

        def tuner() -> Engine:
            tuning = method_of(experiment, task).tuning
            engine_there = make_engine(engine, maker(task.problem), tuning, training, maker, workers, 0)
            closing.callback(engine_there.close)
            return engine_there

        finished = loop.go(made, training, progress, tuner)
        if progress is not None:
            progress.finished(finished)
        return finished


def claim(folder: RunFolder, experiment: Experiment) -> None:
    """Take a folder for an experiment: an empty one, or one that holds this experiment already."""
    there = folder.read_experiment()
    if there is not None:
        data = experiment.save()
        mine = {name: value for name, value in data.items() if name != "rounds"}
        other = {name: value for name, value in there.items() if name != "rounds"}
        if mine != other:
            keys = sorted(k for k in {*mine, *other} if mine.get(k) != other.get(k))
            raise FolderError(
                f"{folder.path} holds another experiment (it differs in: {', '.join(keys)}).",
                "choose another folder with --out, or `fedkeel resume` that one",
            )


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
    ):
        self.experiment, self.task, self.method, self.folder = experiment, task, method, folder
        self.done, self.observers = 0, observers
        self.server: State = init_server(method, task.initial, task.buffers)
        self.store = ClientStore(None if folder is None else folder.checkpoints, task.device, state_budget(task.device))
        self.records: list[RoundRecord] = []
        self.history: list[dict[str, torch.Tensor]] | None = [] if keep_params else None
        self.seconds = Clock()
        self.saved, self.saving, self.checkpoint_seconds = -1, 0.0, checkpoint_seconds
        self.server_engine: SerialEngine | None = None
        assert experiment.participation is not None
        self.participation = Participation(
            experiment.seed,
            task.clients.sizes,
            experiment.participation,
            experiment.unavailable,
            experiment.participants,
        )

    def rounds_left(self) -> int:
        assert self.experiment.rounds is not None
        return self.experiment.rounds - self.done

    def trainings_left(self) -> int:
        """How many times a client is still to be trained."""
        return 0 if self.rounds_left() <= 0 else self.rounds_left() * len(self.participation.selected(self.done))

    # ---- before and after ----------------------------------------------------------------------------------------
    def restore(self) -> None:
        """Go back to the last checkpoint of the folder, if there is one."""
        if self.folder is None:
            return
        found, wrong = checkpoint.newest(self.folder.checkpoints, self.task.device)
        for problem in wrong:
            log.warning("skipping a damaged checkpoint: %s", problem)
        if found is not None:
            if found.round > (self.experiment.rounds or 0):
                asked = self.experiment.rounds
                raise FolderError(
                    f"{self.folder.path} is at round {found.round} already, past the {asked} asked for.",
                    "ask for more rounds, or choose another folder with --out",
                )
            self.done = self.saved = found.round
            self.server = found.server
            self.store.restore(found.places)
        # nothing is written before everything there was read
        self.folder.write_experiment(self.experiment.save())
        self.records = self.folder.begin(self.done)

    def save(self) -> None:
        """Write a checkpoint of the last finished round."""
        if self.folder is None or self.saved == self.done:
            return
        began = time.perf_counter()
        self.folder.sync()
        # the last one of a run is whole, so that its bytes do not tell how often the run was interrupted
        places = self.store.save(self.done, whole=self.rounds_left() <= 0)
        Checkpoint(self.done, self.server, places).save(self.folder.checkpoints, self.experiment.fingerprint())
        checkpoint.prune(self.folder.checkpoints)
        self.saved, self.saving = self.done, time.perf_counter() - began
        self.seconds.add("checkpoints", self.saving)

    def go(
        self, engine: Engine, training: Training, progress: Progress | None, tuner: Callable[[], Engine] | None = None
    ) -> Run:
        """All rounds that are left."""
        last_saved = time.monotonic()
        try:
            while self.rounds_left() > 0:
                record = self.one_round(engine, training)
                if progress is not None:
                    progress.round(record)
                if time.monotonic() - last_saved >= max(self.checkpoint_seconds, SHARE * self.saving):
                    self.save()
                    last_saved = time.monotonic()
        finally:
            # Ctrl-C and failures included: state is replaced only when a round is complete
            self.save()
            self.seconds.merge(getattr(engine, "seconds", {}))
            self._write_timing()
        final = result(
            self.records, self.server["params"], self.experiment.evaluate_every, self.experiment.fingerprint()
        )
        final |= self.verdict(engine, tuner)
        if self.folder is not None:
            self.folder.write_json("result.json", final)
        path = None if self.folder is None else self.folder.path
        return Run(self.experiment, self.records, final, self.server, path, self.task.problem, self.history)

    def _write_timing(self) -> None:
        if self.folder is not None:
            total = sum(record.seconds for record in self.records)
            parts = {name: round(value, 3) for name, value in sorted(self.seconds.items())}
            self.folder.write_json("timing.json", {"seconds": round(total, 3), "this_session": parts})

    # ---- one round -----------------------------------------------------------------------------------------------
    def one_round(self, engine: Engine, training: Training) -> RoundRecord:
        began, t = time.perf_counter(), self.done
        selected = self.participation.selected(t)
        answering = self.participation.answering(t, selected)
        message = broadcast(self.method, self.server)
        lr = self.experiment.lr_at(t)
        policy = self.experiment.policy if self.judged(t + 1) else None
        personal = {}
        if policy is not None and policy.when == "before":
            personal = self.personal(engine, self.server, policy, selected)
        outcomes = engine.train(message, t, lr, answering, [self.store.get(client) for client in answering])
        kept, dropped = self.sound(outcomes, t)
        server, loss, drift, tracked = self.server, math.nan, math.nan, {}
        timed = time.perf_counter()
        if kept:
            reports = stack([outcome.report for outcome in kept])
            reports["population"] = reports["lr"].new_tensor(float(self.participation.population))
            if self.method.server_phase is not None:
                reports["learned"] = self.learn(message, reports, t, lr)
            server = server_round(self.method, server, reports)
            loss = float(reports["loss"].to(torch.float64).mean())
            drift = float(reports["delta"].norm().to(torch.float64).mean())
            tracked = observed(self.observers, Seen(t + 1, message, reports, server))
        self.seconds.add("aggregation", time.perf_counter() - timed)
        measures = self.evaluate(engine, server, t + 1)
        if policy is not None:
            if policy.when == "after":
                personal = self.personal(engine, server, policy, selected, {o.client: o.state for o in kept})
            # a run that judges clients' models is judged by them
            measures = {f"server_{n}" if n == "accuracy" else n: v for n, v in measures.items()} | personal
            measures |= {"accuracy": personal["client_accuracy"]} if "client_accuracy" in personal else {}
        record = RoundRecord(
            round=t + 1,
            selected=selected,
            loss=finite(loss),
            drift=finite(drift),
            backward_passes=sum(passes(self.method, training, self.task, t, client) for client in answering),
            bytes_down=sum(size_of(slot) for slot in tensors(message)) * len(selected),
            bytes_up=sum(size_of(slot) for outcome in outcomes for slot in tensors(uploaded(outcome.report))),
            seconds=round(time.perf_counter() - began, 6),
            accuracy=measures.pop("accuracy", None),
            absent=sorted(set(selected) - set(answering)),
            dropped=dropped,
            extra=measures | tracked,
        )
        with undisturbed():  # no signal leaves half a round behind
            if self.folder is not None:
                self.folder.append(record)
            if self.history is not None:
                self.history.append(server["params"].named())
            self.records.append(record)
            self.done, self.server = t + 1, server
            for outcome in kept:
                if outcome.state:
                    self.store.put(outcome.client, outcome.state)
        self.store.trim()
        return record

    def personal(
        self,
        engine: Engine,
        server: State,
        policy: Evaluation,
        selected: Sequence[int],
        fresh: Mapping[int, State] | None = None,
    ) -> dict[str, float | None]:
        """What the evaluation policy makes of the clients' models."""
        began = time.perf_counter()
        assert self.task.tests is not None
        sizes, message, known = self.task.tests.sizes, broadcast(self.method, server), fresh or {}
        clients = [c for c in (selected if policy.clients == "selected" else range(len(sizes))) if sizes[c] > 0]
        found: list[list[Scores]] = []
        for client in clients:
            state = known[client] if client in known else state_of(self.method, self.task, self.store.get(client))
            params, buffers = server["params"], server.get("buffers")
            if policy.model == "local":
                params, buffers = state["kept"], state.get("buffers")
            elif policy.model == "received":
                params = begin(self.method, message, state)
            found.append(engine.evaluate(params, buffers, f"{CLIENT}{client}"))
        measured: dict[str, float | None] = {}
        for name in found[0][0] if found else ():
            weights = [float(sizes[c]) if policy.weights == "size" else 1.0 for c in clients]
            measured |= spread([policy.of_client(scores, name) for scores in found], weights, name)
        self.seconds.add("evaluation", time.perf_counter() - began)
        return {name: None if value is None else finite(value) for name, value in measured.items()}

    def verdict(self, engine: Engine, tuner: Callable[[], Engine] | None) -> dict[str, Any]:
        """The number the evaluation policy reports, after the final phase where the method has one."""
        policy = self.experiment.policy
        if policy is None:
            if self.method.final is not None:
                log.warning("%s ends in personal models, which only an evaluation policy judges", self.method.name)
            return {}
        values = [v for record in self.records if (v := record.measure("client_accuracy")) is not None]
        data: dict[str, Any] = {}
        if self.method.final is not None and tuner is not None:
            data["tuned"] = self.tune(engine, tuner())
            if (last := data["tuned"].get("client_accuracy")) is not None:
                values.append(last)
        return data | ({"reported": policy.reported(values), "reported_as": policy.report} if values else {})

    def tune(self, engine: Engine, tuning: Engine) -> dict[str, float | None]:
        """The final phase of every client, from the global model; nothing of it is kept but the scores."""
        message, rounds = broadcast(self.method, self.server), self.done
        clients = [int(c) for c in np.flatnonzero(self.task.clients.sizes > 0)]
        states = [self.store.get(client) for client in clients]
        outcomes = tuning.train(message, rounds, self.experiment.lr_at(rounds), clients, states)
        policy = self.experiment.policy
        assert policy is not None
        everyone = replace(policy, model="local", clients="all")
        return self.personal(engine, self.server, everyone, clients, {o.client: o.state for o in outcomes})

    def learn(self, message: State, reports: State, t: int, lr: float) -> State:
        """The server's own phase, on proxy data: the same round, with the server as its only client."""
        assert self.method.server_phase is not None
        if self.server_engine is None:
            alone = Method(self.method.name, (self.method.server_phase,), self.method.weights)
            problem = replace(self.task.problem, clients=[self.task.problem.proxy], tests=None)
            task = Task(problem, device=self.task.device, dtype=self.task.dtype)
            assert self.experiment.batch_size is not None
            self.server_engine = SerialEngine(
                task, alone, Training(self.experiment.seed, 1, self.experiment.batch_size)
            )
        begun = self.method.weights.begin(reports, self.server)
        return self.server_engine.train_one(message, t, lr, 0, begun).state

    def sound(self, outcomes: list[Outcome], t: int) -> tuple[list[Outcome], list[int]]:
        """Those whose every number is finite, and the clients of the others; a diverged client changes nothing."""
        kept = [outcome for outcome in outcomes if all_finite(outcome)]
        dropped = sorted({o.client for o in outcomes} - {o.client for o in kept})
        if dropped and (self.experiment.on_nonfinite == "stop" or not kept):
            raise RunError(
                f"the loss or the model of client {dropped[0]} is not finite in round {t + 1}"
                + (f" ({len(dropped)} of {len(outcomes)} clients)." if len(outcomes) > 1 else "."),
                "lower lr or set clip; the rounds before this one are kept",
            )
        if dropped:
            log.warning("round %d: left out the reports of clients %s, which are not finite", t + 1, dropped)
        return kept, dropped

    def judged(self, round: int) -> bool:
        return round % self.experiment.evaluate_every == 0 or round == self.experiment.rounds

    def evaluate(self, engine: Engine, server: State, round: int) -> dict[str, float | None]:
        """Measures of the server's model, where this round is an evaluated one."""
        if not self.judged(round):
            return {}
        began = time.perf_counter()
        found: dict[str, float | None] = {}
        for split in ("test", "validation"):
            for name, value in add_up(engine.evaluate(server["params"], server.get("buffers"), split)).items():
                plain = name != "loss" and split == "test"
                found[name if plain else f"{split}_{name}"] = finite(value)
        self.seconds.add("evaluation", time.perf_counter() - began)
        return found


def all_finite(outcome: Outcome) -> bool:
    found = [slot for slot in tensors((outcome.report, outcome.state)) if slot.is_floating_point()]
    return all(bool(torch.isfinite(slot).all()) for slot in found)


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def uploaded(report: State) -> State:
    """What a client sends, without the facts that the server knows or that weigh nothing."""
    return {name: slot for name, slot in report.items() if name == "delta" or name not in FACTS}


def size_of(slot: Any) -> int:
    return int(slot.numel() * slot.element_size())


def passes(method: Method, training: Training, task: Task, round: int, client: int) -> int:
    """Backward passes of one client in one round, as declared."""
    size, epochs = int(task.clients.sizes[client]), training.epochs_of(round, client)
    return sum(
        p.backward_passes * steps(size, training.batch_size, epochs, p.batches_of(size, training.batch_size))
        for p in method.phases
    )
