"""Data that never leave a node: a folder or the user's loader, in the form of a known data set or of a problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedkeel.data.clients import Rows, refuse_masked
from fedkeel.data.dataset import DatasetCard
from fedkeel.data.storage.folder import open_split
from fedkeel.errors import DataError
from fedkeel.federation.own_problem import (
    FormRows,
    SiteRows,
    data_folder,
    named_columns,
    place_at_server,
    place_at_site,
    read_site,
    run_loader,
)
from fedkeel.federation.site_files import list_columns
from fedkeel.importing import Trust
from fedkeel.problems.problem import Problem
from fedkeel.randomness import key, permutation
from fedkeel.runs.plan import Plan
from fedkeel.runs.prepare import problem_with

PARTITION, FOLDER = "partition", "folder"
Arrays = tuple[NDArray[Any], NDArray[np.int64]]
SAMPLED = 10_000  # samples whose values are looked at
NARROW = 8  # pixels that reach no eighth of their range are on another scale


def node_problem(
    plan: Plan,
    source: str,
    client: int,
    clients: int,
    settings: Mapping[str, Any],
    trust: Trust,
    share: float,
    config: Mapping[str, Any],
) -> Problem:
    """A node's problem: its own data, read where the node's settings say; a share of them is for tests."""
    if isinstance(plan.source, Problem):
        parts = read_site(plan.source, source, settings, config, trust)
        aside = set_aside(key(plan.seed, "site test", client), len(parts[0]), share)
        columns = [] if ":" in source else list_columns(data_folder(settings), *named_columns(config))
        return place_at_site(plan.source, parts, client, clients, *aside, columns)
    card = plan.source.card
    inputs, labels = read_folder(card, settings) if source == FOLDER else call_loader(card, source, settings, trust)
    check_values(card, inputs)
    trained, tested = set_aside(key(plan.seed, "site test", client), len(labels), share)
    test = SiteRows(0, 1, (inputs, labels), tested) if len(tested) else None
    return problem_with(plan, card, SiteRows(client, clients, (inputs, labels), trained), test)


def set_aside(of: int, size: int, share: float) -> tuple[Rows, Rows]:
    """Choose a share of the samples for tests, by a fixed key: the rows that train, and those that do not."""
    order = permutation(of, size)
    count = min(round(share * size), size - 1) if size > 1 else 0
    return np.sort(order[count:]), np.sort(order[:count])


def server_problem(
    plan: Plan,
    sizes: Sequence[int],
    test: str,
    config: Mapping[str, Any] = MappingProxyType({}),
    at_sites: bool = False,
) -> Problem:
    """The server's problem: clients it cannot see, and a folder with test data of its own, if it has any.

    Where the model is tested `at_sites`, test data that came with a problem are left out.
    """
    if isinstance(plan.source, Problem):
        return place_at_server(plan.source, sizes, test, config, at_sites)
    card = plan.source.card
    held: Any = None
    if test:
        inputs, labels = open_split(card, Path(test).expanduser(), "test")
        held = SiteRows(0, 1, (inputs, labels), np.arange(len(labels)))
    like = torch.from_numpy(np.zeros((1, *card.array_shape), card.dtype)), torch.zeros(1, dtype=torch.int64)
    return problem_with(plan, card, FormRows(sizes, like), held)


def describe_form(card: DatasetCard) -> str:
    """Say what data of the form of a data set are, as a hint."""
    return (
        f"{card.dtype} samples of shape {card.array_shape} from 0 to {largest(card)}, and integer labels from 0 to "
        f"{card.classes - 1}, as in {card.name}"
    )


def read_folder(card: DatasetCard, settings: Mapping[str, Any]) -> Arrays:
    """Read train_images.npy and train_labels.npy, as `fedkeel datasets` lays them out."""
    folder = data_folder(settings)
    try:
        return open_split(card, folder, "train")
    except DataError as error:  # its own hint is to fetch the data set anew
        raise DataError(error.message, describe_form(card)) from error


def call_loader(card: DatasetCard, name: str, settings: Mapping[str, Any], trust: Trust = Trust.TYPED) -> Arrays:
    """Read what the user's function returns for the node's settings: inputs and labels."""
    given = run_loader(name, settings, trust)
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise DataError(f"{name} gave a {type(given).__name__}, not inputs and labels.", describe_form(card))
    for part in given:
        refuse_masked(part, name)
    inputs, labels = (np.asarray(part) for part in given)
    for what, part in (("inputs", inputs), ("labels", labels)):
        if missing := count_missing(part):
            raise DataError(
                f"{name} gave {what} of which {missing} are missing.", "leave such samples out, or fill them"
            )
    if inputs.shape[1:] != card.array_shape or inputs.dtype != np.dtype(card.dtype):
        raise DataError(
            f"{name} gave {inputs.dtype} {inputs.shape[1:]} samples, not {card.dtype} {card.array_shape}.",
            describe_form(card),
        )
    if labels.shape != inputs.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
        line = f"{name} gave {labels.dtype} labels of shape {labels.shape}, not {inputs.shape[:1]}."
        raise DataError(line, describe_form(card))
    if len(labels) and not 0 <= labels.min() <= labels.max() < card.classes:
        raise DataError(
            f"{name} gave labels from {labels.min()} to {labels.max()}, outside 0 … {card.classes - 1}.",
            describe_form(card),
        )
    return inputs, labels.astype(np.int64)


def count_missing(values: NDArray[Any]) -> int:
    """Count values that are not there: NaN, None."""
    if np.issubdtype(values.dtype, np.floating):
        return int(np.isnan(values).sum())
    return sum(value is None or value != value for value in values.reshape(-1)) if values.dtype == object else 0


def check_values(card: DatasetCard, inputs: NDArray[Any]) -> None:
    """Refuse inputs whose numbers are not on the scale that the experiment states: pixels up to 255, tokens."""
    if not len(inputs):
        return
    rows = np.unique(np.linspace(0, len(inputs) - 1, SAMPLED).astype(np.int64))  # a node looks every round
    values = np.asarray(inputs[rows])
    low, high, most = values.min().item(), values.max().item(), largest(card)
    if low < 0 or high > most or (not card.vocabulary and high * NARROW < most):
        raise DataError(
            f"this node's inputs go from {low} to {high}, where 0 to {most} is expected.",
            f"bring them to the scale of {card.name}: {describe_form(card)}",
        )


def largest(card: DatasetCard) -> int:
    """Return the largest number that an input may hold."""
    return card.vocabulary - 1 if card.vocabulary else 255
