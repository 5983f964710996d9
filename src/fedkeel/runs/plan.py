"""A plan: what an experiment comes to, with every value in its final form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedkeel.core.client_epochs import ClientEpochs, read_epochs
from fedkeel.core.method import Method
from fedkeel.core.rule import Rule
from fedkeel.core.schedules import KEYS, ExponentialRate, NamedSchedule, Schedule, StepRate, read_schedule
from fedkeel.data.dataset import DatasetCard
from fedkeel.data.partition.partition import Partitioner
from fedkeel.data.partition.registry import load_partition, may_repeat
from fedkeel.data.storage.loading import find_card
from fedkeel.engines.engine import Training
from fedkeel.errors import ExperimentError
from fedkeel.importing import Trust
from fedkeel.methods.given import read_method
from fedkeel.methods.optimisers import find_optimiser, give_optimiser, read_optimiser
from fedkeel.models import card_of
from fedkeel.problems.divided import make_problem
from fedkeel.problems.given_network import list_classes
from fedkeel.problems.policy import Evaluation
from fedkeel.problems.problem import Problem
from fedkeel.rules.optimisers import Optimiser
from fedkeel.runs.participation import Participation, share_of

PLAIN = {"rounds": 100, "participation": 0.1, "epochs": 5, "batch_size": 50, "lr": 0.1}
"""Settings that neither the experiment nor its data set's preset gives."""

NEUTRAL = {"lr_decay": 1.0, "weight_decay": 0.0}


@dataclass(frozen=True)
class Division:
    """A data set, how it is divided among clients, and the network that learns from it."""

    dataset: str
    partition: Partitioner
    model: str | nn.Module
    augment: str

    @property
    def card(self) -> DatasetCard:
        return find_card(self.dataset)

    @property
    def code(self) -> tuple[object, ...]:
        """What may be code of one's own: the partition, and the network's module, or its classes."""
        if isinstance(self.model, str):
            return (self.partition, self.model.partition(":")[0])
        return (self.partition, *list_classes(self.model))

    @property
    def digest(self) -> str | None:
        """Identity of data whose name does not fix them: those of a set on the hub, once they are here."""
        return self.card.checksums.get("data")


@dataclass(frozen=True)
class Plan:
    """What is trained, on whose data, how, and how it is judged. None means none: nothing is left to a preset."""

    method: Method
    source: Division | Problem
    rounds: int
    participation: float | str
    epochs: float | tuple[int, int] | ClientEpochs | None
    steps: int | None
    batch_size: int
    lr: float
    lr_decay: float
    schedule: Schedule | None
    server_schedule: Schedule | None
    weight_decay: float
    clip: float | None
    seed: int
    partition_seed: int
    validation: float
    participants: Sequence[Sequence[int]] | None
    unavailable: float
    on_nonfinite: Literal["drop", "stop"]
    buffers: Literal["average", "keep"]
    evaluate_every: int
    init: str | None
    evaluation: Evaluation | None

    @property
    def division(self) -> Division:
        """How the data set is divided; a problem of its own has no data set."""
        if isinstance(self.source, Problem):
            raise ExperimentError("this takes an experiment with a data set.", 'dataset = "digits"')
        return self.source

    @property
    def training(self) -> Training:
        return Training(self.seed, 1 if self.epochs is None else self.epochs, self.batch_size, self.steps)

    @property
    def parts(self) -> tuple[object, ...]:
        """All that may be code of one's own and changes what is trained; of a network that is named, the module."""
        method = (*self.method.rules, *self.method.objectives)
        times = (self.schedule, self.server_schedule, self.epochs)
        return (*method, *(one for one in times if one is not None), *self.source.code)

    def participation_of(self, sizes: NDArray[np.int64]) -> Participation:
        """Who takes part, of clients with so many samples each."""
        return Participation(self.seed, sizes, self.participation, self.unavailable, self.participants)

    def evaluates(self, round: int) -> bool:
        """Whether models are scored after a round, counted from 1."""
        return round % self.evaluate_every == 0 or round == self.rounds

    def most_epochs(self, size: float) -> float:
        """Return the local epochs of a client of that size; the most, where they are drawn."""
        if self.steps is not None:
            return self.steps * self.batch_size / max(size, 1.0)
        assert self.epochs is not None
        if isinstance(self.epochs, ClientEpochs):
            return self.epochs.most_of(size)
        return self.epochs[1] if isinstance(self.epochs, tuple) else self.epochs

    @property
    def sets_copies_aside(self) -> bool:
        """Whether validation or test shares are cut from data in which a sample may come twice."""
        share = max(self.validation, 0.0 if self.evaluation is None else self.evaluation.share)
        return share > 0 and isinstance(self.source, Division) and may_repeat(self.source.partition)

    def lr_at(self, round: int) -> float:
        """Return η_t = η_0 γ^t, or what the schedule says; after the last round the rate stays where it is."""
        round = min(round, self.rounds - 1)
        if self.schedule is not None:
            return self.lr * self.schedule.share_at(round)
        return float(self.lr * self.lr_decay**round)

    def server_share_at(self, round: int) -> float:
        """Return the share of the server's rate in that round."""
        return 1.0 if self.server_schedule is None else self.server_schedule.share_at(round)

    def check_new(self) -> None:
        """Refuse in a new run what older runs may have."""
        for key, one in (("schedule", self.schedule), ("server_schedule", self.server_schedule)):
            if isinstance(one, StepRate):
                one.check_new(key)

    @property
    def decay(self) -> float:
        """By what the clients' rate is multiplied after each round, where that is always the same; else 1."""
        return self.schedule.decay if isinstance(self.schedule, ExponentialRate) else self.lr_decay


