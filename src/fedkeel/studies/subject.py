"""A trained model put back on its data: what diagnostics of a run are taken of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from fedkeel.analysis.curvature import LossParts
from fedkeel.analysis.similarity import layer_features
from fedkeel.core.round import broadcast
from fedkeel.core.rule import State
from fedkeel.core.trees import Tree, stack
from fedkeel.data.clients import Sample
from fedkeel.engines.machine import device_of
from fedkeel.engines.serial import SerialEngine
from fedkeel.errors import RequestError
from fedkeel.problems.calling import arrange_inputs
from fedkeel.problems.module_state import copy_whole, write_state
from fedkeel.problems.predictions import find_hits
from fedkeel.randomness import choice, key
from fedkeel.runs import checkpoint
from fedkeel.runs.finished_run import Run
from fedkeel.runs.prepare import method_of, problem_of, task_maker
from fedkeel.runs.probe import SAMPLES, Probe
from fedkeel.runs.store import ClientStore


class Subject(Probe):
    """The last server model of a run, or one that it kept ("best"), a few of its clients, and samples of their data.

    `clients` and `samples` bound the work: that many clients are compared, on at most that many samples each. The
    choice depends on the experiment's partition seed alone, so that methods are compared on the same clients.
    """

    def __init__(
        self, run: Run, *, clients: int = 10, samples: int = SAMPLES, device: str = "cpu", which: str = "last"
    ):
        run = self.run = run.at(which)
        task = task_maker(run.plan, device_of(device), run.server["params"].buffer.dtype)(
            run.problem or problem_of(run.plan)
        )
        server: State = {name: slot.to(task.device) for name, slot in run.server.items()}
        able = np.flatnonzero(task.clients.sizes)
        chosen = choice(key(run.plan.partition_seed, "analysed clients"), len(able), min(clients, len(able)))
        method, here = method_of(run.plan, task), [int(able[i]) for i in chosen]
        super().__init__(task, method, run.plan, server, len(run.records), here, self.read_state, samples)

    # ---- samples -------------------------------------------------------------------------------------------------
    @cached_property
    def loss(self) -> LossParts:
        """The mean loss on `samples` training samples of all clients."""
        offsets = np.concatenate(([0], np.cumsum(self.task.clients.sizes)))
        drawn = np.asarray(choice(key(self.seed, "analysed samples"), int(offsets[-1]), min(self.samples, offsets[-1])))
        owner = np.searchsorted(offsets, drawn, side="right") - 1
        chosen = [(int(c), drawn[owner == c] - offsets[c]) for c in np.unique(owner)]
        return self.loss_on([self.task.prepare(self.task.clients.rows(client, rows)) for client, rows in chosen])

    def loss_of_split(self, split: str) -> LossParts:
        """The mean loss on `samples` training samples of all clients, or on as many test samples."""
        if split == "train":
            return self.loss
        test = self.task.test
        if test is None:
            raise RequestError("this problem has no test samples.", "leave out --split test")
        size = int(test.sizes[0])
        rows = choice(key(self.seed, "analysed test samples"), size, min(self.samples, size))
        return self.loss_on([self.task.prepare(test.rows(0, np.asarray(rows)))])

    def test_samples(self, count: int) -> Sample:
        """Take the first samples of the test set; of the clients, when there is none."""
        test = self.task.test
        if test is not None:
            return self.task.prepare(test.rows(0, np.arange(min(count, int(test.sizes[0])))))
        return self.task.prepare(self.task.clients.rows(self.clients[0], self.rows(self.clients[0])[:count]))

    # ---- what clients do here ------------------------------------------------------------------------------------
    @cached_property
    def store(self) -> ClientStore | None:
        """What clients remembered when the run came to this model; None where that is not in a folder."""
        if self.run.path is None:
            return None
        found, _ = checkpoint.find_newest(self.run.path / "checkpoint", self.task.device)
        if found is None or found.round != self.round:
            return None
        store = ClientStore(self.run.path / "checkpoint", self.task.device)
        store.restore(found.places)
        return store

    def read_state(self, client: int) -> State | None:
        """What a client remembers; None as if it had never taken part, where that is not known."""
        return None if self.store is None else self.store.get(client)

    @cached_property
    def updates(self) -> Tree:
        """w_i − w_t after one more round of local training of each client, stacked; nothing of it is kept."""
        engine = SerialEngine(self.task, self.method, self.plan.training)
        message, lr = broadcast(self.method, self.server), self.plan.lr_at(self.round)
        outcomes = engine.train(message, self.round, lr, self.clients, self.states)
        return stack([outcome.report["delta"] for outcome in outcomes])

    # ---- models --------------------------------------------------------------------------------------------------
    def model(self, params: Tree) -> nn.Module:
        """Make a module of its own with these weights, and the server's buffers."""
        if self.task.module is None:
            raise RequestError("this problem has no module, only params.", "--cka and --embedding need layers")
        made = copy_whole(self.task.module).eval()
        named = dict(params.only(self.task.initial.layout).items())
        named |= {} if self.buffers is None else dict(self.buffers.items())
        write_state(made, named)
        return made

    @cached_property
    def local_models(self) -> list[nn.Module]:
        """Each client's model after one more round of local training."""
        layout = self.updates.layout
        start = self.params.only(layout)
        moved = [self.params | (start + Tree(row, layout)) for row in self.updates.buffer]
        return [self.model(params) for params in moved]

    def features(self, module: nn.Module, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """The output of each layer of a module, which is given inputs as the problem names them."""
        placed, named = arrange_inputs(module, inputs, self.task.problem.names)
        return layer_features(module, *placed, **named)

    @torch.no_grad()
    def accuracies(self) -> list[float] | None:
        """Measure the server model's accuracy on the samples of each client; None where there are no classes."""
        if self.task.module is None:
            return None
        module, found = self.model(self.params), []
        for client in self.clients:
            tensors = self.task.prepare(self.task.clients.rows(client, self.rows(client)))
            hits = find_hits(self.task.predict(module, tensors), tensors[-1])
            if hits is None:
                return None
            found.append(float(hits.to(torch.float64).mean()))
        return found
