"""Data that never leave a node: a folder of arrays or the user's loader, in the form of a known data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedkeel.data.clients import Rows, Sample
from fedkeel.data.dataset import DatasetCard
from fedkeel.data.storage.folder import open_split
from fedkeel.errors import DataError, ExperimentError
from fedkeel.importing import Kind, Trust, look_up
from fedkeel.problems.problem import Problem
from fedkeel.runs.plan import Plan
from fedkeel.runs.prepare import problem_with

PARTITION, FOLDER = "partition", "folder"
LOADER = Kind("loader", object, makers=True, hint="write def read(settings): return inputs, labels", error=DataError)
Arrays = tuple[NDArray[Any], NDArray[np.int64]]


class OneClient:
    """The data of one client, on its own node; the others have none here."""

    def __init__(self, client: int, clients: int, inputs: NDArray[Any], labels: NDArray[np.int64]):
        self.client, self.inputs, self.labels = client, inputs, labels
        self.sizes = np.zeros(clients, dtype=np.int64)
        self.sizes[client] = len(labels)

    def rows(self, client: int, rows: Rows) -> Sample:
        assert client == self.client, "a node has only its own client's data"
        return torch.from_numpy(np.ascontiguousarray(self.inputs[rows])), torch.from_numpy(self.labels[rows])


class RemoteClients:
    """What the server knows of its clients' data: how many samples each has. Rows are zeros of the right form."""

    hidden = True

    def __init__(self, sizes: Sequence[int], shape: tuple[int, ...], dtype: str):
        self.sizes, self.shape, self.dtype = np.asarray(sizes, dtype=np.int64), shape, dtype

    def rows(self, client: int, rows: Rows) -> Sample:
        inputs = torch.from_numpy(np.zeros((len(rows), *self.shape), dtype=self.dtype))
        return inputs, torch.zeros(len(rows), dtype=torch.int64)


def node_problem(
    plan: Plan, source: str, client: int, clients: int, settings: Mapping[str, Any], trust: Trust
) -> Problem:
    """A node's problem: its own data, read where the node's settings say."""
    card = dataset_card(plan)
    if not 0 <= client < clients:
        raise DataError(f"partition-id {client} is not one of {clients} clients.", "they are counted from 0")
    inputs, labels = read_folder(card, settings) if source == FOLDER else call_loader(card, source, settings, trust)
    return problem_with(plan, card, OneClient(client, clients, inputs, labels), None)


def server_problem(plan: Plan, sizes: Sequence[int], test: str) -> Problem:
    """The server's problem: clients it cannot see, and a folder with test data of its own, if it has any."""
    card = dataset_card(plan)
    held: Any = None
    if test:
        held = OneClient(0, 1, *open_split(card, Path(test).expanduser(), "test"))
    return problem_with(plan, card, RemoteClients(sizes, card.array_shape, card.dtype), held)


def dataset_card(plan: Plan) -> DatasetCard:
    if isinstance(plan.source, Problem):
        raise ExperimentError("a federation needs an experiment with a data set.", 'dataset = "cifar10"')
    return plan.source.card


def read_folder(card: DatasetCard, settings: Mapping[str, Any]) -> Arrays:
    """Read train_images.npy and train_labels.npy, as `fedkeel datasets` lays them out."""
    if "data-dir" not in settings:
        raise DataError("this node does not say where its data are.", "--node-config 'data-dir=\"/path\" …'")
    return open_split(card, Path(str(settings["data-dir"])).expanduser(), "train")


def call_loader(card: DatasetCard, name: str, settings: Mapping[str, Any], trust: Trust = Trust.TYPED) -> Arrays:
    """Call the user's function with the node's settings; it returns inputs and labels."""
    inputs, labels = (np.asarray(part) for part in look_up(name, LOADER, trust)(dict(settings)))
    if inputs.shape[1:] != card.array_shape or inputs.dtype != np.dtype(card.dtype):
        raise DataError(
            f"{name} gave {inputs.dtype} {inputs.shape[1:]} samples, not {card.dtype} {card.array_shape}.",
            f"they have the form of {card.name}",
        )
    if labels.shape != inputs.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"{name} gave {labels.dtype} labels of shape {labels.shape}, not {inputs.shape[:1]}.")
    if len(labels) and not 0 <= labels.min() <= labels.max() < card.classes:
        raise DataError(f"{name} gave labels outside 0 … {card.classes - 1}.")
    return inputs, labels.astype(np.int64)
