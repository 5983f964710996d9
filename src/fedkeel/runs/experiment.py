"""An experiment: everything that determines a result, as it was asked for; a TOML file can hold it."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

from torch import nn

from fedkeel.core.client_epochs import ClientEpochs
from fedkeel.core.method import Method
from fedkeel.core.rule import Rule
from fedkeel.core.schedules import KEYS, NamedSchedule, Schedule, name_class_alone, read_schedule
from fedkeel.data.partition.partition import Partitioner
from fedkeel.data.partition.registry import explain_new_default, load_partition, names_own, save_partition
from fedkeel.data.storage.loading import find_card, is_known
from fedkeel.errors import ExperimentError, explain_typos
from fedkeel.importing import Trust, untrusted
from fedkeel.methods import composition
from fedkeel.methods.given import read_method, read_model
from fedkeel.methods.named import NamedModel, refusal
from fedkeel.methods.optimisers import read_optimiser
from fedkeel.problems.divided import OwnData, make_problem
from fedkeel.problems.given import find_problem
from fedkeel.problems.policy import Evaluation
from fedkeel.problems.problem import Problem, Recorded, digest_of
from fedkeel.ranges import Count, NonNegative, Passes, Positive, PositiveShare, Seed, ShareBelowOne, Whole
from fedkeel.runs.plan import PLAIN, Plan, plan
from fedkeel.typed_values import check_table, read_values, show_value, types_of
from fedkeel.written_values import hash_of

log = logging.getLogger("fedkeel")

EXAMPLES = PLAIN | {
    "dataset": "digits", "model": "logistic", "augment": "none", "seed": 0, "partition_seed": 0,
    "participants": [[0, 1], [2, 3]], "on_nonfinite": "drop", "buffers": "average", "init": "model.safetensors",
    "evaluation": {"model": "local"}, "optimizer": "adamw", "steps": 50, "schedule": "cosine",
    "server_schedule": "linear",
}  # fmt: skip
"""What a key may look like, for those who gave it something else."""

NOTES = {"batch_size": "a number larger than any client's samples is a full batch"}

PYTHON = "python:"
"""What a problem or network starts with that only a program can bring back."""


@explain_typos("an experiment", ExperimentError)
@dataclass(frozen=True)
class Experiment:
    """What is trained, on whose data, how, and how it is judged. None means: as the data set's preset says.

    `participation` is a share of the clients (0.1: a fixed number), "bernoulli:0.1" or "shuffled:0.1" (in passes
    through all clients, each in a new order); `epochs` a number (0.5: half of one), a range drawn per client and round,
    {"clients": [1, 5, 2]}, a number for each client, or {"samples": 500}, as many as bring each client about so many
    samples; `steps` a number of local steps instead; `schedule` and `server_schedule` say how the clients' and the
    server's rate change; clip = 0 does not clip; `optimizer` is the clients': a name, a table of its name and fields,
    or a rule, and without `lr` its own rate is taken; `participants` a list for each round; `unavailable` the chance
    that a selected client does not answer; `validation` a share of each client's training data that sweeps may choose
    on; `on_nonfinite` "drop" leaves a diverged client's report out, "stop" ends the run; `buffers` "average" or "keep".
    Seeds are whole numbers below 2^63 in absolute value. `data` are your own, as they come (docs/guides/own_data.md).
    """

    method: str | Method | Mapping[str, Any] = "fedavg"
    dataset: str | None = None
    problem: Problem | str | None = None
    partition: Partitioner | str | Mapping[str, Any] | None = None
    model: str | nn.Module | None = None
    rounds: Count | None = None
    participation: PositiveShare | str | None = None
    epochs: Passes | tuple[Count, Count] | Mapping[str, Any] | None = None
    steps: Count | None = None
    batch_size: Count | None = None
    lr: Positive | None = None
    lr_decay: Positive | None = None
    schedule: Schedule | str | Mapping[str, Any] | None = None
    server_schedule: Schedule | str | Mapping[str, Any] | None = None
    weight_decay: NonNegative | None = None
    clip: NonNegative | None = None
    optimizer: str | Rule | Mapping[str, Any] | None = None
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
    data: Any = None  # your own, as they come: one pool with a partition, else a list of clients

    def __post_init__(self) -> None:
        asked = {field.name: getattr(self, field.name) for field in fields(self)}
        method, data = asked.pop("method"), asked.pop("data")  # what they may be, others say
        if data is not None and not isinstance(data, OwnData):
            object.__setattr__(self, "data", OwnData(data))
        plain = read_values(asked, types_of(Experiment), ExperimentError, examples=EXAMPLES, notes=NOTES)
        plain["method"] = method
        if isinstance(plain["epochs"], list):  # from a file
            plain["epochs"] = tuple(plain["epochs"])
        elif isinstance(plain["epochs"], float) and plain["epochs"].is_integer():
            plain["epochs"] = int(plain["epochs"])
        if isinstance(plain["problem"], str):
            plain["problem"] = find_problem(plain["problem"])
        if names_own(plain["partition"]):
            plain["partition"] = load_partition(plain["partition"], Trust.TYPED)
        for name, value in plain.items():  # a list or table that is changed afterwards changes no experiment
            object.__setattr__(self, name, copy.deepcopy(value) if isinstance(value, dict | list) else value)
        _ = self.plan  # bad values are refused here, not when they are needed

    def __hash__(self) -> int:
        """Equal experiments have equal hashes, also where they hold tables and lists."""
        return hash(tuple(hash_of(getattr(self, field.name)) for field in fields(self)))

    @cached_property
    def plan(self) -> Plan:
        """Every value in its final form: as it was asked for here, as the data set's preset says, or plain."""
        return plan({field.name: getattr(self, field.name) for field in fields(self)})

    @cached_property
    def undivided(self) -> str | None:
        """Identity of data of one's own, as they were given, with their network and partition: the same for all seeds,
        each of which divides and begins anew. None where `data` are not given."""
        if self.data is None:
            return None
        data, partition = self.data.given, None
        if self.partition is not None:  # all of them as the data of one client
            partition = save_partition(load_partition(self.partition))
            parts = dict(data) if isinstance(data, Mapping) and "train" in data else {"train": data}
            data = parts | {"train": [parts["train"]]}
        whole = make_problem(data, self.model, None, 0, 0).digest()
        return hashlib.sha256(json.dumps([whole, partition], sort_keys=True, default=str).encode()).hexdigest()[:16]

    def with_(self, **changes: Any) -> Experiment:
        """This experiment with some fields changed; those never given follow: another seed has another split."""
        check_table(Experiment, changes, ExperimentError, "an experiment", "key")
        return replace(self, **changes)

    # ---- as data -------------------------------------------------------------------------------------------------
    def save(self) -> dict[str, Any]:
        """The plan as plain data for TOML; a problem or module of the user's own is named by its digest."""
        source = self.plan.source
        resolved = vars(self.plan) | ({} if isinstance(source, Problem) else vars(source))
        data: dict[str, Any] = {}
        for field in fields(self):
            value = resolved.get(field.name)
            if value is None or field.name in ("method", "partition"):
                continue
            if field.name == "model" and isinstance(value, nn.Module):
                value = f"{PYTHON}{type(value).__qualname__} {digest_of(value)}"
            elif isinstance(value, ClientEpochs | Evaluation | Schedule):
                value = value.save()
            data[field.name] = _plain(value)
        if isinstance(source, Problem):
            data["problem"] = f"{PYTHON}{source.digest()}"
        else:
            data["partition"] = save_partition(source.partition)
        return data | {"method": composition.save(self.plan.method)}

    @staticmethod
    @explain_typos("fk.Experiment.load")
    def load(data: Mapping[str, Any], *, trust: bool | Trust = False) -> Experiment:
        """Make an experiment to be trained of a file's table, not of its path: `tomllib.loads(path.read_text())`.

        Unknown keys are errors that name the nearest known one. Code that the file names is imported with `trust` only.
        What an older file now means is logged.
        """
        made = Experiment.read(data, trust=trust)
        note_new_default(data)
        return made

    @staticmethod
    def read(data: Mapping[str, Any], *, trust: bool | Trust = False, typed: Collection[str] = ()) -> Experiment:
        """The same without a word, of what a file gives in part or not at all; keys in `typed` come from a command
        line."""
        check_is_table(data)
        for word in ("problem", "model"):
            if from_python(data.get(word)):
                raise lost(word)
        made = Experiment.recall(data, Trust.given(trust), typed)
        if (error := refusal(made.plan.method)) is not None:
            raise error
        if isinstance(made.model, NamedModel):
            raise untrusted(made.model, "model")
        for schedule in (made.plan.schedule, made.plan.server_schedule):
            if isinstance(schedule, NamedSchedule):
                raise schedule.error
        return made

    @staticmethod
    def recall(data: Mapping[str, Any], trust: Trust = Trust.NOTHING, typed: Collection[str] = ()) -> Experiment:
        """To read a run by: what was given from Python is known by its digest, and code that nobody vouches for by its
        name; neither can be trained again."""
        check_table(Experiment, data, ExperimentError, "an experiment", "key")
        read = dict(data)
        if "method" in read:
            read["method"] = read_method(read["method"], Trust.TYPED if "method" in typed else trust)
        if "optimizer" in read:
            read["optimizer"] = read_optimiser(read["optimizer"], Trust.TYPED if "optimizer" in typed else trust)
        if "model" in read and not from_python(read["model"]):
            read["model"] = read_model(read["model"], Trust.TYPED if "model" in typed else trust)
        for key in KEYS:
            if isinstance(read.get(key), str | Mapping):
                read[key] = read_schedule(read[key], key, Trust.TYPED if key in typed else trust)
        if names_own(read.get("partition")):
            read["partition"] = load_partition(read["partition"], Trust.TYPED if "partition" in typed else trust)
        if isinstance(read.get("problem"), str) and not from_python(read["problem"]):
            read["problem"] = find_problem(read["problem"], Trust.TYPED if "problem" in typed else trust)
        if from_python(read.get("problem")):
            read["problem"] = Recorded(str(read["problem"]).removeprefix(PYTHON))
        return Experiment(**read)

    def fingerprint(self) -> str:
        """Identity of the result: engine, device and precision are not part of it; nor is how long it goes on."""
        return fingerprint_of(self.save(), self.plan.sets_copies_aside)


