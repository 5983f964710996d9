"""An experiment: everything that determines a result, as one frozen value that a TOML file can hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, Literal

from torch import nn

from fedkeel.core.method import Method
from fedkeel.data import DATASETS
from fedkeel.data.partition.partition import Partitioner
from fedkeel.data.partition.registry import load_partition, may_repeat, save_partition
from fedkeel.errors import DataError, ExperimentError, nearest
from fedkeel.importing import Trust, untrusted
from fedkeel.methods import composition
from fedkeel.methods.given import read_method, read_model
from fedkeel.methods.named import NamedModel, refusal
from fedkeel.models import card_of
from fedkeel.problems.policy import Evaluation
from fedkeel.problems.problem import Problem, Recorded, digest_of
from fedkeel.ranges import Count, NonNegative, Positive, PositiveShare, Seed, ShareBelowOne, Whole
from fedkeel.runs.participation import share_of
from fedkeel.typed_values import check_table, read_values, types_of

PLAIN = {"rounds": 100, "participation": 0.1, "epochs": 5, "batch_size": 50, "lr": 0.1}
"""Settings that neither the experiment nor its data set's preset gives."""

EXAMPLES = PLAIN | {
    "dataset": "digits", "model": "logistic", "augment": "none", "seed": 0, "partition_seed": 0,
    "participants": [[0, 1], [2, 3]], "on_nonfinite": "drop", "buffers": "average", "init": "model.safetensors",
    "evaluation": {"model": "local"},
}  # fmt: skip
"""What a key may look like, for those who gave it something else."""

PYTHON = "python:"
"""What a problem or network starts with that only a program can bring back."""


class OfSeed(int):
    """A partition_seed that was never given, so that it follows the seed also where `replace` hands all fields on."""


