"""How well models do: the server's on the test set, and clients' own where an evaluation policy asks for them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from fedkeel.core.method import Method
from fedkeel.core.round import broadcast, deploy
from fedkeel.core.rule import State
from fedkeel.data.clients import ClientData
from fedkeel.engines.cost import Clock, finite
from fedkeel.engines.engine import Engine, ScoreRequest, client_state, evaluate_all
from fedkeel.engines.scoring import Scorer
from fedkeel.problems.gradients import Workspace
from fedkeel.problems.policy import Evaluation, summarise_clients
from fedkeel.problems.predictions import Scores, average_scores
from fedkeel.problems.task import CLIENT, Task
from fedkeel.problems.try_out import explain_by_rows
from fedkeel.problems.whole_metrics import WholeMetrics
from fedkeel.runs.client_model import ClientModels
from fedkeel.runs.plan import Plan
from fedkeel.runs.record import RoundRecord, counted
from fedkeel.runs.store import ClientStore

log = logging.getLogger("fedkeel")

Measures = dict[str, float | None]
Score = Callable[[Iterable[ScoreRequest]], list[list[Scores]]]
SERVERS = {"accuracy": "server_accuracy", "test_loss": "server_loss"}
"""What measures of the server's model are called where a run is judged by its clients' models."""


PLAIN = "plain_"
"""What measures of the model that is trained begin with, where another one is deployed."""


class PersonalScores(NamedTuple):
    """What clients' models reached: summed up over clients, and for every client by measure."""

    measures: Measures
    clients: dict[str, list[float | None]]


@dataclass(frozen=True)
class Known:
    """Scores of clients' own models: since they last trained, and of this round."""

    unchanged: dict[int, list[Scores]] = field(default_factory=dict)
    now: dict[int, list[Scores]] = field(default_factory=dict)

    def settle(self, trained: Iterable[int], *, before: bool) -> None:
        """These clients trained: what was scored `before` they did is out of date."""
        gone = set(trained) - (set() if before else self.now.keys())
        self.unchanged.update(self.now)
        for client in gone:
            self.unchanged.pop(client, None)
        self.now.clear()


