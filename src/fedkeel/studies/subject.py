"""A trained model put back on its data: what diagnostics of a run are taken of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from fedkeel.analysis.curvature import LossParts
from fedkeel.analysis.similarity import layer_features
from fedkeel.core.round import own_moves
from fedkeel.core.rule import State
from fedkeel.core.trees import Tree, stack
from fedkeel.data.clients import Rows, Sample
from fedkeel.engines.engine import ClientOutcome
from fedkeel.engines.machine import device_of
from fedkeel.engines.serial import SerialEngine
from fedkeel.errors import RequestError
from fedkeel.problems.calling import arrange_inputs
from fedkeel.problems.module_state import copy_whole, write_state
from fedkeel.problems.predictions import find_hits
from fedkeel.randomness import choice, key
from fedkeel.rules.personal import KeepModel
from fedkeel.runs.client_model import open_store
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
        last, run = len(run.records), run.at(which)
        self.run, self.stale = run, len(run.records) < last  # whether the server's memory is of a later round
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
        return self.loss_on([self.task.prepare(test.rows(0, self.draw_test_rows(int(test.sizes[0]), self.samples)))])

    def draw_test_rows(self, size: int, count: int) -> Rows:
        """Draw rows of a test set, which may be sorted by class."""
        return np.asarray(choice(key(self.seed, "analysed test samples"), size, min(count, size)))

    def test_samples(self, count: int) -> Sample:
        """Draw so many samples of the test set; of a client, when there is none."""
        test = self.task.test
        if test is not None:
            return self.task.prepare(test.rows(0, self.draw_test_rows(int(test.sizes[0]), count)))
        return self.task.prepare(self.task.clients.rows(self.clients[0], self.rows(self.clients[0])[:count]))

    # ---- what clients do here ------------------------------------------------------------------------------------
    @cached_property
    def store(self) -> ClientStore | None:
        """What clients remembered when the run came to this model; None where that is not in a folder."""
        return None if self.run.path is None else open_store(self.run.path, self.round, self.task.device)

    def read_state(self, client: int) -> State | None:
        """What a client remembers; None as if it had never taken part, where that is not known."""
        return None if self.store is None else self.store.get(client)

    @property
    def forgotten(self) -> bool:
        """Whether clients remembered something when the run came to this model, and nobody knows what."""
        rules = (rule for rule in self.method.rules if not isinstance(rule, KeepModel))  # which keeps for judges alone
        remember = self.keeps_buffers or any(rule.client_slots(self.params) for rule in rules)
        return self.round > 0 and remember and self.store is None

    def begin(self, number: int) -> tuple[Tree, Tree | None]:
        """Return the model that a client begins with, and its buffers."""
        self.require_own_parts()
        return super().begin(number)

    def require_own_parts(self) -> None:
        """Refuse to look at clients' models where the part that they keep to themselves is not known."""
        if self.forgotten and (self.private or self.keeps_buffers):
            what = "layers" if self.private else "running statistics"
            raise RequestError(
                f"clients keep {what} of their own, and those that they had at this model are not kept.",
                "analyse the last model of a run that has a folder (--out)",
            )

    def require_whole_model(self) -> None:
        """Refuse to look at the server's model where a part of it is never trained."""
        if self.private:
            raise RequestError(
                f"the server's model has no trained {', '.join(self.private)}: these layers never leave clients.",
                "--drift, --cka, --spectrum, --embedding and --clusters are of clients' models",
            )

    def describe_clients(self) -> list[str]:
        """Say what clients begin with that is not of this model."""
        told = ["clients are taken as new: what they remembered at this model is not kept"] * self.forgotten
        more = self.message.keys() - {"params", "buffers"} or self.message["params"] is not self.params
        return told + ["what the server sends beside this model is of the run's last round"] * bool(self.stale and more)

    def describe_server(self) -> list[str]:
        """Say what of the server's model is as the run began."""
        kept = ["layers"] * bool(self.private) + ["running statistics"] * self.keeps_buffers
        return [f"{what} of the server's model are those that the run began with: clients keep theirs" for what in kept]

    @cached_property
    def outcomes(self) -> list[ClientOutcome]:
        """What each client would send and remember after one more round of local training; nothing of it is kept."""
        if self.private:
            self.require_own_parts()
        engine = SerialEngine(self.task, self.method, self.plan.training)
        return engine.train(self.message, self.round, self.plan.lr_at(self.round), self.clients, self.states)

    @cached_property
    def updates(self) -> Tree:
        """w_i less the model sent after one more round of local training, stacked; of the layers that are sent."""
        deltas: Tree = stack([outcome.report["delta"] for outcome in self.outcomes])
        if not deltas.layout.size:
            raise RequestError(
                'a rule of this method leaves "delta" of the reports empty, so what clients learned is not known.',
                "leave out what is of clients' models: --drift, --cka, --embedding, --clusters",
            )
        return own_moves(self.method, deltas, [outcome.state for outcome in self.outcomes])

    # ---- models --------------------------------------------------------------------------------------------------
    def model(self, params: Tree, buffers: Tree | None = None) -> nn.Module:
        """Make a module of its own with these weights, and these buffers or the server's."""
        if self.task.module is None:
            raise RequestError("this problem has no module, only params, so it has no layers.", "leave out --cka")
        made = copy_whole(self.task.module).eval()
        named = dict(params.only(self.task.initial.layout).items())
        buffers = self.buffers if buffers is None else buffers
        named |= {} if buffers is None else dict(buffers.items())
        write_state(made, named)
        return made

    @cached_property
    def local_models(self) -> list[nn.Module]:
        """Each client's model after one more round of local training, with what it keeps to itself."""
        self.require_own_parts()
        layout, sent = self.updates.layout, self.message["params"]
        start = sent.only(layout)
        moved = [sent | (start + Tree(row, layout)) for row in self.updates.buffer]
        made = []
        for row, outcome in zip(moved, self.outcomes, strict=True):
            params, buffers = self.complete(row, outcome.state)
            made.append(self.model(params, outcome.report.get("buffers", buffers)))
        return made

    def features(self, module: nn.Module, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """The output of each layer of a module, which is given inputs as the problem names them."""
        placed, named = arrange_inputs(module, inputs, self.task.problem.names)
        return layer_features(module, *placed, **named)

    @torch.no_grad()
    def accuracies(self) -> list[float | None] | None:
        """Measure the accuracy on its samples of the model that each client begins with; None where there are no
        classes, and for a client whose targets all name none."""
        if self.task.module is None or self.task.label_beyond is not None:
            return None
        found: list[float | None] = []
        for number, client in enumerate(self.clients):
            module = self.model(*self.begin(number))
            tensors = self.task.prepare(self.task.clients.rows(client, self.rows(client)))
            hits = find_hits(self.task.predict(module, tensors), tensors[-1], self.task.ignored)
            if hits is None:
                return None
            found.append(float(hits.to(torch.float64).mean()) if len(hits) else None)
        return found