def plan(asked: Mapping[str, Any]) -> Plan:
    """The fields of an experiment, resolved: what was not given is the data set's preset, or plain."""
    method, source = _source(asked)
    method = give_optimiser(method, read_optimiser(asked["optimizer"]))
    preset = {} if isinstance(source, Problem) else source.card.preset
    defaults = {**PLAIN, **NEUTRAL, **preset, **_own_rate(method), "partition_seed": asked["seed"]}
    if asked["steps"] is not None:
        if asked["epochs"] is not None:
            raise ExperimentError("an experiment has either epochs or steps.", "steps = 50 alone, or epochs = 5")
        defaults["epochs"] = None
    if asked["schedule"] is not None:
        if asked["lr_decay"] not in (None, 1):
            raise ExperimentError(
                "lr_decay and schedule both change the clients' rate.",
                f'leave lr_decay out, or schedule = {{name = "exponential", decay = {asked["lr_decay"]}}}',
            )
        defaults["lr_decay"] = 1.0
    given = {field.name: asked.get(field.name) for field in fields(Plan)}
    values: dict[str, Any] = {name: defaults.get(name) if value is None else value for name, value in given.items()}
    if isinstance(values["evaluation"], Mapping):
        values["evaluation"] = Evaluation.load(values["evaluation"])
    if isinstance(values["epochs"], Mapping):
        values["epochs"] = read_epochs(values["epochs"])
    for key in KEYS:
        if values[key] is not None:
            values[key] = read_schedule(values[key], key).fit(values["rounds"], key)
    if any(type(rule).fit_run is not Rule.fit_run for rule in method.rules):
        method = method.map_rules(lambda rule: rule.fit_run(values["rounds"], values["schedule"]))
    made = Plan(**values | {"method": method, "source": source})
    _check(made)
    return made


def _own_rate(method: Method) -> dict[str, float]:
    """The learning rate of an optimiser where none is asked for: plain and preset ones are rates of SGD."""
    optimiser = find_optimiser(method)
    rate = optimiser.rate if isinstance(optimiser, Optimiser) else None
    return {} if rate is None else {"lr": rate}


def _source(asked: Mapping[str, Any]) -> tuple[Method, Division | Problem]:
    """The method, and what it is trained on."""
    dataset, problem, data = asked["dataset"], asked["problem"], asked["data"]
    if sum(one is not None for one in (dataset, problem, data)) != 1:
        raise ExperimentError(
            "an experiment has either a dataset or a problem of its own.",
            'dataset="digits", problem=fk.Problem(…), or data=… with a model',
        )
    for word in ("partition", "model", "augment"):
        if problem is not None and asked[word] is not None:
            raise ExperimentError(
                f"a problem of its own brings its data and model, so {word} would be ignored.", "leave it out"
            )
    method = read_method(asked["method"], Trust.TYPED)
    if problem is not None:
        return method, problem
    if data is not None:
        if asked["augment"] is not None:
            raise ExperimentError("data of your own are not augmented.", "leave augment out, or Problem(prepare=…)")
        partition = None if asked["partition"] is None else load_partition(asked["partition"])
        split = asked["seed"] if asked["partition_seed"] is None else asked["partition_seed"]
        return method, make_problem(data.given, asked["model"], partition, split, asked["seed"])
    preset = find_card(dataset).preset
    partition = load_partition(preset["partition"] if asked["partition"] is None else asked["partition"])
    model = preset["model"] if asked["model"] is None else asked["model"]
    return method, Division(dataset, partition, model, asked["augment"] or preset.get("augment", "none"))


def _check(made: Plan) -> None:
    """Refuse values that do not go together, or out of a range that no annotation says."""
    if isinstance(made.epochs, tuple) and made.epochs[0] > made.epochs[1]:
        raise ExperimentError(f"epochs must be a range from low to high: {made.epochs}", "epochs = [1, 5]")
    if made.server_schedule is not None and made.server_schedule.by == "step":
        raise ExperimentError("the server takes one step in a round.", 'server_schedule.by = "round"')
    if not _stays_finite(made):
        if made.schedule is not None:
            raise ExperimentError("the schedule must keep the learning rate finite.", 'schedule = "cosine"')
        raise ExperimentError(
            f"lr_decay must keep the learning rate finite: {made.lr} times {made.lr_decay} to the power of "
            f"{made.rounds} is not.",
            "lr_decay = 0.998",
        )
    if made.participants is not None and len(made.participants) < made.rounds:
        raise ExperimentError(
            f"participants cover {len(made.participants)} rounds of {made.rounds}.", "one list for each round"
        )
    if isinstance(made.source, Division) and isinstance(made.source.model, str) and ":" not in made.source.model:
        card_of(made.source.model)
    share_of(made.participation)
    if made.method.deploys_another and (hint := _hint_at_own_models(made)):
        raise ExperimentError(
            f"{made.method.name} deploys an average of the server's models, of which clients' own models are no part.",
            hint,
        )


def _hint_at_own_models(made: Plan) -> str:
    """Say how clients' own models are left out, where they are part of the method or judged."""
    if made.method.personal or made.method.final:
        return "average a method with one model for all, such as ema+fedavg"
    if made.evaluation is None or (made.evaluation.model == "global" and not made.evaluation.tune):
        return ""
    return 'judge the average: evaluation.model = "global", and no evaluation.tune'


def _stays_finite(made: Plan) -> bool:
    """Whether the learning rate of the last round is a number; of a schedule that is only a name it is not known."""
    if isinstance(made.schedule, NamedSchedule):
        return True
    try:
        return isfinite(made.lr_at(made.rounds))
    except OverflowError:
        return False