@dataclass(frozen=True)
class Judge:
    """Scores models as a plan says."""

    plan: Plan
    task: Task
    method: Method
    store: ClientStore
    seconds: Clock
    tested: Known = field(default_factory=Known)
    validated: Known = field(default_factory=Known)

    def recall(self, scores: Mapping[int, list[Scores]]) -> None:
        """Take up scores of clients' own models from before a stop, where the same is measured now."""
        always, whole = {"loss", "accuracy"}, {*self.task.whole_metrics}

        def names_now(client: int) -> set[str]:
            away = whole and next(self.task.parts(f"{CLIENT}{client}"), None) is None  # at a site: they are left out
            return {*self.task.metrics} - always - (whole if away else set())

        same = {one: parts for one, parts in scores.items() if parts and {*parts[0]} - always == names_now(one)}
        # checkpoints hold names in another order, and records have those of the first client
        hits = ["accuracy"] if self.task.label_beyond is None else []
        order = ["loss", *hits, *(name for name in self.task.metrics if name not in whole), *sorted(whole), "accuracy"]
        for client, parts in same.items():
            ordered = [{name: part[name] for name in sorted(part, key=order.index)} for part in parts]
            self.tested.unchanged[client] = ordered

    def settle(self, trained: Iterable[int]) -> None:
        """Note that a round is complete in which these clients trained."""
        policy, clients = self.plan.evaluation, list(trained)
        for known in (self.tested, self.validated):
            known.settle(clients, before=policy is None or policy.when == "before")

    def evaluate(self, engine: Engine, server: State, round: int) -> Measures:
        """Measure the model that is deployed, where this round is an evaluated one.

        Where it is not the one that is trained, those of the latter are `plain_…`.
        """
        if not self.plan.evaluates(round):
            return {}
        began = time.perf_counter()
        found: Measures = {}
        models = {"": deploy(self.method, server)} | ({PLAIN: server} if self.method.deploys_another else {})
        for (prefix, model), split in product(models.items(), ("test", "validation")):
            request = ScoreRequest(model["params"], model.get("buffers"), split)
            scores = self.whole(*request, engine.evaluate(*request))
            for name, value in average_scores(scores).items():
                short = name != "loss" and split == "test"
                found[prefix + (name if short else f"{split}_{name}")] = finite(value)
        self.seconds.add("evaluation", time.perf_counter() - began)
        return found

    def personal(
        self,
        engine: Engine,
        server: State,
        policy: Evaluation,
        selected: Sequence[int],
        fresh: Mapping[int, State] | None = None,
    ) -> PersonalScores:
        """Measure the clients' models as the evaluation policy says; `fresh` states are not in the store yet.

        On their test sets, and, as measures of their own, on what they set aside for validation: settings are chosen
        by it. A client's own model that was scored since it last trained is not scored again.
        """
        began, states = time.perf_counter(), fresh or {}
        models = ClientModels(self.plan, self.task, self.method, server, policy.model)

        def model_of(client: int) -> ScoreRequest:
            own = states[client] if client in states else self.store.get(client)
            return ScoreRequest(*models(own), f"{CLIENT}{client}")

        vectors: dict[str, list[float | None]] = {}

        def over_clients(
            data: ClientData, known: Known, score: Score, whole: WholeMetrics
        ) -> Iterator[tuple[str, Measures]]:
            everyone = selected if policy.clients == "selected" else range(len(data.sizes))
            clients = [client for client in everyone if data.sizes[client] > 0]
            before = known.unchanged if policy.model == "local" else {}
            asked = [client for client in clients if client in states or client not in before]
            scored = score(map(model_of, asked))
            if whole.names:
                pairs = zip(map(model_of, asked), scored, strict=True)
                scored = [whole(*model, scores) for model, scores in pairs]
            now = dict(zip(asked, scored, strict=True))
            whole.check_taken(model_of(client) for client in np.flatnonzero(data.sizes).tolist() if client not in now)
            known.now.clear()
            known.now.update(now if policy.model == "local" else {})
            found = [now[client] if client in now else before[client] for client in clients]
            weights = [float(data.sizes[c]) if policy.weights == "size" else 1.0 for c in clients]
            for name in found[0][0] if found else ():
                values = [policy.score_client(scores, name) for scores in found]
                vectors[name] = spread_out(values, clients, len(data.sizes))
                # a metric may have no meaning for some clients: an area under a curve, of one class
                may_lack = [name in whole.names or has_no_target(scores) for scores in found]
                there = [i for i, value in enumerate(values) if math.isfinite(value) or not may_lack[i]]
                chosen = [values[i] for i in there], [weights[i] for i in there]
                yield name, summarise_clients(*chosen, name) if there else {f"client_{name}": None}

        measured: Measures = {}
        assert self.task.tests is not None
        for _, values in over_clients(self.task.tests, self.tested, partial(evaluate_all, engine), self.whole):
            measured |= values
        tested, vectors = vectors, {}
        if self.task.validation is not None:
            scorer, whole = self.on_validation_shares
            for name, values in over_clients(self.task.validation, self.validated, scorer.many, whole):
                measured[f"validation_client_{name}"] = values[f"client_{name}"]
        self.seconds.add("evaluation", time.perf_counter() - began)
        return PersonalScores({n: None if value is None else finite(value) for n, value in measured.items()}, tested)

    @cached_property
    def whole(self) -> WholeMetrics:
        """What is measured of all samples at once. Samples of clients that have not trained yet show what that is."""
        with explain_by_rows(self.task):
            return WholeMetrics(self.task)

    @cached_property
    def on_validation_shares(self) -> tuple[Scorer, WholeMetrics]:
        """Scores a client's model on what that client set aside, as if it were its test set.

        Each model alone, so that its score does not depend on who else is scored, also after a pause.
        """
        task = self.task
        problem = replace(task.problem, tests=task.validation)
        own = Task(
            problem, device=task.device, dtype=task.compute, personal_chunk=task.personal_chunk, start=task.start
        )
        return Scorer(Workspace(own)), WholeMetrics(own)

    def by_clients(self, measures: Measures, personal: Measures) -> Measures:
        """Rename the measures of a round that is judged by clients' models: the server's get names of their own."""
        found = {SERVERS.get(name, name): value for name, value in measures.items()} | personal
        return found | ({"accuracy": personal["client_accuracy"]} if "client_accuracy" in personal else {})

    def verdict(
        self, engine: Engine, tuner: Callable[[], Engine] | None, server: State, records: Sequence[RoundRecord]
    ) -> dict[str, Any]:
        """Return the number that the evaluation policy reports, after the final phase where the method has one."""
        policy = self.plan.evaluation
        if policy is None:
            return {}
        data: dict[str, Any] = {}
        if self.method.final is not None and tuner is not None:
            data["tuned"] = self.tune(engine, tuner(), server, len(records), policy)
        judged = counted(records, self.plan.evaluate_every)
        reported = policy.summarise_rounds([*(record.extra for record in judged), data.get("tuned", {})], "client_")
        return data | ({} if reported is None else {"reported": reported[1], "reported_as": policy.report})

    def tune(self, engine: Engine, tuning: Engine, server: State, rounds: int, policy: Evaluation) -> Measures:
        """Run the final phase of every client, from the global model; only the scores are kept."""
        message = broadcast(self.method, server)
        clients = [int(c) for c in np.flatnonzero(self.task.clients.sizes > 0)]
        # also those who never took part know what the others know, so that all can be stacked
        states = [client_state(self.method, self.task, self.store.get(client)) for client in clients]
        outcomes = tuning.train(message, rounds, self.plan.lr_at(rounds), clients, states)
        everyone = replace(policy, model="local", clients="all")
        return self.personal(engine, server, everyone, clients, {o.client: o.state for o in outcomes}).measures


def has_no_target(scores: Sequence[Scores]) -> bool:
    """Whether no target of a client names a class, so that its accuracy has no meaning."""
    return all("accuracy" in part and not part["accuracy"][1] for part in scores)


def spread_out(values: Sequence[float], clients: Sequence[int], count: int) -> list[float | None]:
    """One value for every client, in six digits; None for those that were not scored."""
    found: list[float | None] = [None] * count
    for client, value in zip(clients, values, strict=True):
        found[client] = float(f"{value:.6g}") if math.isfinite(value) else None
    return found
