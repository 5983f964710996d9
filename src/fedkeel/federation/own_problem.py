"""A problem of the user's own at real sites: each has its data, and the problem's first client shows their form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedkeel.data.clients import Rows, Sample, names_of, to_tensors
from fedkeel.errors import DataError, ExperimentError, FedkeelError, blame_own_code
from fedkeel.federation.site_files import LABEL, list_columns, read_site_files
from fedkeel.importing import Kind, Trust, look_up
from fedkeel.problems.class_labels import lowest_and_highest
from fedkeel.problems.problem import Problem
from fedkeel.problems.sound_data import ignored_by
from fedkeel.text import in_one_line, split_words

LOADER = Kind("loader", object, makers=True, hint="write def read(settings): return inputs, labels", error=DataError)


class SiteRows:
    """The data of one client, on its own node; the others have none here."""

    own = True  # the node brought these data; they are no part of a data set that all know

    def __init__(
        self,
        client: int,
        clients: int,
        parts: Sequence[Any],
        chosen: Rows,
        names: tuple[str, ...] | None = None,
        columns: Sequence[str] = (),
    ):
        self.client, self.parts, self.names, self.chosen = client, parts, names, chosen
        self.columns = columns  # of tables that are read as inputs
        self.sizes = np.zeros(clients, dtype=np.int64)
        self.sizes[client] = len(chosen)

    def rows(self, client: int, rows: Rows) -> Any:
        assert client == self.client, "a node has only its own client's data"
        return name_parts([torch.as_tensor(part[self.chosen[rows]]) for part in self.parts], self.names)

    def read_targets(self) -> list[torch.Tensor]:
        """Read the targets of all samples, where these have some: what a loss ignores is looked for in them."""
        return [torch.as_tensor(part[self.chosen]) for part in self.parts[1:][-1:]]


def columns_of(data: object) -> list[str]:
    """List the columns of the tables that data were read from, in their order; none of other data."""
    return [*data.columns] if isinstance(data, SiteRows) else []


class FormRows:
    """What the server knows of its clients' data: how many samples each has. Rows are zeros of the right form."""

    own = hidden = True

    def __init__(self, sizes: Sequence[int], like: Sample, names: tuple[str, ...] | None = None):
        self.sizes, self.like, self.names = np.asarray(sizes, dtype=np.int64), like, names

    def rows(self, client: int, rows: Rows) -> Any:
        return name_parts([torch.zeros(len(rows), *p.shape[1:], dtype=p.dtype) for p in self.like], self.names)


def name_parts(parts: Sequence[torch.Tensor], names: tuple[str, ...] | None) -> Any:
    return tuple(parts) if names is None else dict(zip(names, parts, strict=True))


def show_sample(problem: Problem) -> Sample:
    """Return one sample of a problem, which shows the form of all."""
    data = problem.data
    there = np.flatnonzero(data.sizes)[:1]
    if not len(there):
        raise ExperimentError("no client of this problem shows what a sample looks like.", "clients=[(x, y)]")
    return data.rows(int(there[0]), np.zeros(1, np.int64))


def describe_sample(problem: Problem) -> str:
    """Write the form of a problem's data in words."""
    like = show_sample(problem)
    words = problem.names or ((*("inputs",) * (len(like) - 1), "labels") if len(like) > 1 else ("samples",))
    told = [f"{name} {dtype_of(part)} {tuple(part.shape[1:])}" for name, part in zip(words, like, strict=True)]
    return ", ".join([*told, *([f"{problem.classes} classes"] if problem.classes else [])])


def dtype_of(part: torch.Tensor) -> str:
    return str(part.dtype).removeprefix("torch.")


def read_site(
    problem: Problem, source: str, settings: Mapping[str, Any], config: Mapping[str, Any], trust: Trust
) -> Sample:
    """Read a site's own data, by its files or by a loader, and check that they have the form of the problem."""
    like = show_sample(problem)
    if ":" in source:
        given, whose = run_loader(source, settings, trust), source
        if names_of(given, source) != problem.names:
            raise DataError(f"{source} gave parts by other names.", f"expected: {describe_sample(problem)}")
        parts = to_tensors(given, source)
    else:
        folder = data_folder(settings)
        whose, parts = str(folder), read_folder(folder, config, like)
    check_parts(problem, like, parts, whose)
    return parts


