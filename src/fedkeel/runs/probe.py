"""Clients at a model: the loss on samples of their data, its gradient, and where their method perturbs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedkeel.analysis.curvature import LossParts, gradient
from fedkeel.core.local_step import apply_chain
from fedkeel.core.method import Method, Phase
from fedkeel.core.round import broadcast
from fedkeel.core.rule import Local, State
from fedkeel.core.trees import Tree, stack
from fedkeel.data.clients import Rows, Sample, UnequalSamplesError
from fedkeel.engines.engine import client_state, step_keys
from fedkeel.problems.calling import arrange_inputs, read_logits
from fedkeel.problems.task import Task
from fedkeel.randomness import choice, key
from fedkeel.runs.plan import Plan

CHUNK = 250  # samples differentiated at once
SAMPLES = 1000  # of a client, at most


class Probe:
    """A few clients at the model that the server sends, before the round of that number (from 0).

    Nothing that it does is kept. At most `samples` of each client's data are looked at. Which ones depends on the
    experiment's partition seed alone, so that methods are compared on the same samples. `recall` says what a client
    remembers.
    """

    def __init__(
        self,
        task: Task,
        method: Method,
        plan: Plan,
        server: State,
        round: int,
        clients: Sequence[int],
        recall: Callable[[int], State | None],
        samples: int = SAMPLES,
    ):
        self.task, self.method, self.plan, self.server = task, method, plan, server
        self.round, self.clients, self.recall, self.samples = round, list(clients), recall, samples
        self.seed = plan.partition_seed
        self.params: Tree = server["params"]
        self.buffers: Tree | None = server.get("buffers")

    # ---- samples -------------------------------------------------------------------------------------------------
    def rows(self, client: int) -> Rows:
        """Choose the rows of a client that are looked at: all, or `samples` of them."""
        size = int(self.task.clients.sizes[client])
        return np.asarray(choice(key(self.seed, "analysed rows", client), size, min(self.samples, size)))

    def loss_of(self, client: int) -> LossParts:
        """Return the mean loss on a client's training samples, as parts that add up to it; with its own buffers."""
        samples = self.task.prepare(self.task.clients.rows(client, self.rows(client)))
        return self.loss_on([samples], self.begin(self.clients.index(client))[1])

    def loss_on(self, prepared: Sequence[Sample], buffers: Tree | None = None) -> LossParts:
        """Return the mean loss on samples, in parts of CHUNK samples; in one part where the loss is no mean."""
        joined = tuple(torch.cat(part) for part in zip(*prepared, strict=True))
        total = len(joined[0])
        chunk = CHUNK if total <= CHUNK or self.splits else total
        pieces = [tuple(part[i : i + chunk] for part in joined) for i in range(0, total, chunk)]
        seen = self.buffers if buffers is None else buffers
        return [partial(self._share, tensors=piece, total=total, buffers=seen) for piece in pieces]

    @cached_property
    def splits(self) -> bool:
        """Whether parts of the samples have means that add up to the loss of all: not so with class weights."""
        try:
            return self.task.separable
        except UnequalSamplesError:
            return True

    def _share(self, params: Tree, tensors: Sample, total: int, buffers: Tree | None) -> Tensor:
        """This part's share of the mean loss, a function that can be differentiated twice."""
        named, module, output = dict(params.items()), self.task.module, None
        model: nn.Module | dict[str, Tensor] = named
        if module is not None:
            was_training, model = module.training, module.eval()
            seen = {} if buffers is None else dict(buffers.items())
            given = arrange_inputs(module, tensors[:-1] or tensors, self.task.problem.names)
            output = read_logits(functional_call(module, {**named, **seen}, *given))
            module.train(was_training)
        losses = self.task.losses(model, tensors, output)
        return losses.mean() * (len(tensors[0]) / total)

    # ---- what clients compute here -------------------------------------------------------------------------------
    @cached_property
    def gradients(self) -> Tree:
        """∇f_k(w) of each client at the model that it begins with, stacked."""
        with torch.enable_grad():
            return stack([gradient(self.loss_of(client), self.begin(i)[0]) for i, client in enumerate(self.clients)])

    @cached_property
    def message(self) -> State:
        """What the server sends. Clients begin with its "params": w_t, unless a rule sends another model."""
        return broadcast(self.method, self.server)

    def begin(self, number: int) -> tuple[Tree, Tree | None]:
        """Return the model that a client begins with, and its buffers."""
        return self.complete(self.message["params"], self.states[number])

    def complete(self, params: Tree, state: State | None) -> tuple[Tree, Tree | None]:
        """Put the layers and buffers that a client keeps to itself in the place of the server's."""
        if not (self.private or self.keeps_buffers):
            return params, self.buffers
        own = client_state(self.method, self.task, state)
        buffers = own["buffers"] if self.keeps_buffers else self.buffers
        for rule in self.method.personal:
            params, own = rule.start(params, own, self.message)
        return params, buffers

    @cached_property
    def private(self) -> list[str]:
        """The parameters that never leave a client: the server's are those that the run began with."""
        shared = self.method.travels(self.params)
        return [name for name in self.params if name not in shared]

    @property
    def keeps_buffers(self) -> bool:
        """Whether running statistics never leave a client: the server's are those that the run began with."""
        return self.buffers is not None and self.plan.buffers == "keep"

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
        lr = self.params.scalar(self.plan.lr_at(self.round))
        second = torch.ones((), dtype=torch.int64)
        of = step_keys(self.plan.training, self.round, client, 0, 1, self.task.device)[0]
        params = self.begin(number)[0]
        at = Local(params, params, self.message, slope, lr, second, self.params.scalar(2.0), of)
        state = client_state(self.method, self.task, self.states[number])
        tree = slope if self.ascending.ascends else self.params.zeros()
        return apply_chain(self.ascending.perturb, tree, state, at)[0]

    @cached_property
    def states(self) -> list[State | None]:
        """What the clients remember; None of one that has never taken part."""
        return [self.recall(client) for client in self.clients]