@dataclass(frozen=True)
class Experiment:
    """What is trained, on whose data, how, and how it is judged. None means: as the data set's preset says.

    `participation` is a share of the clients (0.1: a fixed number) or "bernoulli:0.1"; `epochs` a number or a range
    drawn per client and round; clip = 0 does not clip; `participants` an explicit schedule; `unavailable` the chance
    that a selected client does not answer; `validation` a share of each client's training data that sweeps may choose
    on; `on_nonfinite` "drop" leaves a diverged client's report out, "stop" ends the run; `buffers` "average" or "keep".
    Seeds are whole numbers below 2^63 in absolute value.
    """

    method: str | Method | Mapping[str, Any] = "fedavg"
    dataset: str | None = None
    problem: Problem | None = None
    partition: Partitioner | str | Mapping[str, Any] | None = None
    model: str | nn.Module | None = None
    rounds: Count | None = None
    participation: PositiveShare | str | None = None
    epochs: Count | tuple[Count, Count] | None = None
    batch_size: Count | None = None
    lr: Positive | None = None
    lr_decay: Positive | None = None
    weight_decay: NonNegative | None = None
    clip: NonNegative | None = None
    augment: str | None = None
    seed: Seed = 0
    partition_seed: Seed | None = None
    validation: ShareBelowOne = 0.0
    participants: Sequence[Sequence[Whole]] | None = None
    unavailable: ShareBelowOne = 0.0
    on_nonfinite: Literal["drop", "stop"] = "drop"
    buffers: Literal["average", "keep"] = "average"
    evaluate_every: Count = 1
    init: str | None = None
    evaluation: Evaluation | Mapping[str, Any] | None = None  # judge each client's model on its own test set

    def __post_init__(self) -> None:
        object.__setattr__(self, "_asked", {field.name: getattr(self, field.name) for field in fields(self)})
        # what a method may be, `resolve` says
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "method"}
        self._set(read_values(given, types_of(Experiment), ExperimentError, examples=EXAMPLES))
        self._set(resolve(self))
        check(self)

    def _set(self, found: Mapping[str, Any]) -> None:
        for name, value in found.items():
            object.__setattr__(self, name, value)

    # the fields below are never None once an experiment exists; these names spare every reader the question
    @property
    def policy(self) -> Evaluation | None:
        assert not isinstance(self.evaluation, Mapping)
        return self.evaluation

    @property
    def composed(self) -> Method:
        assert isinstance(self.method, Method)
        return self.method

    @property
    def sets_copies_aside(self) -> bool:
        """Whether validation or test shares are cut from data in which a sample may come twice."""
        share = max(self.validation, 0.0 if self.policy is None else self.policy.share)
        return self.dataset is not None and share > 0 and may_repeat(load_partition(self.partition))

    def with_(self, **changes: Any) -> Experiment:
        """This experiment with some fields changed; those never given follow: another seed has another split."""
        asked: dict[str, Any] = vars(self)["_asked"]
        check_table(Experiment, changes, ExperimentError, "an experiment", "key")
        return Experiment(**asked | changes)

    def lr_at(self, round: int) -> float:
        """η_t = η_0 γ^t."""
        assert self.lr is not None
        assert self.lr_decay is not None
        return float(self.lr * self.lr_decay**round)

    # ---- as data -------------------------------------------------------------------------------------------------
    def save(self) -> dict[str, Any]:
        """Plain data for TOML; a problem or module of the user's own is named by its digest."""
        data: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None or field.name in ("method", "partition", "problem"):
                continue
            if field.name == "model" and isinstance(value, nn.Module):
                value = f"{PYTHON}{type(value).__qualname__} {digest_of(value)}"
            data[field.name] = value.save() if isinstance(value, Evaluation) else _plain(value)
        if self.problem is not None:
            data["problem"] = f"{PYTHON}{self.problem.digest()}"
        if self.dataset is not None:
            data["partition"] = save_partition(load_partition(self.partition))
        return data | {"method": composition.save(self.composed)}

    @staticmethod
    def load(data: Mapping[str, Any], *, trust: bool | Trust = False, typed: Collection[str] = ()) -> Experiment:
        """From a file's data, to be trained. Unknown keys are errors that name the nearest known one.

        Code that the file names is imported with `trust` only; keys in `typed` come from a command line.
        """
        for word in ("problem", "model"):
            if from_python(data.get(word)):
                raise lost(word)
        made = Experiment.recall(data, Trust.given(trust), typed)
        if (error := refusal(made.composed)) is not None:
            raise error
        if isinstance(made.model, NamedModel):
            raise untrusted(made.model, "model")
        return made

    @staticmethod
    def recall(data: Mapping[str, Any], trust: Trust = Trust.NOTHING, typed: Collection[str] = ()) -> Experiment:
        """To read a run by: what was given from Python is known by its digest, and code that nobody vouches for by its
        name; neither can be trained again."""
        check_table(Experiment, data, ExperimentError, "an experiment", "key")
        read = dict(data)
        if "method" in read:
            read["method"] = read_method(read["method"], Trust.TYPED if "method" in typed else trust)
        if "model" in read and not from_python(read["model"]):
            read["model"] = read_model(read["model"], Trust.TYPED if "model" in typed else trust)
        if from_python(read.get("problem")):
            read["problem"] = Recorded(str(read["problem"]).removeprefix(PYTHON))
        return Experiment(**read)

    def fingerprint(self) -> str:
        """Identity of the result: engine, device and precision are not part of it; nor is how long it goes on."""
        return fingerprint_of(self.save(), self.sets_copies_aside)


def fingerprint_of(saved: Mapping[str, Any], by_sample: bool = False) -> str:
    """Of an experiment as its file has it: what later versions add to one does not change it.

    `by_sample`: shares of data that hold copies are cut by sample.
    """
    data = {name: value for name, value in saved.items() if name != "rounds"}
    if isinstance(data.get("method"), Mapping):
        method = composition.rewrite(data["method"])
        data["method"] = {name: value for name, value in method.items() if name not in ("name", "papers")}
    if by_sample:
        data["held_out"] = "by sample"  # up to version 0.1.0 copies stood on both sides
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()[:12]


