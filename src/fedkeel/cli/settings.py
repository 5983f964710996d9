"""From the words of a command line to experiments: a file, a preset or the quick start, and what is changed of it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedkeel.cli.method_settings import give_hyperparameters, label_methods, list_hyperparameters
from fedkeel.core.rule import Rule
from fedkeel.core.schedules import KEYS, SCHEDULES
from fedkeel.data.partition.registry import PARTITIONS, parse_partition
from fedkeel.data.storage.loading import find_card, is_known
from fedkeel.errors import ExperimentError, RequestError, nearest
from fedkeel.importing import Trust
from fedkeel.methods import METHODS, build
from fedkeel.methods.optimisers import OPTIMISERS, name_optimiser
from fedkeel.runs.experiment import TABLES, Experiment, note_new_default, with_field
from fedkeel.runs.folder import resume_command
from fedkeel.text import split_words
from fedkeel.typed_values import show_value
from fedkeel.written_values import parse_value, read_toml_file

MOST_SEEDS = 1000
OPTIONS = {"callback", "device", "engine", "keep", "metrics", "out", "patience", "precision", "seeds", "track"}
"""What a run is given beside its experiment."""


@dataclass(frozen=True)
class Request:
    """What the command line asks for; None and () mean: as the file, the preset or the quick start says.

    `file_hint` says what to give where the file is missing, for commands that are not `run`.
    """

    file: Path | None = None
    file_hint: str | None = None
    methods: tuple[str, ...] = ()
    dataset: str | None = None
    problem: str | None = None
    model: str | None = None
    partition: str | None = None
    rounds: int | None = None
    seeds: tuple[int, ...] = ()
    assignments: tuple[str, ...] = ()
    trust: bool = False


@dataclass(frozen=True)
class RequestedRun:
    """One run that was asked for; `label` tells its method from the others."""

    label: str
    experiment: Experiment


def read_request(request: Request) -> list[RequestedRun]:
    """Every run that is asked for, checked before the first one starts: methods, each with all seeds."""
    data = read_base(request)
    for name in ("dataset", "problem", "model", "partition", "rounds"):
        if (value := getattr(request, name)) is not None:
            data[name] = value
    changes = [parse_assignment(text) for text in request.assignments]
    check_once(request, changes)
    if request.file is None and any(path[0] == "optimizer" for path, _ in changes):
        data.pop("lr", None)  # the quick start's is one of SGD
    data |= {path[0]: value for path, value in changes if len(path) == 1}
    given = list(request.methods) or as_list(data.pop("method", "fedavg"))
    hyper: dict[str, Any] = {}
    for path, value in changes:
        if path[0] == "method" and len(path) == 2:
            hyper[path[1]] = value
        elif path[0] == "partition" and len(path) > 1:
            data["partition"] = with_deep_field(read_partition(data), path[1:], value)
        elif path[0] in TABLES and len(path) == 2:
            data = with_field(data, *path, value)
        elif len(path) > 1:
            raise ExperimentError(
                f"an experiment has no part: {'.'.join(path)}",
                f"the parts with fields are method, partition, {', '.join(TABLES)}",
            )
    typed = list_typed_keys(request, changes)
    trust = Trust.TYPED if "method" in typed else Trust.given(request.trust)
    if isinstance(hyper.get("base"), str):
        hyper["base"] = build(hyper["base"])  # typed, whoever wrote the file
    check_keys(data, given, trust)
    methods = give_hyperparameters(given, hyper, trust)
    seeds = list(request.seeds) or as_list(data.pop("seed", 0))
    for word, values, example in (("method", methods, '"fedavg"'), ("seed", seeds, "[0, 1]")):
        if not values:
            raise ExperimentError(f"{word} is an empty list.", f"{word} = {example}")
    made = [
        name_run(label, Experiment.read(data | {"method": method, "seed": seed}, trust=request.trust, typed=typed))
        for label, method in zip(label_methods(methods), methods, strict=True)
        for seed in seeds
    ]
    names = [(asked.label, asked.experiment.seed) for asked in made]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise RequestError(f"asked for twice: {twice[0]} with seed {twice[1]}", "name each method and seed once")
    if request.file is not None:
        note_new_default(data)
    return made


def name_run(label: str, experiment: Experiment) -> RequestedRun:
    """A run by its method, and by its optimiser where one is asked for."""
    rule = experiment.optimizer
    return RequestedRun(f"{name_optimiser(rule)}+{label}" if isinstance(rule, Rule) else label, experiment)


def list_typed_keys(request: Request, changes: Sequence[tuple[tuple[str, ...], Any]]) -> set[str]:
    """The keys that may name code and were typed, so that no file has a part in them."""
    given = {word: getattr(request, word) is not None for word in ("model", "partition", "problem")}
    options = {"method": bool(request.methods), "optimizer": False, **dict.fromkeys(KEYS, False)} | given
    return {word for word, given in options.items() if given or any(path == (word,) for path, _ in changes)}


def check_once(request: Request, changes: Sequence[tuple[tuple[str, ...], Any]]) -> None:
    """Methods and seeds are lists with an option of their own: what --set gives in addition would be lost."""
    for option, given, path in (("--method", request.methods, ("method",)), ("--seeds", request.seeds, ("seed",))):
        if given and any(path == changed for changed, _ in changes):
            raise RequestError(f"given twice: {option} and --set {path[0]}=…", f"leave out --set {path[0]}=…")


# ---- where settings come from --------------------------------------------------------------------------------------
def read_base(request: Request) -> dict[str, Any]:
    """The file's settings; else nothing when a data set is named (its preset fills in); else the quick start's."""
    if request.file is not None:
        data = with_seeds(read_file(request.file, request.file_hint), request.file)
        if not {"dataset", "problem"} & data.keys() and request.dataset is None and request.problem is None:
            raise ExperimentError(f"{request.file} names no data set.", 'add dataset = "digits", or use --dataset')
        return data
    return read_quick_start() if request.dataset is None and request.problem is None else {}


def with_seeds(data: dict[str, Any], file: Path) -> dict[str, Any]:
    """A file may call its list of seeds `seeds`, as the option is called, and the key of a sweep."""
    if {"seed", "seeds"} <= data.keys():
        raise ExperimentError(f"{file} gives both seed and seeds.", "seeds = [0, 1] alone")
    return {"seed" if key == "seeds" else key: value for key, value in data.items()}


def read_quick_start() -> dict[str, Any]:
    return tomllib.loads(files("fedkeel.cli").joinpath("quickstart.toml").read_text(encoding="utf-8"))


def read_file(file: Path, hint: str | None = None) -> dict[str, Any]:
    """An experiment file as plain data; `hint` says what to give where there is none."""
    try:
        return read_toml_file(file)
    except FileNotFoundError:
        raise RequestError(f"no such file: {file}", hint or guess_meaning(str(file))) from None
    except IsADirectoryError:
        raise RequestError(f"{file} is a folder, not an experiment file.", hint or guess_meaning(str(file))) from None
    except OSError as error:
        raise RequestError(f"cannot read {file}: {error.strerror}", hint or guess_meaning(str(file))) from None
    except tomllib.TOMLDecodeError as error:
        hint = guess_meaning(str(file)) if file.suffix == ".py" else "it looks like: lr = 0.1"
        raise ExperimentError(f"{file} is not TOML: {error}", hint) from None


def guess_meaning(word: str) -> str:
    """What someone may have meant by a word where a file should stand."""
    if word in METHODS:
        return f"a method is chosen with --method {word}"
    if is_known(word):
        return f"a data set is chosen with --dataset {word}"
    if (Path(word) / "experiment.toml").exists():
        return f"{resume_command(Path(word))} goes on with this run"
    if word.endswith(".py") or ":" in word:
        name = word if ":" in word else f"{Path(word).stem}:NAME"
        return f"a problem of your own is chosen with --problem {name}"
    return "give a .toml file, or none for the quick start"


# ---- values --------------------------------------------------------------------------------------------------------
def parse_assignment(text: str) -> tuple[tuple[str, ...], Any]:
    """`partition.alpha=0.3` as a path and a value."""
    name, equals, value = text.partition("=")
    path = tuple(part.strip() for part in name.split("."))
    if not equals or not all(path):
        raise RequestError(f"--set needs key=value: {text}", "for example --set method.rho=0.05 --set lr=0.1")
    return path, parse_value(value.strip())


def parse_seeds(text: str) -> tuple[int, ...]:
    """`0,1,2` or `0-2` as whole numbers, at least one, each once."""
    try:
        found = tuple(number for word in split_words(text) for number in parse_range(word))
    except ValueError:
        raise RequestError(f"--seeds takes whole numbers: {text}", "for example --seeds 0,1,2 or --seeds 0-4") from None
    if not found:
        raise RequestError(f"--seeds names no seed: {text!r}", "for example --seeds 0,1,2")
    if len(set(found)) < len(found):
        raise RequestError(f"--seeds names a seed twice: {text}", "name each seed once")
    return found


def parse_range(word: str) -> Sequence[int]:
    """`3` as one number, `0-4` as five."""
    ends = re.fullmatch(r"(\d+)-(\d+)", word)
    if ends is None:
        return [int(word)]
    first, last = int(ends[1]), int(ends[2])
    if not first <= last < first + MOST_SEEDS:
        fault = "goes down" if last < first else f"is longer than {MOST_SEEDS}"
        raise RequestError(f"a range of seeds {fault}: {word}", "for example --seeds 0-4")
    return range(first, last + 1)


def as_list(value: Any) -> list[Any]:
    """A file may give one method or seed, or a list of them."""
    return list(value) if isinstance(value, list) else [value]


# ---- partitions ----------------------------------------------------------------------------------------------------
def read_partition(data: Mapping[str, Any]) -> dict[str, Any]:
    """The partition so far as a table: given, or the data set's own."""
    given = data.get("partition")
    if given is None and is_known(data.get("dataset")):
        given = find_card(data["dataset"]).preset.get("partition")
    return as_table(given)


