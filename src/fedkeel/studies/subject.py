"""A trained model put back on its data: what diagnostics of a run are taken of."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedkeel.analysis.curvature import LossParts, gradient
from fedkeel.core.method import Phase
from fedkeel.core.round import apply_chain, broadcast
from fedkeel.core.rule import Local, State
from fedkeel.core.trees import Tree, stack
from fedkeel.data.clients import Rows, Sample
from fedkeel.engines.engine import client_state, step_keys
from fedkeel.engines.machine import device_of
from fedkeel.engines.serial import SerialEngine
from fedkeel.errors import RequestError
from fedkeel.problems.task import are_class_scores
from fedkeel.randomness import choice, key
from fedkeel.runs import checkpoint
from fedkeel.runs.finished_run import Run
from fedkeel.runs.prepare import method_of, problem_of, task_maker
from fedkeel.runs.store import ClientStore

CHUNK = 250  # samples differentiated at once


class Subject:
    """The last server model of a run, a few of its clients, and samples of their data.

    `clients` and `samples` bound the work: that many clients are compared, on at most that many samples each. The
    choice depends on the experiment's partition seed alone, so that methods are compared on the same clients.
    """

    def __init__(self, run: Run, *, clients: int = 10, samples: int = 1000, device: str = "cpu"):
        make = task_maker(run.plan, device_of(device), run.server["params"].buffer.dtype)
        self.run, self.samples = run, samples
        self.task = make(run.problem or problem_of(run.plan))
        self.method = method_of(run.plan, self.task)
        self.server: State = {name: slot.to(self.task.device) for name, slot in run.server.items()}
        self.params: Tree = self.server["params"]
        self.buffers: Tree | None = self.server.get("buffers")
        self.seed = run.plan.partition_seed
        able = np.flatnonzero(self.task.clients.sizes)
        chosen = choice(key(self.seed, "analysed clients"), len(able), min(clients, len(able)))
        self.clients = [int(able[i]) for i in chosen]
        self.round = len(run.records)

    # ---- samples -------------------------------------------------------------------------------------------------
    def rows(self, client: int) -> Rows:
        """Choose the rows of a client that are looked at: all, or `samples` of them."""
        size = int(self.task.clients.sizes[client])
        return np.asarray(choice(key(self.seed, "analysed rows", client), size, min(self.samples, size)))

    def loss_of(self, client: int) -> LossParts:
        """Return the mean loss on a client's training samples, as parts that add up to it."""
        rows = self.rows(client)
        return self._parts([(client, rows[i : i + CHUNK]) for i in range(0, len(rows), CHUNK)])

    @cached_property
    def loss(self) -> LossParts:
        """The mean loss on `samples` training samples of all clients."""
        offsets = np.concatenate(([0], np.cumsum(self.task.clients.sizes)))
        drawn = np.asarray(choice(key(self.seed, "analysed samples"), int(offsets[-1]), min(self.samples, offsets[-1])))
        owner = np.searchsorted(offsets, drawn, side="right") - 1
        return self._parts([(int(c), drawn[owner == c] - offsets[c]) for c in np.unique(owner)])

    def _parts(self, chosen: Sequence[tuple[int, Rows]]) -> LossParts:
        """Gather samples of several clients into parts of CHUNK samples."""
        total = sum(len(rows) for _, rows in chosen)
        raw = [self.task.prepare(self.task.clients.rows(client, rows)) for client, rows in chosen]
        joined = tuple(torch.cat(part) for part in zip(*raw, strict=True))
        pieces = [tuple(part[i : i + CHUNK] for part in joined) for i in range(0, total, CHUNK)]
        return [partial(self._share, tensors=piece, total=total) for piece in pieces]

    def _share(self, params: Tree, tensors: Sample, total: int) -> Tensor:
        """This part's share of the mean loss, a function that can be differentiated twice."""
        named, module, output = dict(params.items()), self.task.module, None
        model: nn.Module | dict[str, Tensor] = named
        if module is not None:
            model = module.eval()
            seen = {} if self.buffers is None else dict(self.buffers.items())
            output = functional_call(module, {**named, **seen}, tensors[:-1] or tensors)
        losses = self.task.losses(model, tensors, output)
        return losses.mean() * (len(tensors[0]) / total)

    def test_samples(self, count: int) -> Sample:
        """Take the first samples of the test set; of the clients, when there is none."""
        test = self.task.test
        if test is not None:
            return self.task.prepare(test.rows(0, np.arange(min(count, int(test.sizes[0])))))
        return self.task.prepare(self.task.clients.rows(self.clients[0], self.rows(self.clients[0])[:count]))

    # ---- what clients do here ------------------------------------------------------------------------------------
    @cached_property
    def gradients(self) -> Tree:
        """∇f_k(w) of each client, stacked."""
        return stack([gradient(self.loss_of(client), self.params) for client in self.clients])

    @cached_property
    def ascending(self) -> Phase | None:
        """The phase that trains at a perturbed point, if the method has one."""
        return next((phase for phase in self.method.phases if phase.perturb and phase.trains), None)

    @cached_property
    def perturbations(self) -> Tree | None:
        """Where each client would take its gradient, less w: the method's own perturb chain on its gradient.

        As in a second step, since some methods do not perturb in the first.
        """
        if self.ascending is None:
            return None
        return stack([self._perturbation(i, client) for i, client in enumerate(self.clients)])

    def _perturbation(self, number: int, client: int) -> Tree:
        assert self.ascending is not None
        slope = Tree(self.gradients.buffer[number], self.params.layout)
        lr = self.params.scalar(self.run.plan.lr_at(self.round))
        second = torch.ones((), dtype=torch.int64)
        of = step_keys(self.run.plan.training, self.round, client, 0, 1, self.task.device)[0]
        message = broadcast(self.method, self.server)
        at = Local(self.params, self.params, message, slope, lr, second, self.params.scalar(2.0), of)
        state = client_state(self.method, self.task, self.states[number])
        tree = slope if self.ascending.ascends else self.params.zeros()
        return apply_chain(self.ascending.perturb, tree, state, at)[0]

    @cached_property
    def states(self) -> list[State | None]:
        """What the clients remember, where the run has a folder; else they have never taken part."""
        if self.run.path is None:
            return [None] * len(self.clients)
        found, _ = checkpoint.find_newest(self.run.path / "checkpoint", self.task.device)
        if found is None or found.round != self.round:
            return [None] * len(self.clients)
        store = ClientStore(self.run.path / "checkpoint", self.task.device)
        store.restore(found.places)
        return [store.get(client) for client in self.clients]

    @cached_property
    def updates(self) -> Tree:
        """w_i − w_t after one more round of local training of each client, stacked; nothing of it is kept."""
        engine = SerialEngine(self.task, self.method, self.run.plan.training)
        message, lr = broadcast(self.method, self.server), self.run.plan.lr_at(self.round)
        outcomes = engine.train(message, self.round, lr, self.clients, self.states)
        return stack([outcome.report["delta"] for outcome in outcomes])

    # ---- models --------------------------------------------------------------------------------------------------
    def model(self, params: Tree) -> nn.Module:
        """Make a module of its own with these weights, and the server's buffers."""
        if self.task.module is None:
            raise RequestError("this problem has no module, only params.", "--cka and --embedding need layers")
        made = copy.deepcopy(self.task.module).eval()
        named = dict(params.only(self.task.initial.layout).items())
        named |= {} if self.buffers is None else dict(self.buffers.items())
        made.load_state_dict(named, strict=False)
        return made

    @cached_property
    def local_models(self) -> list[nn.Module]:
        """Each client's model after one more round of local training."""
        layout = self.updates.layout
        start = self.params.only(layout)
        moved = [self.params | (start + Tree(row, layout)) for row in self.updates.buffer]
        return [self.model(params) for params in moved]

    @torch.no_grad()
    def accuracies(self) -> list[float] | None:
        """Measure the server model's accuracy on the samples of each client; None where there are no classes."""
        if self.task.module is None:
            return None
        module, found = self.model(self.params), []
        for client in self.clients:
            tensors = self.task.prepare(self.task.clients.rows(client, self.rows(client)))
            output = module(*(tensors[:-1] or tensors))
            if not are_class_scores(output, tensors[-1]):
                return None
            found.append(float((output.argmax(-1) == tensors[-1]).to(torch.float64).mean()))
        return found
