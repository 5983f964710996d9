"""Take a folder for an experiment, and say what has changed in it since."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import torch

from fedkeel.core.schedules import KEYS, name_class_alone
from fedkeel.errors import FolderError
from fedkeel.methods import composition
from fedkeel.problems.problem import Problem
from fedkeel.runs import checkpoint
from fedkeel.runs.environment import (
    changed_functions,
    changed_start,
    describe_leak,
    leaks,
    precision_before,
    read_clients,
)
from fedkeel.runs.experiment import Experiment, write_value
from fedkeel.runs.folder import is_of_federation, read_environment, rounds_in
from fedkeel.runs.own_code import edited
from fedkeel.runs.plan import Plan
from fedkeel.runs.run_folder import RunFolder

log = logging.getLogger("fedkeel")


def warn_of_changes(folder: Path, plan: Plan, dtype: torch.dtype) -> None:
    """Warn where later rounds compute something else than earlier ones: the result is that of neither."""
    before, now = precision_before(folder), str(dtype).removeprefix("torch.")
    if before is not None and before != now:
        log.warning("this run started in %s and goes on in %s", before, now)
    for name in edited(folder, plan.parts):
        log.warning("%s has been edited since this run started; its first rounds are of the old code", name)


def check_same_clients(folder: Path, problem: Problem) -> None:
    """Refuse clients of other sizes than those that the run there has trained on: older versions do not note that a run
    is a federation's, and an experiment says nothing of the sites' data."""
    before, now = read_clients(folder).sizes, problem.data.sizes.tolist()
    if before is not None and before != now:
        raise FolderError(
            f"{folder} was trained on clients with {sum(before)} samples in all, and these have {sum(now)}, or divide "
            "them otherwise.",
            "the run of a federation goes on with `flwr run`; any other needs the data of that time",
        )


def claim(folder: RunFolder, experiment: Experiment, *, federation: bool = False) -> None:
    """Take a folder for an experiment: an empty one, one that holds this experiment already, or one of which no round
    was ever made. The run of a `federation` goes on as one only."""
    there = folder.read_experiment()
    if there is not None:
        if not federation and is_of_federation(folder.path):
            raise FolderError(
                f"{folder.path} is the run of a federation: its sites train it, with data or states that are not here.",
                "call `flwr run` again: it goes on from its last checkpoint; nothing was changed",
            )
        data = experiment.save()
        mine = {name: value for name, value in data.items() if name != "rounds"}
        other = {name: value for name, value in there.items() if name != "rounds"}
        if isinstance(there.get("method"), Mapping):
            other["method"] = composition.rewrite(there["method"])
        for key in KEYS:
            if key in mine and other.get(key) == name_class_alone(other.get(key)):
                mine[key] = name_class_alone(mine[key])
        made, saved = rounds_in(folder.path), checkpoint.list_checkpoints(folder.checkpoints)
        has_rounds = made.lines or made.problem or any(map(checkpoint.round_of, saved))
        keys = sorted(k for k in {*mine, *other} if write_value(mine.get(k)) != write_value(other.get(k)))
        keys = keys or [*changed_functions(folder.path, experiment.plan), *changed_start(folder.path, experiment.plan)]
        if keys and not has_rounds and read_environment(folder.path):
            for path in saved:
                checkpoint.remove(path)
        elif keys:
            raise FolderError(
                f"{folder.path} holds another experiment (it differs in: {', '.join(keys)}).",
                "choose another folder with --out, or `fedkeel resume` that one",
            )
        if has_rounds and leaks(folder.path, experiment.plan):
            raise FolderError(
                describe_leak(folder.path),
                "choose another folder with --out, and compare no scores with this run's",
            )
