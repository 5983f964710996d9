"""Data that never leave a node: a folder of arrays or a loader of the user's, in the form of a known data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedkeel.data import DATASETS
from fedkeel.data.clients import Rows, Sample
from fedkeel.data.dataset import DatasetCard
from fedkeel.data.prepare import Preparation, find_augmentation
from fedkeel.data.storage.folder import open_array, open_labels
from fedkeel.errors import DataError, ExperimentError
from fedkeel.importing import Kind, Trust, look_up
from fedkeel.models import MODELS
from fedkeel.models import build as build_model
from fedkeel.problems.problem import Problem
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.prepare import cross_entropy

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


class Elsewhere:
    """What the server knows of its clients' data: how many samples each has. Rows are stand-ins of the right form."""

    def __init__(self, sizes: Sequence[int], shape: tuple[int, ...], dtype: str):
        self.sizes, self.shape, self.dtype = np.asarray(sizes, dtype=np.int64), shape, dtype

    def rows(self, client: int, rows: Rows) -> Sample:
        inputs = torch.from_numpy(np.zeros((len(rows), *self.shape), dtype=self.dtype))
        return inputs, torch.zeros(len(rows), dtype=torch.int64)


def node_problem(
    experiment: Experiment, source: str, client: int, clients: int, settings: Mapping[str, Any], trust: Trust
) -> Problem:
    """A node's problem: its own data, read where the node's settings say."""
    card = card_of(experiment)
    if not 0 <= client < clients:
        raise DataError(f"partition-id {client} is not one of {clients} clients.", "they are counted from 0")
    inputs, labels = from_folder(card, settings) if source == FOLDER else from_loader(card, source, settings, trust)
    return problem(experiment, card, OneClient(client, clients, inputs, labels), None)


def server_problem(experiment: Experiment, sizes: Sequence[int], test: str) -> Problem:
    """The server's problem: clients it cannot see, and a folder with test data of its own, if it has any."""
    card = card_of(experiment)
    held: Any = None
    if test:
        folder = Path(test).expanduser()
        images = open_array(folder / "test_images.npy", card.dtype, 0, card.array_shape)
        held = OneClient(0, 1, images, open_labels(folder / "test_labels.npy", len(images), card.classes))
    return problem(experiment, card, Elsewhere(sizes, card.array_shape, card.dtype), held)


def problem(experiment: Experiment, card: DatasetCard, clients: Any, test: Any) -> Problem:
    model = experiment.model
    if not isinstance(model, nn.Module):
        known = MODELS.get(str(model))
        options = {"vocabulary": card.vocabulary} if known and "vocabulary" in known.defaults else {}
        model = build_model(str(model), shape=card.shape, classes=card.classes, seed=experiment.seed, **options)
    prepare = Preparation(card.mean, card.std, find_augmentation(experiment.augment or "none", card.shape))
    return Problem(model=model, loss=cross_entropy, clients=clients, test=test, classes=card.classes, prepare=prepare)


def card_of(experiment: Experiment) -> DatasetCard:
    if experiment.dataset is None:
        raise ExperimentError("a federation needs an experiment with a data set.", 'dataset = "cifar10"')
    return DATASETS[experiment.dataset]


def from_folder(card: DatasetCard, settings: Mapping[str, Any]) -> Arrays:
    """train_images.npy and train_labels.npy, as `fedkeel datasets` lays them out."""
    if "data-dir" not in settings:
        raise DataError("this node does not say where its data are.", "--node-config 'data-dir=\"/path\" …'")
    folder = Path(str(settings["data-dir"])).expanduser()
    images = open_array(folder / "train_images.npy", card.dtype, 0, card.array_shape)
    return images, open_labels(folder / "train_labels.npy", len(images), card.classes)


def from_loader(card: DatasetCard, name: str, settings: Mapping[str, Any], trust: Trust = Trust.TYPED) -> Arrays:
    """What the user's function returns for the node's settings: inputs and labels, as arrays."""
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
