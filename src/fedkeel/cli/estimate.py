"""How much memory an experiment needs, before anything is trained or fetched."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fedkeel.core.round import init_client, init_round, init_server
from fedkeel.core.trees import state_bytes
from fedkeel.data import load
from fedkeel.data.storage.folder import needed_bytes
from fedkeel.data.storage.loading import source_of
from fedkeel.engines.machine import uses_onednn
from fedkeel.engines.memory import activation_bytes, frozen_bytes, state_budget
from fedkeel.engines.rehearsal import expected_messages
from fedkeel.models import build
from fedkeel.problems.problem import Problem
from fedkeel.problems.task import Task
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.participation import SHUFFLED, count_selected, share_of
from fedkeel.runs.plan import Division, Plan
from fedkeel.runs.prepare import cross_entropy, divide, method_of, problem_of

TREES = 4  # the model as it was given, its initial weights, its gradient by layer and joined
CLIMB = 2  # the gradient at w and the point it leads to
KERNEL = 2 << 20  # bytes of a convolution that oneDNN compiled for x86-64, as far as two runs there tell
FRAGMENTS = 0.27  # of all else, which PyTorch's own convolutions leave in the heap on x86-64: measured, not understood
PASSES = 4  # forward, towards the input, towards the weight, and forward over test data


@dataclass(frozen=True)
class Estimate:
    """Bytes by part. `clients` may come to have state, `likely` will on average, and `selected` train in a round.

    `budget` is for states in memory.
    """

    parameters: int
    frozen: int
    clients: int
    likely: float
    selected: int
    server: int
    client: int
    budget: int
    workspace: int
    reports: int
    data: int
    fragments: float = 0.0  # of all else: what the heap keeps in pieces

    @property
    def total(self) -> int:
        """What one process holds at once, besides Python and PyTorch; each worker process has a workspace more.

        A round is all or nothing: at its end the states of the server and of the selected clients are there as they
        were and as they will be, and all reports until they are combined. States beyond the budget are in files, and
        data are mapped, not read as a whole.
        """
        states = min(round(self.client * self.likely), self.budget) + self.client * self.selected
        return round((1 + self.fragments) * (2 * self.server + states + self.reports + self.workspace + self.frozen))


def estimate(experiment: Experiment) -> Estimate:
    """From the model, built, and one batch of blank samples; the data set itself need not be here."""
    plan = experiment.plan
    task = make_task(plan, plan.batch_size)
    method = method_of(plan, task)
    own = isinstance(plan.source, Problem)
    everyone = int((task.clients.sizes > 0).sum()) if own else count_clients(plan)
    selected = count_selected(share_of(plan.participation), everyone)
    turns = everyone // selected if str(plan.participation).startswith(SHUFFLED) else 1
    passes, more = divmod(plan.rounds, turns)  # nobody takes part twice in a pass; passes are independent
    idle = (1 - turns * selected / everyone) ** passes * (1 - more * selected / everyone)
    tree = task.initial.buffer.nbytes
    trees = TREES + CLIMB * any(phase.ascends for phase in method.phases)
    held = 2 * state_bytes(init_round(method, task.initial))  # in a step, as it was and as it will be
    convolutions: list[Convolution] = []
    with watch_convolutions(task.module, convolutions):
        saved = activation_bytes(task, method, plan.training)  # with the trained weights
    return Estimate(
        parameters=task.initial.layout.size,
        frozen=frozen_bytes(task),
        clients=min(everyone, selected * plan.rounds),
        likely=everyone * (1 - idle),
        selected=selected,
        server=state_bytes(init_server(method, task.initial, task.buffers)),
        client=state_bytes(init_client(method, task.initial, task.buffers)),
        budget=state_budget(task.device),
        workspace=trees * tree + held + saved + (onednn_bytes(convolutions) if uses_onednn() else 0),
        reports=selected * state_bytes(expected_messages(method, task).report),
        data=0 if own else needed_bytes(source_of(plan.division.dataset)),
        fragments=FRAGMENTS if convolutions and on_x86() and not uses_onednn() else 0.0,
    )


def on_x86() -> bool:
    return platform.machine() in ("x86_64", "AMD64")


class Convolution(NamedTuple):
    """What oneDNN tells one kind of convolution from another by, and the bytes it works on."""

    kind: tuple[object, ...]
    input: int
    output: int
    weight: int


@contextmanager
def watch_convolutions(module: nn.Module | None, found: list[Convolution]) -> Iterator[None]:
    """Note every convolution of a forward pass."""

    def note(layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer, _ConvNd)
        kind = (given[0].shape, layer.weight.shape, layer.stride, layer.padding, layer.dilation, layer.groups)
        found.append(Convolution(kind, given[0].nbytes, output.nbytes, layer.weight.nbytes))

    layers = [] if module is None else [layer for layer in module.modules() if isinstance(layer, _ConvNd)]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def onednn_bytes(convolutions: Sequence[Convolution]) -> int:
    """What oneDNN takes besides: max over layers of 2 x + 2 y + 3 w, and PASSES · KERNEL for each kind of convolution.

    It works in blocked layouts. While a layer is passed backwards, its input x and output y are there once more, their
    gradients too, and its weight w three times more: as the forward pass has it, as the pass towards the input has it,
    and its gradient. For x86-64 it compiles a kernel for each kind of convolution and each pass, and keeps these with
    their scratch memory for good (up to 1 024 of them); for ARM it takes ready-made ones of the Arm Compute Library.
    """
    blocked = max((2 * one.input + 2 * one.output + 3 * one.weight for one in convolutions), default=0)
    return blocked + on_x86() * PASSES * KERNEL * len({one.kind for one in convolutions})


def make_task(plan: Plan, samples: int) -> Task:
    """Make a task of an experiment's own problem, or of so many blank samples of its data set."""
    if isinstance(plan.source, Problem):
        return Task(problem_of(plan))
    problem = blank_problem(plan.source, samples)
    sets_aside = plan.evaluation is not None and plan.evaluation.share > 0
    return Task(replace(problem, tests=problem.clients) if sets_aside else problem)


def blank_problem(division: Division, samples: int) -> Problem:
    """One client with one batch of the right shape."""
    card = division.card
    whole = torch.float32 if len(card.shape) > 1 else torch.int64
    model = build(str(division.model), shape=card.shape, classes=card.classes, seed=0)
    batch = (torch.zeros(samples, *card.shape, dtype=whole), torch.zeros(samples, dtype=torch.int64))
    return Problem(model=model, loss=cross_entropy, clients=[batch], classes=card.classes, proxy=batch)


def count_clients(plan: Plan) -> int:
    """How many clients there are; where the data decide it, they must be here."""
    division = plan.division
    return division.partition.clients or divide(plan, load(division.dataset)).clients
