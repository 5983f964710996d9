"""Run folders as a report reads them: files only, no model and no data set is loaded."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedkeel.errors import FolderError, RequestError
from fedkeel.problems.policy import Evaluation, leave_out_defaults
from fedkeel.ranges import Count, Seed
from fedkeel.runs.environment import ClientFacts, describe_leak, describe_place, keep_one_place, leaks, read_clients
from fedkeel.runs.experiment import PYTHON, Experiment, from_python
from fedkeel.runs.folder import (
    EXPERIMENT,
    RESULT,
    TIMING,
    find_divergence,
    read_environment,
    read_experiment,
    read_json,
    read_rounds,
    read_text,
)
from fedkeel.runs.record import RoundRecord, describe_stop, judged_on, summarise
from fedkeel.studies.diagnose import read_diagnostics
from fedkeel.text import make_printable, write_settings, write_value
from fedkeel.typed_values import flatten, name_keys, read_values

ASIDE = ("seed", "partition_seed")  # runs that differ in nothing else repeat one experiment
SETTING = ("dataset", "problem", "model", "partition")  # what is learned, by which model, from whom

Tables = list[Mapping[str, Any]]
TYPES = {
    "seed": Seed, "partition_seed": Seed, "rounds": Count, "evaluate_every": Count, "dataset": str, "problem": str,
    "model": str, "augment": str, "method": Mapping, "partition": Mapping, "evaluation": Mapping,
}  # fmt: skip
METHOD = {"name": str, "phases": Tables, "personal": Tables, "server": Tables, "weights": Mapping, "papers": list[str]}
PHASE = {"perturb": Tables, "gradient": Tables}
"""What a report reads of an experiment's file; the rest is shown as it is."""


