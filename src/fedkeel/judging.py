"""How well models do: the server's on the test set, and clients' own where an evaluation policy asks for them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedkeel.accounting import finite
from fedkeel.clock import Clock
from fedkeel.engines.engine import Engine, Model, evaluated, state_of
from fedkeel.evaluation import Evaluation, spread
from fedkeel.experiment import Experiment
from fedkeel.method import Method
from fedkeel.record import RoundRecord
from fedkeel.round import begin, broadcast
from fedkeel.rule import State
from fedkeel.store import ClientStore
from fedkeel.task import CLIENT, Scores, Task, add_up

log = logging.getLogger("fedkeel")

Measures = dict[str, float | None]


@dataclass(frozen=True)
class Judge:
    """Scores models as an experiment says."""

    experiment: Experiment
    task: Task
    method: Method
    store: ClientStore
    seconds: Clock
    unchanged: dict[int, list[Scores]] = field(default_factory=dict)  # of clients' own models, since they last trained
    scored: dict[int, list[Scores]] = field(default_factory=dict)  # of clients' own models, in this round

    def settle(self, trained: Iterable[int]) -> None:
        """A round is complete, in which these clients trained: what was scored before they did is out of date."""
        gone = set(trained)
        if (policy := self.experiment.policy) is not None and policy.when == "after":
            gone -= self.scored.keys()
        self.unchanged.update(self.scored)
        for client in gone:
            self.unchanged.pop(client, None)
        self.scored.clear()

    def due(self, round: int) -> bool:
        return round % self.experiment.evaluate_every == 0 or round == self.experiment.rounds

    def evaluate(self, engine: Engine, server: State, round: int) -> Measures:
        """Measures of the server's model, where this round is an evaluated one."""
        if not self.due(round):
            return {}
        began = time.perf_counter()
        found: Measures = {}
        for split in ("test", "validation"):
            for name, value in add_up(engine.evaluate(server["params"], server.get("buffers"), split)).items():
                plain = name != "loss" and split == "test"
                found[name if plain else f"{split}_{name}"] = finite(value)
        self.seconds.add("evaluation", time.perf_counter() - began)
        return found

    def personal(
        self,
        engine: Engine,
        server: State,
        policy: Evaluation,
        selected: Sequence[int],
        fresh: Mapping[int, State] | None = None,
    ) -> Measures:
        """What the evaluation policy makes of the clients' models; `fresh` states are not in the store yet.

        A client's own model that was scored since it last trained is not scored again.
        """
        began = time.perf_counter()
        assert self.task.tests is not None
        sizes, message, known = self.task.tests.sizes, broadcast(self.method, server), fresh or {}
        clients = [c for c in (selected if policy.clients == "selected" else range(len(sizes))) if sizes[c] > 0]

        def model_of(client: int) -> Model:
            state = known[client] if client in known else state_of(self.method, self.task, self.store.get(client))
            params, buffers = server["params"], server.get("buffers")
            if policy.model == "local":
                params, buffers = state["kept"], state.get("buffers")
            elif policy.model == "received":
                params, state = begin(self.method, message, state)
                buffers = state.get("buffers", buffers)
            return Model(params, buffers, f"{CLIENT}{client}")

        before = self.unchanged if policy.model == "local" else {}
        asked = [client for client in clients if client in known or client not in before]
        now = dict(zip(asked, evaluated(engine, map(model_of, asked)), strict=True))
        self.scored.clear()
        self.scored.update(now if policy.model == "local" else {})
        found = [now[client] if client in now else before[client] for client in clients]
        measured: Measures = {}
        for name in found[0][0] if found else ():
            weights = [float(sizes[c]) if policy.weights == "size" else 1.0 for c in clients]
            measured |= spread([policy.of_client(scores, name) for scores in found], weights, name)
        self.seconds.add("evaluation", time.perf_counter() - began)
        return {name: None if value is None else finite(value) for name, value in measured.items()}

    def verdict(
        self, engine: Engine, tuner: Callable[[], Engine] | None, server: State, records: Sequence[RoundRecord]
    ) -> dict[str, Any]:
        """The number the evaluation policy reports, after the final phase where the method has one."""
        policy = self.experiment.policy
        if policy is None:
            if self.method.final is not None:
                log.warning("%s ends in personal models, which only an evaluation policy judges", self.method.name)
            return {}
        every, last = self.experiment.evaluate_every, records[-1].round if records else 0
        counted = [r for r in records if r.round % every == 0 or r.round == last]  # as if it had never been shorter
        values = [v for record in counted if (v := record.measure("client_accuracy")) is not None]
        data: dict[str, Any] = {}
        if self.method.final is not None and tuner is not None:
            data["tuned"] = self.tune(engine, tuner(), server, len(records))
            if (tuned := data["tuned"].get("client_accuracy")) is not None:
                values.append(tuned)
        return data | ({"reported": policy.reported(values), "reported_as": policy.report} if values else {})

    def tune(self, engine: Engine, tuning: Engine, server: State, rounds: int) -> Measures:
        """The final phase of every client, from the global model; nothing of it is kept but the scores."""
        message = broadcast(self.method, server)
        clients = [int(c) for c in np.flatnonzero(self.task.clients.sizes > 0)]
        # also those who never took part know what the others know, so that all can be stacked
        states = [state_of(self.method, self.task, self.store.get(client)) for client in clients]
        outcomes = tuning.train(message, rounds, self.experiment.lr_at(rounds), clients, states)
        policy = self.experiment.policy
        assert policy is not None
        everyone = replace(policy, model="local", clients="all")
        return self.personal(engine, server, everyone, clients, {o.client: o.state for o in outcomes})