def check_is_table(data: object) -> None:
    """Refuse what is no table of an experiment: the path of a file, a list."""
    if not isinstance(data, Mapping):
        raise ExperimentError(
            f"an experiment is read from a table, not from {show_value(data)}.",
            "of a file: fk.Experiment.load(tomllib.loads(path.read_text())); of a run: fk.load_run(folder).experiment",
        )


def fingerprint_of(saved: Mapping[str, Any], by_sample: bool = False) -> str:
    """Of an experiment as its file has it: what later versions add to one does not change it.

    `by_sample`: shares of data that hold copies are cut by sample.
    """
    data = {name: value for name, value in saved.items() if name != "rounds"}
    if isinstance(data.get("method"), Mapping):
        method = composition.rewrite(data["method"])
        data["method"] = {name: value for name, value in method.items() if name not in ("name", "papers")}
    data |= {key: name_class_alone(data[key]) for key in KEYS if key in data}
    if by_sample:
        data["held_out"] = "by sample"  # up to version 0.1.0 copies stood on both sides
    return hashlib.sha256(write_value(data).encode()).hexdigest()[:12]


def write_value(value: Any) -> str:
    """Write a value as fingerprints see it: 1 and 1.0 are two."""
    return json.dumps(value, sort_keys=True, default=str)