@dataclass(frozen=True, eq=False)
class Source:
    """One run folder, read."""

    path: Path
    experiment: Mapping[str, Any]
    toml: str
    records: list[RoundRecord]
    environment: Mapping[str, Any]
    diagnostics: Mapping[str, Mapping[str, Any]]
    result: Mapping[str, Any] = field(default_factory=dict)
    timing: Mapping[str, Any] = field(default_factory=dict)
    divergence: str | None = None  # where and why it diverged

    @staticmethod
    def read(path: Path) -> Source:
        experiment = read_experiment(path)
        check_experiment(experiment, path / EXPERIMENT)
        environment = read_environment(path)
        whole = environment.get("undivided")  # seeds of one experiment divide the same data
        records = read_rounds(path)
        return Source(
            path,
            experiment | ({"problem": f"{PYTHON}{whole}"} if isinstance(whole, str) else {}),
            read_text(path / EXPERIMENT),
            records,
            environment,
            read_diagnostics(path),
            read_json(path / RESULT),
            read_json(path / TIMING),
            find_divergence(path, len(records)),
        )

    @cached_property
    def clients(self) -> ClientFacts:
        """What its clients learn, and their sizes."""
        return read_clients(self.path)

    @property
    def method(self) -> str:
        return str(self.experiment.get("method", {}).get("name", "?"))

    @property
    def seed(self) -> int:
        return int(self.experiment.get("seed", 0))

    @property
    def every(self) -> int:
        """After how many rounds its model is scored."""
        return int(self.experiment.get("evaluate_every", 1))

    @property
    def partition_seed(self) -> int:
        return int(self.experiment.get("partition_seed", self.seed))

    @property
    def seeds(self) -> tuple[int, int]:
        """What tells it from the other runs of its experiment."""
        return self.seed, self.partition_seed

    @property
    def unfinished(self) -> bool:
        return len(self.records) < int(self.experiment.get("rounds", 0)) and self.ended is None

    @property
    def ended(self) -> str | None:
        """Where and why a callback stopped it, or it diverged."""
        stopped = describe_stop(self.result) if self.result.get("rounds") == len(self.records) else None
        return stopped or self.divergence

    def summarise(self, measure: str) -> dict[str, Any]:
        """Best, last and mean of the last evaluated rounds; empty where it has none."""
        return summarise(self.records, self.every, measure)

    @property
    def policy(self) -> Evaluation | None:
        """How clients' models are judged, where they are."""
        given = self.experiment.get("evaluation")
        return Evaluation.load(given) if isinstance(given, Mapping) else None

    @property
    def reported(self) -> float | None:
        """The number that the policy reports, once all rounds are there."""
        return self.result.get("reported") if self.result.get("rounds") == len(self.records) else None

    @property
    def place(self) -> str:
        """On what it was made, in words."""
        return describe_place(self.environment, self.timing)

    @property
    def leak(self) -> str | None:
        """What is wrong with its scores, where it trained on copies of what it is judged on."""
        try:
            plan = Experiment.recall(self.experiment).plan
        except RequestError:  # of another version: shown as its file has it
            return None
        return describe_leak(self.path) if leaks(self.path, plan) else None

    @property
    def command(self) -> str | None:
        """The command that makes this run again, bit for bit on the same machine; None where its file cannot.

        It writes below `again`, too deep to be found beside the runs that are reported.
        """
        if any(from_python(self.experiment.get(word)) for word in ("problem", "model")):
            return None
        engine = self.environment.get("engine", "auto")
        again = Path("again", *self.path.resolve().parts[1:][-3:])
        words = ["fedkeel", "run", str(self.path / EXPERIMENT), "--engine", str(engine), "--out", str(again)]
        return shlex.join(words)

    @property
    def typed(self) -> str | None:
        """What was typed when it was made, where that was the command line."""
        given = self.environment.get("command")
        words = [str(word) for word in given] if isinstance(given, list) else []
        program = Path(words[0]) if words else Path()
        if "fedkeel" not in (program.stem, program.parent.name if program.name == "__main__.py" else ""):
            return None
        return shlex.join(["fedkeel", *words[1:]])


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one experiment that differ in their seeds alone; a line in every chart. `repeats` are left out; runs with
    other seeds that were `asked` for have failed."""

    label: str
    setting: str
    runs: Sequence[Source]
    repeats: Sequence[Source] = ()
    asked: Sequence[int] = ()

    @property
    def failed(self) -> list[int]:
        """The seeds that were asked for and have no run."""
        return sorted({*self.asked} - {run.seed for run in self.runs})

    @property
    def wanted(self) -> int:
        """How many runs there should be."""
        return len(self.runs) + len(self.failed)

    @property
    def measure(self) -> str | None:
        """What these runs are judged on."""
        return judged_on(self.runs[0].records)

    @cached_property
    def timed(self) -> list[Source]:
        """The runs whose seconds are averaged: those on one machine and engine, of which there are most, and of which
        one has gone as far as any."""
        longest = max(len(run.records) for run in self.runs)
        reaching = {run.place for run in self.runs if len(run.records) == longest}
        return keep_one_place([run for run in self.runs if run.place in reaching], lambda run: run.place)

    @cached_property
    def diagnostics(self) -> dict[str, Mapping[str, Any]]:
        """What `fedkeel analyse` found, by name; of the first seed that has it."""
        return {name: found for run in reversed(self.runs) for name, found in run.diagnostics.items()}


def check_experiment(experiment: Mapping[str, Any], file: Path) -> None:
    """Refuse a file that no run has written."""
    read_values(experiment, TYPES, FolderError, str(file))
    method = experiment.get("method", {})
    read_values(method, METHOD, FolderError, f"the method of {file}")
    for phase in method.get("phases", ()):
        read_values(phase, PHASE, FolderError, f"a phase of {file}")


def groups_of(sources: Sequence[Source]) -> list[Group]:
    """Runs gathered by experiment, in the order given, named by method and by the settings that tell them apart."""
    gathered: dict[str, list[Source]] = {}
    for source in sources:
        kept = {name: value for name, value in source.experiment.items() if name not in ASIDE}
        gathered.setdefault(json.dumps(kept, sort_keys=True, default=str), []).append(source)
    members = [keep_one_of_each(runs) for runs in gathered.values()]
    settings = [setting_of(runs[0]) for runs in members]
    labels = [""] * len(members)
    for setting in dict.fromkeys(settings):
        here = [i for i, other in enumerate(settings) if other == setting]
        for method in dict.fromkeys(members[i][0].method for i in here):
            alike = [i for i in here if members[i][0].method == method]
            for i, words in zip(alike, differences([members[i][0] for i in alike]), strict=True):
                labels[i] = " ".join([method, *words])
    labels = unique(labels, settings, [runs[0] for runs in members])
    named = zip(labels, settings, members, gathered.values(), strict=True)
    return [
        Group(label, setting, runs, [run for run in every if run not in runs]) for label, setting, runs, every in named
    ]


def keep_one_of_each(runs: Sequence[Source]) -> list[Source]:
    """Of runs with the same seeds the one that went furthest, of those the one with most diagnostics, or the last."""
    kept: dict[tuple[int, int], Source] = {}
    for run in runs:
        kept[run.seeds] = max(run, kept.get(run.seeds, run), key=lambda one: (len(one.records), len(one.diagnostics)))
    return list(kept.values())


def unique(labels: Sequence[str], settings: Sequence[str], sources: Sequence[Source]) -> list[str]:
    """Labels that still coincide within a setting are numbered, and name what is not as in the first of them."""
    seen: dict[tuple[str, str], list[Source]] = {}
    found = []
    for label, setting, source in zip(labels, settings, sources, strict=True):
        same = seen.setdefault((label, setting), [])
        same.append(source)
        one, other = flatten(same[0].experiment), flatten(source.experiment)
        keys = [key for key in one | other if one.get(key) != other.get(key) and key.split(".")[0] not in ASIDE]
        words = [str(len(same)), *(f"another {name}" for name in name_keys(keys))]
        found.append(label if len(same) == 1 else f"{label} ({', '.join(words)})")
    return found


def differences(sources: Sequence[Source]) -> list[list[str]]:
    """For each source the settings, as `name=value`, in which it differs from the others."""
    flat = [dict(flattened(source.experiment)) for source in sources]
    names = [name for name in dict.fromkeys(name for one in flat for name in one) if told(name)]
    differing = [name for name in names if len({one.get(name) for one in flat}) > 1]
    short = [leave_out_defaults(one, flat) for one in flat]
    return [write_settings({name: one[name] for name in differing if name in one}) for one in short]


def told(name: str) -> bool:
    return name.split(".")[0] not in (*ASIDE, *SETTING) and not name.startswith("method.papers")


def flattened(value: Any) -> list[tuple[str, str]]:
    """Nested settings as dotted names and short values."""
    return [(name, write_value(item)) for name, item in flatten(value).items()]


def setting_of(source: Source) -> str:
    """Data set, model and partition in one line."""
    experiment = source.experiment
    named = {"problem": source.clients.problem} if source.clients.problem else {}
    parts = [str(named.get(word, experiment[word])) for word in ("dataset", "problem", "model") if word in experiment]
    partition = experiment.get("partition")
    if isinstance(partition, Mapping):
        fields = ", ".join(f"{name}={text}" for name, text in flattened(partition) if name != "kind")
        parts.append(f"{partition.get('kind', 'partition')}({fields})")
    return make_printable(" · ".join(parts))