def as_table(given: Any) -> dict[str, Any]:
    if given is not None and not isinstance(given, str | Mapping):
        hint = "for example --set partition.alpha=0.3"
        raise ExperimentError(f"what stands in a partition has no fields to set: {show_value(given)}", hint)
    return parse_partition(given) if isinstance(given, str) else dict(given or {})


def with_deep_field(given: Any, path: Sequence[str], value: Any) -> dict[str, Any]:
    """The table with one field, perhaps inside another table, changed."""
    table, (name, *rest) = as_table(given), path
    return table | {name: with_deep_field(table.get(name), rest, value) if rest else value}


def list_fields(kind: Any) -> set[str]:
    return {field.name for field in fields(kind)}


def check_keys(data: Mapping[str, Any], methods: Sequence[Any], trust: Trust) -> None:
    """Unknown keys name the nearest known one, or the part that they are a field of."""
    known = list_fields(Experiment)
    for word in data:
        if word not in known:
            hint = nearest(word, known, "keys")
            if any(word in list_hyperparameters(method, trust) for method in methods):
                hint = f"did you mean 'method.{word}'?"
            elif any(word in list_fields(kind) for kind in PARTITIONS.values()):
                hint = f"did you mean 'partition.{word}'?"
            elif kinds := [name for name, kind in OPTIMISERS.items() if kind and word in list_fields(kind)]:
                hint = f"it is a field of an optimizer ({', '.join(kinds)}): optimizer.{word}"
            elif kinds := [name for name, kind in SCHEDULES.items() if word in list_fields(kind)]:
                hint = f"it is a field of a schedule ({', '.join(kinds)}): schedule.{word}"
            elif word in OPTIONS:
                hint = f"it belongs to no experiment, but to a run: --{word}"
            raise ExperimentError(f"an experiment has no key: {word}", hint)
