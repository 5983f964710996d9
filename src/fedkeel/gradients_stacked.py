"""Where the gradients of stacked clients come from: one vmapped forward pass, one ordinary backward pass.

Client i's loss depends on row i alone, so the gradient of the summed losses has the clients' gradients as its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedkeel.data.clients import Sample
from fedkeel.engines.feed import StackedBatch
from fedkeel.errors import ExperimentError, ModelError
from fedkeel.round import Gradient
from fedkeel.rule import State
from fedkeel.task import Task
from fedkeel.trees import Tree

Model = nn.Module | Mapping[str, Tensor]


class Inside(nn.Module):
    """Calls a function with a module whose parameters have been exchanged."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, f: Callable[..., Any], *args: Any) -> Any:
        return f(self.model, *args)


class StackedWorkspace:
    """Gradients of any module or plain parameters that vmap can take."""

    def __init__(self, task: Task):
        if task.stochastic:
            raise ModelError(
                "the stacked engine does not draw a module's own random numbers (dropout).", "use --engine serial"
            )
        self.task = task
        self.inside = None if task.module is None else Inside(task.module)
        # whose loss is not a mean over samples, or whose samples meet in batch statistics, sees no filled-up batch
        self.separable = task.problem.separable and task.buffers is None

    def __call__(
        self, params: Tree, batch: StackedBatch, objective: str, message: State, buffers: Tree | None
    ) -> Gradient:
        if batch.mask is None or self.separable:
            return self.together(params, batch.tensors, batch.mask, buffers)
        return self.by_size(params, batch, buffers)

    def together(self, params: Tree, tensors: Sample, mask: Tensor | None, buffers: Tree | None) -> Gradient:
        """Of clients with equal, or filled-up, batches."""
        leaves = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
        seen = None if buffers is None else {name: leaf.clone() for name, leaf in buffers.items()}
        dims = (0, None if seen is None else 0, 0, None if mask is None else 0)
        with torch.enable_grad():
            try:
                losses, after = vmap(self.one, in_dims=dims)(
                    self.lowered(leaves), seen, self.lowered_inputs(tensors), mask
                )
            except RuntimeError as error:
                if "vmap" not in str(error):
                    raise
                raise ModelError(
                    f"this model cannot be stacked: {str(error).splitlines()[0]}", "use --engine serial"
                ) from error
            if not losses.requires_grad:
                raise ExperimentError("the loss does not depend on the parameters.", "is it computed from them?")
            grads = torch.autograd.grad(losses.sum(), list(leaves.values()), materialize_grads=True)
        tree = Tree.of(dict(zip(leaves, grads, strict=True)), params.layout)
        kept = None if buffers is None else Tree.of({n: t.detach() for n, t in after.items()}, buffers.layout)
        return Gradient(tree, losses.detach(), kept)

    def lowered(self, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
        """The leaves in the precision of the arithmetic; differentiated through, so that gradients are in theirs."""
        return {name: leaf.to(self.task.compute) for name, leaf in leaves.items()}

    def lowered_inputs(self, tensors: Sample) -> Sample:
        return tuple(t.to(self.task.compute) if t.is_floating_point() else t for t in tensors)

    def one(
        self, leaves: dict[str, Tensor], buffers: dict[str, Tensor] | None, tensors: Sample, mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of one client, and its buffers afterwards."""
        if self.inside is None:
            return self.loss(leaves, tensors, mask), {}
        named = {f"model.{name}": leaf for name, leaf in (leaves | (buffers or {})).items()}
        return functional_call(self.inside, named, (self.loss, tensors, mask)), buffers or {}

    def loss(self, model: Model, tensors: Sample, mask: Tensor | None) -> Tensor:
        output = self.task.predict(model, tensors)
        output = None if output is None else output.to(self.task.dtype)
        losses = self.task.losses(model, tensors, output)
        if mask is None:
            return losses if losses.dim() == 0 else losses.mean()
        if losses.dim() == 0:
            losses = self.each(model, tensors, output)
        return ((losses.flatten(1).mean(1) if losses.dim() > 1 else losses) * mask).sum() / mask.sum()

    def each(self, model: Model, tensors: Sample, output: Tensor | None) -> Tensor:
        """Sample by sample, for a loss that returns the mean."""

        def one(tensors: Sample, output: Tensor | None) -> Tensor:
            single = tuple(t.unsqueeze(0) for t in tensors)
            return self.task.losses(model, single, None if output is None else output.unsqueeze(0))

        found: Tensor = vmap(one, in_dims=(0, None if output is None else 0))(tensors, output)
        return found

    def by_size(self, params: Tree, batch: StackedBatch, buffers: Tree | None) -> Gradient:
        """Clients with batches of one size at a time, none of them filled up."""
        tree, loss = torch.empty_like(params.buffer), params.buffer.new_empty(len(batch.sizes))
        after = None if buffers is None else torch.empty_like(buffers.buffer)
        for size in sorted(set(batch.sizes)):
            members = torch.tensor([c for c, n in enumerate(batch.sizes) if n == size], device=tree.device)
            theirs = None if buffers is None else Tree(buffers.buffer[members], buffers.layout)
            tensors = tuple(t[members, :size] for t in batch.tensors)
            found = self.together(Tree(params.buffer[members], params.layout), tensors, None, theirs)
            tree[members], loss[members] = found.tree.buffer, found.loss
            if after is not None and found.buffers is not None:
                after[members] = found.buffers.buffer
        kept = None if after is None or buffers is None else Tree(after, buffers.layout)
        return Gradient(Tree(tree, params.layout), loss, kept)
