"""A problem made ready for engines: initial weights, batches, losses, and scores of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedkeel.core.objective import Given, Objective, names_a_class
from fedkeel.core.trees import Tree
from fedkeel.data.clients import ClientData, Rows, Sample, UnequalSamplesError
from fedkeel.data.hold_out import hold_out
from fedkeel.data.prepare import widen_labels
from fedkeel.errors import ExperimentError
from fedkeel.problems import calling, module_state
from fedkeel.problems.class_labels import check_labels_of_gpu, watch_labels
from fedkeel.problems.class_outputs import find_label_beyond
from fedkeel.problems.metrics import read_as_loss
from fedkeel.problems.module_state import Place
from fedkeel.problems.own_samples import call_prepare
from fedkeel.problems.predictions import COUNTED, Scores, measure_hits, weigh_means
from fedkeel.problems.problem import Problem, digest_tensors
from fedkeel.problems.random_draws import augments_by_keys, draws_for_gradient, draws_when_trained
from fedkeel.problems.separability import find_whole_metrics, loss_is_a_mean, loss_is_one_number
from fedkeel.problems.sound_data import check_pairs, find_ignored, has_ignored, ignored_class, leave_out

CLIENT = "client "
"""The split of one client's own test set is called `client 17`."""

CHUNK = 500  # samples scored at once; fixed, so that every engine adds the same numbers in the same order


class Batch(NamedTuple):
    """The samples of one step; `key` seeds what a module draws in ways of its own.

    `histogram` counts the client's samples of each class. `noise` is the step's key, for dropout and for objectives
    that ask.
    """

    tensors: Sample
    key: int | None = None
    histogram: Tensor | None = None
    noise: Tensor | None = None


class Part(NamedTuple):
    """A part of the evaluation data: rows of the test set, or of one client's validation share."""

    split: str
    client: int
    first: int
    last: int


