"""Where the gradients of stacked clients come from: one vmapped forward pass, one ordinary backward pass.

Client i's loss depends on row i alone, so the gradient of the summed losses has the clients' gradients as its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils import _pytree

from fedkeel.core.local_step import Gradient
from fedkeel.core.objective import Given, Loss, Objective
from fedkeel.core.rule import State
from fedkeel.core.trees import Tree
from fedkeel.data.clients import Sample
from fedkeel.engines.stacked.network_pass import (
    ModuleCaller,
    NetworkReport,
    convert_output,
    explain_unstackable,
    join_gradients,
    lower_frozen,
    start_pass,
)
from fedkeel.engines.stacked.stacked_batches import StackedBatch
from fedkeel.errors import ExperimentError
from fedkeel.kernels.function_mode import StackedFunctions
from fedkeel.kernels.layers import Frame, RunningBuffers, Watched
from fedkeel.kernels.network import forward, has_kernels
from fedkeel.kernels.operators import StackedPass
from fedkeel.kernels.packed_ahead import PackedAhead
from fedkeel.kernels.side_stream import SideStream
from fedkeel.problems.calling import read_features
from fedkeel.problems.gradients import DETACHED
from fedkeel.problems.module_state import only_norms_remember
from fedkeel.problems.separability import find_shared_outputs, samples_stay_apart
from fedkeel.problems.task import Task

ModelOrParams = nn.Module | Mapping[str, Tensor]


@dataclass(frozen=True)
class Target:
    """What is differentiated: an objective, and the message that the server sent."""

    objective: Objective
    message: State

    @property
    def message_axis(self) -> int | None:
        """The client axis of the message: None where all clients got the same."""
        return 0 if self.message and self.message["params"].buffer.dim() == 2 else None

    def given(self, batch: StackedBatch, reference: Any) -> tuple[Given, Given]:
        """What the objective may read, and the client axis of each part of it."""
        # vmap would split a message that is not read for nothing
        message = {} if self.objective.of_problem else self.message
        given = Given(reference, batch.histogram, message, batch.noise, batch.mask)
        axes = Given._make(None if part is None else self.message_axis if part is message else 0 for part in given)
        return given, axes


class StackedWorkspace:
    """Gradients of any module or plain parameters that vmap can take."""

    by_kernels = False

    def __init__(self, task: Task):
        self.task = task
        self.inside = None if task.module is None else ModuleCaller(task.module)
        self.lowered = lower_frozen(task)
        self.report = NetworkReport()
        self.multiplied = set[str]()  # leaves that the last pass used in products
        # whose loss is not a mean over samples, or whose samples meet elsewhere than in norms, sees no filled-up batch
        self.separable = (
            task.separable
            and only_norms_remember(task.module, partial(task.try_first, 2))
            and (self.by_kernels or samples_stay_apart(task))
        )
        self.report.fills_up = self.separable
        self.shared = find_shared_outputs(task) if self.separable and not self.by_kernels else frozenset[int]()

    def __call__(
        self, params: Tree, batch: StackedBatch, objective: Objective, message: State, buffers: Tree | None
    ) -> Gradient:
        aim = Target(objective, message)
        if batch.mask is None or self.separable:
            return self.gradient(params, batch, aim, buffers)
        return self.gradient_by_size(params, batch, aim, buffers)

    def gradient(self, params: Tree, batch: StackedBatch, aim: Target, buffers: Tree | None) -> Gradient:
        """Take the gradients of clients with equal, or filled-up, batches."""
        reference = aim.objective.read_teachers(partial(self.output, batch, aim, buffers))
        self.task.reset_counters()
        leaves = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
        seen = {} if buffers is None else {name: leaf.clone() for name, leaf in buffers.items()}
        given, axes = aim.given(batch, reference)
        at = start_pass(self.task, params, batch.mask, self.multiplied)
        with torch.set_grad_enabled(aim.objective.differentiable), explain_unstackable(), self.report.watch():
            one = vmap(partial(self.client_loss, aim, at), in_dims=(0, 0, 0, axes))
            losses, after = one(self.lower_leaves(leaves), seen, self.lower_inputs(batch), given)
        self.multiplied = at.multiplied
        kept = None if buffers is None else Tree.of({n: t.detach() for n, t in after.items()}, buffers.layout)
        if not aim.objective.differentiable:
            return Gradient(params.zeros(), losses, kept)
        if not losses.requires_grad:
            raise ExperimentError(DETACHED, "is it computed from them?")
        each = torch.ones_like(losses)
        with explain_unstackable(turns=True):
            grads = torch.autograd.grad(losses, [at.anchor, *leaves.values()], each, allow_unused=True)[1:]
        return Gradient(join_gradients(at, dict(zip(leaves, grads, strict=True))), losses.detach(), kept)

    def lower_leaves(self, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
        """Convert plain parameters to the precision of the arithmetic; those of modules are converted where used."""
        return leaves if self.inside is not None else {n: leaf.to(self.task.compute) for n, leaf in leaves.items()}

    def lower_inputs(self, batch: StackedBatch) -> Sample:
        """Convert inputs to the precision of the arithmetic."""
        return tuple(t.to(self.task.compute) if t.is_floating_point() else t for t in batch.tensors)

    def client_loss(
        self,
        aim: Target,
        at: StackedPass,
        leaves: dict[str, Tensor],
        buffers: dict[str, Tensor],
        tensors: Sample,
        given: Given,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of one client and its buffers afterwards."""

        def loss(model: ModelOrParams) -> Tensor:
            with StackedFunctions(at, leaves, self.lowered, self.report.tally, given.key) as functions:
                output = functions.finish(self.task.output(model, tensors, aim.objective, given.key))
            return self.reduce_losses(aim, model, tensors, convert_output(output, self.task.dtype), given)

        if self.inside is None:
            return loss(leaves), {}
        return self.inside.call(leaves | buffers, loss), buffers

    def reduce_losses(self, aim: Target, model: ModelOrParams, tensors: Sample, output: Any, given: Given) -> Tensor:
        """Compute the mean, or the total, of the objective over the real samples of one client."""
        mask = given.mask
        if not aim.objective.of_problem:
            losses = aim.objective.losses(output, tensors[-1], given._replace(ignored=self.task.ignored))
        elif mask is None:
            losses = self.task.compute_loss(self.task.mean_loss, model, tensors, output)
        else:
            losses = self.task.losses(model, tensors, output)
        if mask is None:
            reduced = losses if losses.dim() == 0 else losses.sum() if aim.objective.total else losses.mean()
        else:
            if losses.dim() == 0:
                losses = self.losses_by_sample(model, tensors, output)
            if losses.dim() > 1:
                losses = losses.flatten(1).sum(1) if aim.objective.total else losses.flatten(1).mean(1)
            total = (losses * mask).sum()
            reduced = total if aim.objective.total else total / mask.sum()
        if not aim.objective.adds:
            return reduced
        own, prediction = replace(aim, objective=Loss()), output[0] if aim.objective.features else output
        return reduced + self.reduce_losses(own, model, tensors, prediction, given)

    def losses_by_sample(self, model: ModelOrParams, tensors: Sample, output: Any) -> Tensor:
        """Compute the loss of each sample, for a loss that returns the mean of a batch."""

        parts, form = _pytree.tree_flatten(output)
        places = [i for i, part in enumerate(parts) if isinstance(part, Tensor) and i not in self.shared]

        def one(tensors: Sample, *given: Tensor) -> Tensor:
            single = tuple(t.unsqueeze(0) for t in tensors)
            alone = dict(zip(places, (part.unsqueeze(0) for part in given), strict=True))
            mine = [alone.get(i, part) for i, part in enumerate(parts)]
            return self.task.losses(model, single, _pytree.tree_unflatten(mine, form))

        return vmap(one)(tensors, *(parts[i] for i in places))

    @torch.no_grad()
    def output(self, batch: StackedBatch, aim: Target, buffers: Tree | None, slot: str) -> Any:
        """Compute the output of another model on the same samples."""
        assert self.inside is not None
        inside = self.inside
        state = aim.message.get("buffers", buffers)
        shared = state is not None and state.buffer.dim() == 1
        at = StackedPass(len(batch.tensors[0]), self.task.compute, torch.zeros((), device=self.task.device))

        def one(sent: dict[str, Tensor], buffers: dict[str, Tensor], tensors: Sample) -> Any:
            lowered = {name: leaf.to(self.task.compute) for name, leaf in (sent | buffers).items()}

            def predict(model: nn.Module) -> Any:
                if self.by_kernels:
                    return self.task.predict_for(aim.objective, model, tensors)
                with StackedFunctions(at, lowered, self.lowered) as functions:
                    return functions.finish(self.task.predict_for(aim.objective, model, tensors))

            return inside.call(lowered, predict)

        self.inside.eval()
        try:
            with explain_unstackable():
                output = vmap(one, in_dims=(aim.message_axis, None if shared or state is None else 0, 0))(
                    dict(aim.message[slot].items()),
                    {} if state is None else dict(state.items()),
                    self.lower_inputs(batch),
                )
        finally:
            self.inside.train()
        return convert_output(output, self.task.dtype)

    def gradient_by_size(self, params: Tree, batch: StackedBatch, aim: Target, buffers: Tree | None) -> Gradient:
        """Take the gradients of clients with batches of one size at a time, none of them filled up."""
        tree, loss = torch.empty_like(params.buffer), params.buffer.new_empty(len(batch.sizes))
        after = None if buffers is None else torch.empty_like(buffers.buffer)
        for size in sorted(set(batch.sizes)):
            members = torch.tensor([c for c, n in enumerate(batch.sizes) if n == size], device=tree.device)
            theirs = None if buffers is None else Tree(buffers.buffer[members], buffers.layout)
            histogram = None if batch.histogram is None else batch.histogram[members]
            noise = None if batch.noise is None else batch.noise[members]
            part = StackedBatch(
                tuple(t[members, :size] for t in batch.tensors), None, (size,) * len(members), histogram, noise
            )
            shared = aim.message_axis is None
            sent = aim.message if shared else _pytree.tree_map(lambda slot: slot[members], aim.message)  # noqa: B023
            some = self.gradient(Tree(params.buffer[members], params.layout), part, replace(aim, message=sent), theirs)
            tree[members], loss[members] = some.tree.buffer, some.loss
            if after is not None and some.buffers is not None:
                after[members] = some.buffers.buffer
        kept = None if after is None or buffers is None else Tree(after, buffers.layout)
        return Gradient(Tree(tree, params.layout), loss, kept)