def note_new_default(data: Mapping[str, Any]) -> None:
    """Log what an older file without a form of partition now means."""
    given = data.get("partition")
    if given is None and is_known(data.get("dataset")):
        given = find_card(data["dataset"]).preset.get("partition")
    if (changed := explain_new_default(given)) is not None:
        log.warning("%s", changed)


TABLES = ("epochs", "evaluation", "optimizer", "schedule", "server_schedule")
"""Keys whose fields are set one by one; a text is the name in such a table."""


def with_field(data: Mapping[str, Any], key: str, field: str, value: Any) -> dict[str, Any]:
    """The data of an experiment with one field of a table changed: schedule.warmup of schedule = "cosine"."""
    before = data.get(key)
    table = {"name": before} if isinstance(before, str) else before if isinstance(before, Mapping) else {}
    return {**data, key: {**table, field: value}}


def from_python(value: Any) -> bool:
    """Whether it is only known by its digest."""
    return isinstance(value, Recorded) or (isinstance(value, str) and value.startswith(PYTHON))


def given_from_python(experiment: Experiment) -> bool:
    """Whether a file cannot bring back the network of an experiment."""
    model = experiment.model
    return isinstance(experiment.plan.source, Problem) or isinstance(model, nn.Module) or from_python(model)


def lost(word: str) -> ExperimentError:
    return ExperimentError(
        f"the {word} of this experiment was given from Python, so a file cannot bring it back.",
        ("on the command line give it with --problem MODULE:NAME; in Python " if word == "problem" else "")
        + "call fk.run(experiment, out=FOLDER) again from the program that made it: it resumes"
        + ("; to read the run, fk.load_run(FOLDER, problem=problem)" if word == "problem" else ""),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, NamedModel):
        return str(value)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