class Task:
    """What engines need of a problem, on one device and in one precision."""

    def __init__(
        self,
        problem: Problem,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        validation: float = 0.0,
        seed: int = 0,
        start: Mapping[str, Tensor] | None = None,
        asks: frozenset[str] = frozenset(),
        personal_chunk: int = CHUNK,
    ):
        problem, ignored = find_ignored(problem)
        self.problem, self.device = problem, torch.device(device)
        # bfloat16 is a precision of the arithmetic inside a model; weights and sums of them stay in float32
        self.compute, self.dtype = dtype, torch.float32 if dtype == torch.bfloat16 else dtype
        self.clients: ClientData = problem.data
        self.validation: ClientData | None = None
        if validation:
            self.clients, self.validation = hold_out(self.clients, validation, seed)
        self.test = problem.test_data()
        self.tests = problem.tests_of_clients
        self.asks, self.personal_chunk = asks, personal_chunk
        self._histograms: dict[int, Tensor] = {}
        self.start, place = start or {}, Place(self.device, self.dtype, self.compute)
        self.module = None if problem.model is None else module_state.copy_network(problem.model, place, self.start)
        self.own_loss = module_state.place_function(problem.loss, place)
        self.mean_loss: Callable[..., Tensor] = getattr(problem.loss, "batch_mean", self.own_loss)
        self.mean_loss = self.mean_loss if ignored is None else partial(leave_out, self.mean_loss, ignored)
        self.ignored = ignored_class(problem.loss)
        metrics = {name: read_as_loss(metric, problem.loss, self.ignored) for name, metric in problem.metrics.items()}
        self.metrics = {name: module_state.place_function(metric, place) for name, metric in metrics.items()}
        self.initial = self._read_weights()
        self.buffers = None if self.module is None else module_state.read_buffers(self.module, self.start)
        self.counters = module_state.read_counters(self.module)
        self.classifier = None if self.module is None else calling.find_classifier(self.module, problem.head)
        check_labels_of_gpu(self)
        watch_labels(self)
        self.stochastic = module_state.draws_numbers(self.module) or draws_when_trained(self)
        self.draws_again = self.stochastic and draws_for_gradient(self)
        self.needs_keys = self.stochastic or "key" in asks  # of steps

    @cached_property
    def augments(self) -> bool:
        """Whether samples depend on keys in training: the problem's `prepare` says so, or some samples show it."""
        said = getattr(self.problem.prepare, "augments", None)
        return augments_by_keys(self) if said is None else bool(said)

    def _read_weights(self) -> Tree:
        if self.module is None:
            given = self.problem.params or {}
            leaves = {n: torch.as_tensor(v).detach().to(self.device, self.dtype) for n, v in given.items()}
        else:
            # tied weights once, frozen ones never
            leaves = {n: p.detach() for n, p in self.module.named_parameters() if p.requires_grad}
        if not leaves:
            raise ExperimentError("the model has no parameters to train.", "is requires_grad False on all of them?")
        return Tree.of(module_state.replace_weights(self.start, leaves) if self.start else leaves)

    @cached_property
    def base(self) -> str | None:
        """Identity of the frozen part of the network, as it was given or started from; None where all of it trains."""
        # in the precision of the user, whatever that of the task is
        frozen = {} if self.problem.model is None else module_state.read_frozen(self.problem.model)
        started = {name: self.start[name].to(leaf) for name, leaf in frozen.items() if name in self.start}
        return digest_tensors(frozen | started) if frozen else None

    def reset_counters(self) -> None:
        """Set the buffers of a module that belong to no client to their first values."""
        for name, value in self.counters.items():
            assert self.module is not None
            self.module.get_buffer(name).copy_(value)

    # ---- batches -------------------------------------------------------------------------------------------------
    def epoch_size(self, client: int, batch_size: int) -> int:
        """How many samples of a client an epoch takes: all, except one that would be alone where norms need two."""
        size = int(self.clients.sizes[client])
        if size == 0 or (batch_size > 1 and size % batch_size != 1) or not self.needs_pairs:
            return size
        check_pairs(self, [client], batch_size)
        return size - 1

    @cached_property
    def needs_pairs(self) -> bool:
        """Whether the model cannot be trained on one sample."""
        return module_state.compares_samples(self.module, partial(self.try_first, 1))

    def try_first(self, count: int, module: nn.Module) -> Any:
        """Call a module with so many times the first sample of the client that has most."""
        return self.predict(module, self.batch(int(self.clients.sizes.argmax()), np.zeros(count, np.int64)).tensors)

    def prepare(self, raw: Sample, keys: NDArray[np.uint64] | None = None) -> Sample:
        """Turn raw rows into what the model sees: on the device, floats in the task's precision."""
        made = call_prepare(self.problem, raw, keys)
        return tuple(t.to(self.device, self.dtype_of(t)) for t in widen_labels(made))

    def dtype_of(self, part: Tensor) -> torch.dtype:
        return self.dtype if part.is_floating_point() else part.dtype

    def batch(
        self,
        client: int,
        rows: Rows,
        keys: NDArray[np.uint64] | None = None,
        key: int | None = None,
        noise: Tensor | None = None,
    ) -> Batch:
        histogram = self.histogram(client) if "histogram" in self.asks else None
        return Batch(self.prepare(self.clients.rows(client, rows), keys), key, histogram, noise)

    def histogram(self, client: int) -> Tensor:
        """How many training samples of each class a client has; counted when first asked for."""
        if client not in self._histograms:
            if self.problem.classes is None:
                raise ExperimentError("this method counts the samples of each class.", "Problem(…, classes=10)")
            labels = self.clients.rows(client, np.arange(self.clients.sizes[client]))[-1].reshape(-1)
            if labels.is_floating_point() and not torch.equal(labels, labels.trunc()):
                raise ExperimentError("this method counts the samples of each class, and targets are fractions.")
            labels = labels.to(torch.int64)  # of eight bits they would be compared with a number of classes modulo 256
            known = labels[names_a_class(labels, self.problem.classes, self.ignored)]
            counts = torch.bincount(known, minlength=self.problem.classes)
            self._histograms[client] = counts.to(self.device, self.dtype)
        return self._histograms[client]

    # ---- losses --------------------------------------------------------------------------------------------------
    def predict(self, model: nn.Module | Mapping[str, Tensor], tensors: Sample) -> Any:
        """What the network gives; None where the problem is written with params."""
        mixed = self.compute != self.dtype
        call = partial(calling.call_mixed, self.compute, self.dtype) if mixed else calling.call_network
        return call(model, tensors, self.problem.names) if isinstance(model, nn.Module) else None

    def predict_for(self, objective: Objective, model: nn.Module | Mapping[str, Tensor], tensors: Sample) -> Any:
        """The prediction, and with it the features where an objective asks for them."""
        if not objective.features or not isinstance(model, nn.Module):
            return self.predict(model, tensors)
        own = self.classifier if model is self.module else calling.find_classifier(model, self.problem.head)
        with calling.note_inputs(own) as inputs:
            return self.predict(model, tensors), calling.read_features(inputs)

    def output(
        self, model: nn.Module | Mapping[str, Tensor], tensors: Sample, objective: Objective, noise: Tensor | None
    ) -> Any:
        """What an objective judges: the model's prediction, or what another of its methods gives."""
        if objective.features or not objective.of:
            return self.predict_for(objective, model, tensors)
        given = () if noise is None or "key" not in objective.asks else (noise,)
        return getattr(model, objective.of)(*tensors[:-1], *given)

    def losses(self, model: nn.Module | Mapping[str, Tensor], tensors: Sample, output: Tensor | None) -> Tensor:
        """One value per sample, or their mean, as the problem's own loss gives them; it may write into its copy."""
        return self.compute_loss(self.own_loss, model, tensors, module_state.clone_tensors(output))

    def loss(self, model: nn.Module | Mapping[str, Tensor], batch: Batch, objective: Objective, given: Given) -> Tensor:
        """The mean of an objective over a batch, or its total."""
        output = self.output(model, batch.tensors, objective, batch.noise)
        if objective.of_problem:
            losses = self.compute_loss(self.mean_loss, model, batch.tensors, output)
        else:
            losses = objective.losses(output, batch.tensors[-1], given._replace(ignored=self.ignored))
        mean = losses if losses.dim() == 0 else losses.sum() if objective.total else losses.mean()
        if not objective.adds:
            return mean
        prediction = output[0] if objective.features else output
        return mean + self.compute_loss(self.mean_loss, model, batch.tensors, prediction).mean()

    def apply(self, f: Callable[..., Tensor], model: Any, tensors: Sample, output: Tensor | None) -> Tensor:
        """Call a loss or a metric as its problem writes it."""
        return calling.call_judge(f, model, tensors, output, self.problem.names)

    def compute_loss(self, f: Callable[..., Any], model: Any, tensors: Sample, output: Any) -> Tensor:
        """The losses as a tensor; a loss that returns anything else is refused."""
        return calling.call_loss(f, model, tensors, output, self.problem.names)

    @cached_property
    def separable(self) -> bool:
        """Whether the loss of a batch is the mean over its samples: the problem says so, and some samples show it."""
        known = not self.problem.separable or hasattr(self.problem.loss, "batch_mean")
        return self.problem.separable if known else loss_is_a_mean(self)

    @cached_property
    def whole_loss(self) -> bool:
        """Whether the loss gives one number that is no mean over the samples to score, and so must see all of them."""
        scored = (self.test, self.tests, self.validation)
        try:
            return (not self.separable or has_ignored(self.problem.loss, scored)) and loss_is_one_number(self)
        except UnequalSamplesError:
            return False

    # ---- scores --------------------------------------------------------------------------------------------------
    @cached_property
    def label_beyond(self) -> int | None:
        """A label that the loss trains on, though the network has no score of it; None where outputs may be scores."""
        return find_label_beyond(self)

    @cached_property
    def whole_metrics(self) -> frozenset[str]:
        """The metrics that give one number, and so must see all samples."""
        return find_whole_metrics(self)

    def parts(self, split: str) -> Iterator[Part]:
        """The parts of a split, in the order in which their scores are added."""
        own = split.startswith(CLIENT)
        kind, chunk = (CLIENT, self.personal_chunk) if own else (split, CHUNK)
        data = self.evaluation_data(kind)
        if data is None:
            return
        for client in [int(split.removeprefix(CLIENT))] if own else range(1 if kind == "test" else len(data.sizes)):
            size = int(data.sizes[client])
            for first in range(0, size, chunk):
                yield Part(kind, -1 if kind == "test" else client, first, min(first + chunk, size))

    def evaluation_data(self, kind: str) -> ClientData | None:
        """The data that a kind of part is of; None where there are none."""
        return {"test": self.test, "validation": self.validation, CLIENT: self.tests}.get(kind)

    def read_part(self, part: Part) -> Sample:
        data = self.evaluation_data(part.split)
        assert data is not None
        return data.rows(max(part.client, 0), np.arange(part.first, part.last))

    def score(self, model: nn.Module | Mapping[str, Tensor], part: Part) -> Scores:
        measured, count = self.measure(model, self.prepare(self.read_part(part))), part.last - part.first
        return weigh_means({name: float(mean) for name, mean in measured.items()}, count)

    @torch.no_grad()
    def measure(self, model: nn.Module | Mapping[str, Tensor], tensors: Sample) -> dict[str, Tensor]:
        """Means over samples, in float64; beside the accuracy the share of targets that count."""
        output = self.predict(model, tensors)
        measured = {"loss": self.losses(model, tensors, output)}
        measured |= measure_hits(output, tensors[-1], self.ignored) if self.label_beyond is None else {}
        for name, metric in self.metrics.items():
            if name not in self.whole_metrics:
                measured[name] = torch.as_tensor(self.apply(metric, model, tensors, output))
                if name == "accuracy":  # one of the problem's own, of all targets
                    measured.pop(COUNTED, None)
        return {name: value.to(torch.float64).mean() for name, value in measured.items()}
