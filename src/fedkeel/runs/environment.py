"""Where a run took place: recorded beside it, never part of its identity.

Seconds depend on it: those measured in one place are averaged, those of several are not.
"""

from __future__ import annotations

import contextlib
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import torch

from fedkeel import __version__
from fedkeel.engines.machine import processor
from fedkeel.errors import ExperimentError, FolderError
from fedkeel.problems.problem import Problem, digest_tensors
from fedkeel.runs.experiment import PYTHON, Experiment
from fedkeel.runs.folder import CLIENTS, FORMAT, read_environment, read_json
from fedkeel.runs.own_code import sources
from fedkeel.runs.plan import Division, Plan
from fedkeel.runs.prepare import start_weights

BY_SAMPLE = "by sample"
"""All copies of a sample are trained on, or none; runs up to version 0.1.0 do not say so."""

NOT_AVERAGED = "none are averaged across them"

PACKAGES = ("fedkeel", "torch", "numpy", "safetensors", "scikit-learn")

T = TypeVar("T")


def environment(
    device: torch.device,
    dtype: torch.dtype,
    engine: str,
    command: Sequence[str] | None,
    engines: Sequence[Mapping[str, Any]],
    parts: Iterable[object],
    track: Iterable[object],
) -> dict[str, Any]:
    """Describe where a run takes place: `engines` says which engine trained after which round and, where it was
    measured, why; `track` what else is measured, as far as it has a name."""
    return {
        "format": FORMAT,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {name: version_of(name) for name in PACKAGES},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "machine": processor(),
        "engine": engine,
        "engines": list(engines),
        "precision": str(dtype).removeprefix("torch."),
        "sources": sources(parts),
        "track": [name for name in track if isinstance(name, str)],
        "held_out": BY_SAMPLE,
        "git_revision": git_revision(),
        "revision": own_revision(),
        "command": list(command if command is not None else sys.argv),
    }


def leaks(folder: Path, plan: Plan) -> bool:
    """Whether the run there is judged on samples of which it trained on copies."""
    return plan.sets_copies_aside and read_environment(folder).get("held_out") != BY_SAMPLE


def describe_leak(folder: Path) -> str:
    """What is wrong with the scores of a run that leaks."""
    return f"{folder} was begun when copies of validation or test samples were trained on: its scores are too high."


def data_digest(plan: Plan) -> str | None:
    """Return the identity of a plan's data, where their name does not fix them and they are here."""
    return plan.source.digest if isinstance(plan.source, Division) else None


def check_same_data(folder: Path, plan: Plan, instead: str = ", or choose another folder with --out") -> None:
    """Refuse data other than those that the run there was begun on; `instead` is what helps where they are lost."""
    before, now = read_environment(folder).get("data"), data_digest(plan)
    if before and now and before != now:
        raise FolderError(
            f"{folder} was begun on other data: those of {plan.division.dataset} were {before} and are {now} now.",
            f"bring the data of that time back{instead}"
            + ("; up to version 1.1.0 the digest left the owners out" if plan.division.card.natural else ""),
        )


def describe_functions(plan: Plan) -> dict[str, str]:
    """Return the identity of what the functions of a plan's own problem are made of, by name."""
    return plan.source.made_of if isinstance(plan.source, Problem) else {}


def changed_functions(folder: Path, plan: Plan) -> list[str]:
    """Name functions of a problem that are made of something else than when the run there was begun; none where the
    folder does not say, as up to version 1.0.0."""
    before, now = read_environment(folder).get("functions"), describe_functions(plan)
    if not isinstance(before, Mapping):
        return []
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


def start_digest(plan: Plan) -> str | None:
    """Return the identity of the weights that a plan begins with, whatever their file; None where it names no file."""
    return None if plan.init is None else digest_tensors(start_weights(Path(plan.init)))


def changed_start(folder: Path, plan: Plan) -> list[str]:
    """Name the file of start weights where it holds others than when the run there was begun; none where the folder
    does not say, or the file is gone."""
    before, now = read_environment(folder).get("init"), None
    if before is not None:
        with contextlib.suppress(ExperimentError):
            now = start_digest(plan)
    return [] if now is None or now == before else [f"the weights in {plan.init}"]


