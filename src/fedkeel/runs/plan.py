"""A plan: what an experiment comes to, with every value in its final form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedkeel.core.method import Method
from fedkeel.data import DATASETS
from fedkeel.data.dataset import DatasetCard
from fedkeel.data.partition.partition import Partitioner
from fedkeel.data.partition.registry import load_partition, may_repeat
from fedkeel.engines.engine import Training
from fedkeel.errors import DataError, ExperimentError, require_known
from fedkeel.importing import Trust
from fedkeel.methods.given import read_method
from fedkeel.methods.optimisers import find_optimiser, give_optimiser, read_optimiser
from fedkeel.models import card_of
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
        return DATASETS[self.dataset]


@dataclass(frozen=True)
class Plan:
    """What is trained, on whose data, how, and how it is judged. None means none: nothing is left to a preset."""

    method: Method
    source: Division | Problem
    rounds: int
    participation: float | str
    epochs: int | tuple[int, int]
    batch_size: int
    lr: float
    lr_decay: float
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
        return Training(self.seed, self.epochs, self.batch_size)

    def schedule(self, sizes: NDArray[np.int64]) -> Participation:
        """Who takes part, of clients with so many samples each."""
        return Participation(self.seed, sizes, self.participation, self.unavailable, self.participants)

    @property
    def most_epochs(self) -> int:
        return self.epochs if isinstance(self.epochs, int) else self.epochs[1]

    @property
    def sets_copies_aside(self) -> bool:
        """Whether validation or test shares are cut from data in which a sample may come twice."""
        share = max(self.validation, 0.0 if self.evaluation is None else self.evaluation.share)
        return share > 0 and isinstance(self.source, Division) and may_repeat(self.source.partition)

    def lr_at(self, round: int) -> float:
        """η_t = η_0 γ^t."""
        return float(self.lr * self.lr_decay**round)


def plan(asked: Mapping[str, Any]) -> Plan:
    """The fields of an experiment, resolved: what was not given is the data set's preset, or plain."""
    method, source = _source(asked)
    method = give_optimiser(method, read_optimiser(asked["optimizer"]))
    preset = {} if isinstance(source, Problem) else source.card.preset
    defaults = {**PLAIN, **NEUTRAL, **preset, **_own_rate(method), "partition_seed": asked["seed"]}
    given = {field.name: asked.get(field.name) for field in fields(Plan)}
    values: dict[str, Any] = {name: defaults.get(name) if value is None else value for name, value in given.items()}
    if isinstance(values["evaluation"], Mapping):
        values["evaluation"] = Evaluation.load(values["evaluation"])
    made = Plan(**values | {"method": method, "source": source})
    _check(made)
    return made


def _own_rate(method: Method) -> dict[str, float]:
    """The learning rate of an optimiser where none is asked for: plain and preset ones are rates of SGD."""
    optimiser = find_optimiser(method)
    return {"lr": optimiser.rate} if isinstance(optimiser, Optimiser) else {}


def _source(asked: Mapping[str, Any]) -> tuple[Method, Division | Problem]:
    """The method, and what it is trained on."""
    dataset, problem = asked["dataset"], asked["problem"]
    if (dataset is None) == (problem is None):
        raise ExperimentError(
            "an experiment has either a dataset or a problem of its own.", 'dataset="digits", or problem=fk.Problem(…)'
        )
    for word in ("partition", "model", "augment"):
        if problem is not None and asked[word] is not None:
            raise ExperimentError(
                f"a problem of its own brings its data and model, so {word} would be ignored.", "leave it out"
            )
    method = read_method(asked["method"], Trust.TYPED)
    if problem is not None:
        return method, problem
    preset = DATASETS[require_known(dataset, DATASETS, "unknown data set", "data sets", DataError)].preset
    partition = load_partition(preset["partition"] if asked["partition"] is None else asked["partition"])
    model = preset["model"] if asked["model"] is None else asked["model"]
    return method, Division(dataset, partition, model, asked["augment"] or preset.get("augment", "none"))


def _check(made: Plan) -> None:
    """Refuse values that do not go together, or out of a range that no annotation says."""
    if isinstance(made.epochs, tuple) and made.epochs[0] > made.epochs[1]:
        raise ExperimentError(f"epochs must be a range from low to high: {made.epochs}", "epochs = [1, 5]")
    if not _stays_finite(made):
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


def _stays_finite(made: Plan) -> bool:
    """Whether the learning rate of the last round is a number."""
    try:
        return isfinite(made.lr_at(made.rounds))
    except OverflowError:
        return False