def data_folder(settings: Mapping[str, Any]) -> Path:
    """Return where a node's settings say that its data are."""
    if "data-dir" not in settings:
        raise DataError("this node does not say where its data are.", "--node-config 'data-dir=\"/path\" …'")
    return Path(str(settings["data-dir"])).expanduser()


def run_loader(name: str, settings: Mapping[str, Any], trust: Trust) -> Any:
    """Call the user's function with the node's settings; if it fails, say so in one line."""
    loader = look_up(name, LOADER, trust)
    try:
        return loader(dict(settings))
    except FedkeelError:
        raise
    except Exception as error:  # its words may hold a patient's: they are the hint, which stays at the site
        own, given = blame_own_code(error), ", ".join(f"{key}={value!r}" for key, value in settings.items())
        said = own.message if own is not None else in_one_line(error)
        raise DataError(
            f"the loader {name} failed with {type(error).__name__}.", f"{said}; the node's settings: {given}"
        ) from error


def read_folder(folder: Path, config: Mapping[str, Any], like: Sample) -> Sample:
    """Read the files of a folder; the app's settings name the columns."""
    return read_site_files(folder, *named_columns(config), like)


def named_columns(config: Mapping[str, Any]) -> tuple[list[str], str]:
    """The columns of inputs, and that of the label, as the app's settings name them."""
    return split_words(str(config.get("columns", ""))), str(config.get("label", LABEL))


def check_parts(problem: Problem, like: Sample, parts: Sample, whose: str) -> None:
    """Refuse data that do not have the form of the problem's, lack values, or name classes that it does not have."""
    if [(p.dtype, p.shape[1:]) for p in parts] != [(p.dtype, p.shape[1:]) for p in like]:
        told = ", ".join(f"{dtype_of(part)} {tuple(part.shape[1:])}" for part in parts)
        raise DataError(f"{whose} gave {told}.", f"expected: {describe_sample(problem)}")
    for part in parts:
        if part.is_floating_point() and (missing := int((~torch.isfinite(part)).sum())):
            raise DataError(f"{missing} numbers of {whose} are missing or infinite.", "leave out or fill such samples")
    target = parts[-1]
    if problem.classes and not target.is_floating_point():
        labels = target.to(torch.int64)
        low, high = lowest_and_highest(labels[labels != ignored_by(problem.loss)])
        if low < 0 or high >= problem.classes:
            raise DataError(
                f"{whose} gave labels from {low} to {high}, outside 0 … {problem.classes - 1}.",
                f"expected: {describe_sample(problem)}",
            )


def place_at_site(
    problem: Problem, parts: Sample, client: int, clients: int, trained: Rows, tested: Rows, columns: Sequence[str]
) -> Problem:
    """Give a problem one site's data: some of its samples train, others are for tests."""
    names = problem.names
    test = SiteRows(0, 1, parts, tested, names) if len(tested) else None
    return replace(problem, clients=SiteRows(client, clients, parts, trained, names, columns), test=test, tests=None)


def place_at_server(
    problem: Problem, sizes: Sequence[int], test: str, config: Mapping[str, Any], at_sites: bool
) -> Problem:
    """Give a problem the clients of a federation, which the server cannot see, and the server's own test data."""
    like = show_sample(problem)
    held: Any = None if at_sites else problem.test
    if test:
        folder = Path(test).expanduser()
        parts = read_folder(folder, config, like)
        check_parts(problem, like, parts, test)
        columns = list_columns(folder, *named_columns(config))
        held = SiteRows(0, 1, parts, np.arange(len(parts[0])), problem.names, columns)
    return replace(problem, clients=FormRows(sizes, like, problem.names), test=held, tests=None)