def undivided_data(experiment: Experiment, folder: Path | None) -> str | None:
    """Return the identity of data of one's own before a seed divides them: of the experiment, or as its folder says."""
    if folder is None or experiment.undivided is not None:
        return experiment.undivided
    found = read_environment(folder).get("undivided")
    return found if isinstance(found, str) else None


def compared_as(experiment: Experiment, folder: Path | None) -> dict[str, Any]:
    """An experiment as plain data by which runs of several seeds are held against each other: data of one's own count
    as they were before a seed divided them, and functions with what they are made of."""
    whole, functions = undivided_data(experiment, folder), describe_functions(experiment.plan)
    if not functions and folder is not None:
        functions = read_environment(folder).get("functions") or {}
    given = {} if whole is None else {"problem": f"{PYTHON}{whole}"}
    return experiment.save() | given | ({"functions": functions} if functions else {})


def engines_before(folder: Path, done: int) -> list[dict[str, Any]]:
    """List the engines that trained the rounds that are done, as the folder says."""
    try:
        return [one for one in read_environment(folder)["engines"] if one["after_round"] < done]
    except (KeyError, TypeError):  # of an older version
        return []


def precision_before(folder: Path) -> str | None:
    """Return the precision of the rounds that are done; None where the folder does not say."""
    found = read_environment(folder).get("precision")
    return found if isinstance(found, str) else None


def names_before(folder: Path, key: Literal["track", "callbacks", "metrics"]) -> list[str]:
    """List what the rounds that are done were tracked by, told to or measured with."""
    found = read_environment(folder).get(key)
    return [str(name) for name in found] if isinstance(found, list) else []


class ClientFacts(NamedTuple):
    """What a run's clients learn, and how many samples each has; not known of runs of older versions."""

    problem: str | None
    sizes: list[int] | None


def read_clients(path: Path) -> ClientFacts:
    data = read_json(path / CLIENTS)
    found, name = data.get("sizes"), data.get("problem")
    whole = isinstance(found, list) and all(isinstance(size, int) for size in found)
    return ClientFacts(name if isinstance(name, str) else None, found if whole else None)


def version_of(name: str) -> str | None:
    """Find the version of a package; of fedkeel also where it runs from a checkout that was never installed."""
    try:
        return __version__ if name == "fedkeel" else version(name)
    except PackageNotFoundError:
        return None


def git_revision() -> str | None:
    """Find the revision of the repository in the current folder, if it is one."""
    return _git("rev-parse", "HEAD") or None


@cache
def own_revision() -> str | None:
    """Find the revision of the checkout that fedkeel runs from, marked where files of the package were changed, not
    those beside it, such as the ledger; None where it is installed."""
    package = Path(__file__).parents[1]
    if not _git("ls-files", "__init__.py", folder=package):
        return None
    mark = "-dirty" if _git("status", "--porcelain", ".", folder=package) else ""
    return _git("rev-parse", "--short=12", "HEAD", folder=package) + mark or None


def _git(*words: str, folder: Path | None = None) -> str:
    """What git answers; nothing where it cannot."""
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("ascii", "replace").strip()


def describe_place(environment: Mapping[str, Any], timing: Mapping[str, Any]) -> str:
    """Device, engines, precision and machine of a run, in words; empty where nothing is known of them."""
    if not environment:
        return ""
    engine, machine = engines_of(environment), environment.get("machine")
    words = " ".join(str(word) for word in (environment.get("device"), engine, environment.get("precision")) if word)
    words += f" on {machine}" if isinstance(machine, str) and environment.get("device") == "cpu" else ""
    return f"{words}, several at once" if timing.get("shared") else words


def engines_of(environment: Mapping[str, Any]) -> str:
    """Name the engine, or all that took part where a run went on with another."""
    given = environment.get("engines")
    listed = [one.get("engine") for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
    return " and ".join(dict.fromkeys(str(name) for name in (*listed, environment.get("engine"))))


def keep_one_place(items: Sequence[T], place_of: Callable[[T], str]) -> list[T]:
    """Keep the items of the place that most of them share; of two such places, those of the first."""
    groups: dict[str, list[T]] = {}
    for item in items:
        groups.setdefault(place_of(item), []).append(item)
    return max(groups.values(), key=len, default=[])
