"""The gradients of one client, by plain autograd with respect to the leaves."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from fedkeel.core.local_step import Gradient
from fedkeel.core.method import LOSS
from fedkeel.core.objective import Given, Objective
from fedkeel.core.rule import State
from fedkeel.core.trees import Tree
from fedkeel.errors import ExperimentError, ModelError
from fedkeel.kernels.keyed_dropout import KeyedDropout
from fedkeel.problems.predictions import Scores
from fedkeel.problems.task import Batch, Part, Task
from fedkeel.randomness import seed_torch

DETACHED = "the loss does not depend on the parameters."
REENTRANT = (
    "the network computes layers again by re-entrant checkpoints, through which these gradients do not go.",
    "torch.utils.checkpoint.checkpoint(…, use_reentrant=False)",
)


class Workspace:
    """The task's module, or its plain parameters, as views of one flat buffer that is written before each use.

    It is the only place that writes into a buffer. Gradients are taken of the leaves and joined once: taking them
    through the views is four times slower, and preallocated `.grad` views break when a module is moved.
    """

    def __init__(self, task: Task):
        self.task = task
        self.weights = task.initial.to(task.device)
        self.weights = Tree(self.weights.buffer.clone(), self.weights.layout)
        self.buffers = None if task.buffers is None else Tree(task.buffers.buffer.clone(), task.buffers.layout)
        self.model: nn.Module | dict[str, Tensor]
        if task.module is not None:
            self.model = task.module
            named = dict(task.module.named_parameters())
            self.leaves = {name: named[name] for name in self.weights}
            for name, leaf in self.leaves.items():
                leaf.data = self.weights[name]  # not a new Parameter: ties survive
            for name in self.buffers or ():
                task.module.get_buffer(name).data = self.buffers[name]  # type: ignore[index]
        else:
            self.leaves = {name: self.weights[name].detach().requires_grad_() for name in self.weights}  # type: ignore[misc]
            self.model = dict(self.leaves)
        self.list = [self.leaves[name] for name in self.weights.layout.spans]  # in the order of the buffer

    def load(self, params: Tree, buffers: Tree | None) -> None:
        self.task.reset_counters()
        self.weights.buffer.copy_(self.weights.matching_buffer(params))
        if self.buffers is not None and buffers is not None:
            self.buffers.buffer.copy_(self.buffers.matching_buffer(buffers))

    def __call__(
        self, params: Tree, batch: Batch, objective: Objective, message: State, buffers: Tree | None
    ) -> Gradient:
        """The gradient of the objective on a batch, and the loss."""
        sent = message.get("buffers", buffers)
        reference = objective.read_teachers(lambda slot: self.output(message[slot], sent, batch, objective))
        given = Given(reference, batch.histogram, message, batch.noise)
        self.load(params, buffers)
        if batch.key is not None:
            seed_torch(int(batch.key), self.task.device)
        if not objective.differentiable:
            with torch.no_grad():
                loss = self.loss(batch, objective, given)
                return Gradient(params.zeros(), loss, self.copy_buffers())
        with torch.enable_grad():
            loss = self.loss(batch, objective, given)
            after = self.copy_buffers()  # layers that are computed again for the gradient would count twice
            try:
                grads = torch.autograd.grad(loss, self.list, materialize_grads=True)  # zeros for unused parameters
            except RuntimeError as error:
                if "compatible with .grad()" in str(error):
                    raise ModelError(*REENTRANT) from None
                if "does not require grad" not in str(error):
                    raise
                raise ExperimentError(DETACHED, "is it computed from them?") from None
        dense = (grad.to_dense() if grad.is_sparse else grad for grad in grads)
        tree = Tree(torch.cat([grad.reshape(-1) for grad in dense]), params.layout)
        return Gradient(tree, loss.detach(), after)

    def loss(self, batch: Batch, objective: Objective, given: Given) -> Tensor:
        """The objective on a batch; what the network drops depends on the step's key.

        Layers that draw again for the gradient take the same from PyTorch's own generator, which was seeded by the key.
        """
        with KeyedDropout(batch.noise) if self.task.stochastic and not self.task.draws_again else nullcontext():
            return self.task.loss(self.model, batch, objective, given)

    def copy_buffers(self) -> Tree | None:
        """A copy of the module's buffers as they are now."""
        return None if self.buffers is None else Tree(self.buffers.buffer.clone(), self.buffers.layout)

    @torch.no_grad()
    def output(self, params: Tree, buffers: Tree | None, batch: Batch, objective: Objective = LOSS) -> Any:
        """The prediction of another model on the same samples, in the form that an objective asks for."""
        assert isinstance(self.model, nn.Module)
        self.load(params, buffers)
        self.model.eval()
        try:
            return self.task.predict_for(objective, self.model, batch.tensors)
        finally:
            self.model.train()

    def score(self, params: Tree, buffers: Tree | None, part: Part) -> Scores:
        """Score a model on a part of the evaluation data. A loss that draws random numbers draws the same for all."""
        self.load(params, buffers)
        if self.task.stochastic:
            seed_torch(0, self.task.device)
        if not isinstance(self.model, nn.Module):
            return self.task.score(self.model, part)
        self.model.eval()
        try:
            return self.task.score(self.model, part)
        finally:
            self.model.train()