class KernelWorkspace(StackedWorkspace):
    """Gradients of networks whose layers are all known, by kernels that take the weights of every client."""

    by_kernels = True

    def __init__(self, task: Task):
        super().__init__(task)
        self.report = NetworkReport(whole=True)
        self.packed = PackedAhead()
        self.separable = task.separable  # batch norms leave out what only fills a batch up

    def gradient(self, params: Tree, batch: StackedBatch, aim: Target, buffers: Tree | None) -> Gradient:
        module = self.task.module
        assert module is not None
        reference = aim.objective.read_teachers(partial(self.output, batch, aim, buffers))
        into = Tree(torch.empty_like(params.buffer, memory_format=torch.contiguous_format), params.layout)
        after = None if buffers is None else Tree(torch.empty_like(buffers.buffer), buffers.layout)
        running = None if buffers is None else RunningBuffers(buffers, after, batch.mask)
        anchor = torch.zeros((), device=params.buffer.device, requires_grad=True)
        side = SideStream(params.buffer.device)
        with torch.set_grad_enabled(aim.objective.differentiable), explain_unstackable():
            watched = Watched(self.task.classifier, []) if aim.objective.features else None
            self.packed.start(side, params, self.task.compute)
            frame = Frame(params, into, anchor, self.task.compute, running, watched, side, self.packed)
            output: Any = forward(module, frame, batch.tensors[0])
            if watched is not None:
                output = (output, read_features(watched.given))
            losses = self.losses(module, batch, aim, convert_output(output, self.task.dtype), reference)
        if not aim.objective.differentiable:
            side.join()
            return Gradient(params.zeros(), losses, after)
        if not losses.requires_grad:
            raise ExperimentError(DETACHED, "is it computed from them?")
        torch.autograd.grad(losses, anchor, torch.ones_like(losses), allow_unused=True)
        side.join()
        return Gradient(into, losses.detach(), after)

    def losses(self, module: nn.Module, batch: StackedBatch, aim: Target, output: Any, reference: Any) -> Tensor:
        """Compute one loss for each client, those of all clients at once where the loss treats samples one by one."""
        mask = batch.mask
        if aim.objective.of_problem and hasattr(self.task.problem.loss, "batch_mean"):
            tensors = tuple(part.flatten(0, 1) for part in batch.tensors)
            each = self.task.losses(module, tensors, output.flatten(0, 1)).unflatten(0, output.shape[:2])
            each = each.flatten(2).mean(2) if each.dim() > 2 else each
            total = (each if mask is None else each * mask).sum(1)
            return total if aim.objective.total else total / (each.shape[1] if mask is None else mask.sum(1))
        given, axes = aim.given(batch, reference)
        judge = vmap(partial(self.reduce_losses, aim, module), in_dims=(0, 0, axes))
        return judge(batch.tensors, output, given)


def choose_workspace(task: Task) -> StackedWorkspace:
    """Choose kernels where every layer has one, else vmap."""
    sample = task.prepare(task.clients.rows(int(task.clients.sizes.argmax()), np.zeros(1, dtype=np.int64)))
    if task.module is None or len(sample) != 2:  # inputs and targets
        return StackedWorkspace(task)
    return KernelWorkspace(task) if has_kernels(task.module, sample[0].dim() - 1) else StackedWorkspace(task)
