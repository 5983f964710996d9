"""How much memory an experiment needs, before anything is trained or fetched."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedkeel.data import DATASETS, load
from fedkeel.data.datasets import SOURCES
from fedkeel.data.folder import needed_bytes
from fedkeel.data.partitions import load_partition
from fedkeel.engines.engine import Training
from fedkeel.engines.flower.expected import expected
from fedkeel.engines.memory import activation_bytes
from fedkeel.errors import ExperimentError
from fedkeel.experiment import Experiment
from fedkeel.machine import state_budget
from fedkeel.models import build
from fedkeel.participation import share_of
from fedkeel.problem import Problem
from fedkeel.round import init_client, init_server
from fedkeel.rule import State
from fedkeel.setup import cross_entropy, method_of
from fedkeel.task import Task
from fedkeel.trees import tensors

TREES = 4  # the model as it was given, its initial weights, its gradient by layer and joined


@dataclass(frozen=True)
class Estimate:
    """Bytes by part. `clients` may come to have state, `likely` will on average, and `selected` train in a round.

    `budget` is for states in memory.
    """

    parameters: int
    clients: int
    likely: float
    selected: int
    server: int
    client: int
    budget: int
    workspace: int
    reports: int
    data: int

    @property
    def total(self) -> int:
        """What one process holds at once, besides Python and PyTorch; each worker process has a workspace more.

        A round is all or nothing: at its end the states of the server and of the selected clients are there as they
        were and as they will be, and all reports until they are combined. States beyond the budget are in files, and
        data are mapped, not read as a whole.
        """
        states = min(round(self.client * self.likely), self.budget) + self.client * self.selected
        return 2 * self.server + states + self.reports + self.workspace


def estimate(experiment: Experiment) -> Estimate:
    """From the model, built, and one batch of blank samples; the data set itself need not be here."""
    if experiment.dataset is None:
        raise ExperimentError("only experiments on a data set can be estimated.", 'dataset = "digits"')
    assert isinstance(experiment.batch_size, int)
    assert experiment.epochs is not None
    task = Task(blank_problem(experiment, experiment.batch_size))
    method = method_of(experiment, task)
    everyone = clients_of(experiment)
    selected = max(1, int(share_of(experiment.participation or 1.0) * everyone + 1e-9))
    tree = task.initial.buffer.nbytes
    training = Training(experiment.seed, experiment.epochs, experiment.batch_size)
    return Estimate(
        parameters=task.initial.layout.size,
        clients=min(everyone, selected * (experiment.rounds or 1)),
        likely=everyone * (1 - (1 - selected / everyone) ** (experiment.rounds or 1)),
        selected=selected,
        server=size(init_server(method, task.initial, task.buffers)),
        client=size(init_client(method, task.initial, task.buffers)),
        budget=state_budget(task.device),
        workspace=TREES * tree + activation_bytes(task, method, training),  # the latter with the trained weights
        reports=selected * size(expected(method, task).report),
        data=needed_bytes(SOURCES[experiment.dataset]),
    )


def blank_problem(experiment: Experiment, samples: int) -> Problem:
    """One client with one batch of the right shape."""
    card = DATASETS[str(experiment.dataset)]
    whole = torch.float32 if len(card.shape) > 1 else torch.int64
    model = build(str(experiment.model), shape=card.shape, classes=card.classes, seed=0)
    batch = (torch.zeros(samples, *card.shape, dtype=whole), torch.zeros(samples, dtype=torch.int64))
    return Problem(model=model, loss=cross_entropy, clients=[batch], classes=card.classes, proxy=batch)


def clients_of(experiment: Experiment) -> int:
    """How many clients there are; where the data decide it, they must be here."""
    partition = load_partition(experiment.partition)
    if partition.clients is not None:
        return partition.clients
    data = load(str(experiment.dataset))
    return 1 if data.groups is None else int(data.groups.max()) + 1


def size(state: State) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(state))