def from_python(value: Any) -> bool:
    """Whether it is only known by its digest."""
    return isinstance(value, Recorded) or (isinstance(value, str) and value.startswith(PYTHON))


def lost(word: str) -> ExperimentError:
    return ExperimentError(
        f"the {word} of this experiment was given from Python, so a file cannot bring it back.",
        "call fk.run(experiment, out=FOLDER) again from the program that made it: it resumes",
    )


def _plain(value: Any) -> Any:
    if isinstance(value, NamedModel):
        return str(value)
    if isinstance(value, OfSeed):
        return int(value)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def resolve(experiment: Experiment) -> dict[str, Any]:
    """Fields given as None or as data, in their final form."""
    if (experiment.dataset is None) == (experiment.problem is None):
        raise ExperimentError(
            "an experiment has either a dataset or a problem of its own.", 'dataset="digits", or problem=fk.Problem(…)'
        )
    for word in ("partition", "model", "augment"):
        if experiment.problem is not None and getattr(experiment, word) is not None:
            raise ExperimentError(
                f"a problem of its own brings its data and model, so {word} would be ignored.", "leave it out"
            )
    found: dict[str, Any] = {"method": read_method(experiment.method, Trust.TYPED)}
    preset: Mapping[str, Any] = {}
    if experiment.dataset is not None:
        if experiment.dataset not in DATASETS:
            raise DataError(
                f"unknown data set: {experiment.dataset}", nearest(experiment.dataset, DATASETS, "data sets")
            )
        preset = DATASETS[experiment.dataset].preset
        found["partition"] = load_partition(
            experiment.partition if experiment.partition is not None else preset["partition"]
        )
        found["model"] = experiment.model if experiment.model is not None else preset["model"]
        found["augment"] = experiment.augment or preset.get("augment", "none")
    for name, value in PLAIN.items():
        if getattr(experiment, name) is None:
            found[name] = preset.get(name, value)
    for name, neutral in (("lr_decay", 1.0), ("weight_decay", 0.0)):
        if getattr(experiment, name) is None:
            found[name] = preset.get(name, neutral)
    if experiment.clip is None and "clip" in preset:
        found["clip"] = preset["clip"]
    if experiment.epochs is not None and not isinstance(experiment.epochs, int):
        found["epochs"] = tuple(experiment.epochs)  # a list, from a file
    if experiment.evaluation is not None:
        found["evaluation"] = _evaluation(experiment.evaluation)
    if experiment.partition_seed is None or isinstance(experiment.partition_seed, OfSeed):
        found["partition_seed"] = OfSeed(experiment.seed)
    return found


def _evaluation(given: Evaluation | Mapping[str, Any]) -> Evaluation:
    return given if isinstance(given, Evaluation) else Evaluation.load(given)


def check(experiment: Experiment) -> None:
    """Refuse values that do not go together, or out of a range that no annotation says."""
    if isinstance(experiment.epochs, tuple) and experiment.epochs[0] > experiment.epochs[1]:
        raise ExperimentError(f"epochs must be a range from low to high: {experiment.epochs}", "epochs = [1, 5]")
    if not _stays_finite(experiment):
        raise ExperimentError(
            f"lr_decay must keep the learning rate finite: {experiment.lr} times {experiment.lr_decay} to the power of "
            f"{experiment.rounds} is not.",
            "lr_decay = 0.998",
        )
    if experiment.participants is not None and len(experiment.participants) < (experiment.rounds or 0):
        raise ExperimentError(
            f"participants cover {len(experiment.participants)} rounds of {experiment.rounds}.",
            "one list for each round",
        )
    if isinstance(experiment.model, str) and ":" not in experiment.model:
        card_of(experiment.model)
    assert experiment.participation is not None
    share_of(experiment.participation)


def _stays_finite(experiment: Experiment) -> bool:
    """Whether the learning rate of the last round is a number."""
    try:
        return isfinite(experiment.lr_at(experiment.rounds or 0))
    except OverflowError:
        return False
