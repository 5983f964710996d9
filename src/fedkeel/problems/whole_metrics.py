"""Measures that see all predictions of a split at once: taken of a copy of the model, the same whoever trains."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from fedkeel.core.trees import Tree
from fedkeel.data.clients import Sample
from fedkeel.errors import ExperimentError, FedkeelError
from fedkeel.problems.class_labels import WHOLE_FRACTIONS, are_whole_fractions
from fedkeel.problems.gradients import Workspace
from fedkeel.problems.metrics import NamedMetric
from fedkeel.problems.module_state import copy_whole
from fedkeel.problems.predictions import Scores, are_label_sets
from fedkeel.problems.prepared_samples import PreparedSamples
from fedkeel.problems.separability import PLAIN, find_shared_parts, predict_copies
from fedkeel.problems.task import CLIENT, Task
from fedkeel.randomness import seed_torch
from fedkeel.text import in_one_line

MOST = 20_000  # samples of which a loss is taken at once: it may compare each with each


class WholeMetrics:
    """Adds to the scores of a model what its problem measures of all samples together.

    Among it is a loss that is no mean over samples, as with class weights; beyond `MOST` samples it stays a mean over
    parts of the split.
    """

    def __init__(self, task: Task):
        self.names = sorted(task.whole_metrics) + ["loss"] * task.whole_loss
        self.task = copy.copy(task)
        self.task.module = copy_whole(task.module) if self.names and task.module is not None else None
        self.workspace = Workspace(self.task) if self.names else None
        self.samples = PreparedSamples(self.task)
        self.taken: set[str] = set()  # metrics that took the predictions of a client
        self.untaken: dict[str, ExperimentError] = {}  # those that did not take the predictions of another

    def __call__(self, params: Tree, buffers: Tree | None, split: str, scores: list[Scores]) -> list[Scores]:
        """Return the scores of the parts of a split with these metrics: each part has the value of the whole.

        Where others scored samples that are not here, as sites do, these metrics are left out.
        """
        if self.workspace is None or not scores or next(self.task.parts(split), None) is None:
            return scores
        samples = sum(part["loss"][1] for part in scores)
        names = [name for name in self.names if name != "loss" or (len(scores) > 1 and samples <= MOST)]
        values = self.measure(self.workspace, params, buffers, split, names) if names else {}

        def of(part: Scores) -> Scores:
            size = part["loss"][1]
            return {name: (value * size, size) for name, value in values.items()}

        return [part | of(part) for part in scores]

    @torch.no_grad()
    def measure(
        self, workspace: Workspace, params: Tree, buffers: Tree | None, split: str, names: Iterable[str]
    ) -> dict[str, float]:
        workspace.load(params, buffers)
        if self.task.stochastic:
            seed_torch(0, self.task.device)
        model, task = workspace.model, self.task
        parts = [self.samples(part) for part in task.parts(split)]
        tensors, output = tuple(map(torch.cat, zip(*parts, strict=True))), None
        if isinstance(model, nn.Module):
            model.eval()  # it trains nothing
            output = join_outputs(task, model, parts)
        return {name: self.value(name, split, model, tensors, output) for name in names}

    def value(
        self, name: str, split: str, model: object, tensors: tuple[torch.Tensor, ...], output: torch.Tensor | None
    ) -> float:
        """The value of a metric; not a number where it does not take the predictions of a client, see `check_taken`."""
        measure = self.task.own_loss if name == "loss" else self.task.metrics[name]
        if isinstance(measure, NamedMetric) and self.task.label_beyond is not None:
            return float("nan")  # it would read scores of classes
        whose, taken = f" of {split}" if split.startswith(CLIENT) else "", False
        try:
            found = self.task.apply(measure, model, tensors, output)
            taken = True
            self.taken |= {name} if whose else set()
            return read_number(found)
        except FedkeelError:
            raise
        except Exception as error:  # a function of someone's own may do anything
            if not are_finite(output):
                return float("nan")
            said = f"{type(error).__name__}: {in_one_line(error)}"
            of_classes = isinstance(measure, NamedMetric) and measure.of_classes and are_whole_fractions(tensors[-1])
            untaken = ExperimentError(
                f"the metric {name!r} does not take all predictions{whose}: {said}",
                WHOLE_FRACTIONS
                if of_classes
                else "it is called with the outputs and the targets of all samples, and returns one number",
            )
            if taken or not whose:
                raise untaken from error
            self.untaken.setdefault(name, untaken)
            return float("nan")

    def check_taken(self, others: Iterable[tuple[Tree, Tree | None, str]]) -> None:
        """Refuse a metric that takes the predictions of no client. One may have too few samples for it: `others` are
        asked where all that were scored have."""
        missing = self.untaken.keys() - self.taken
        for model in others if missing else ():
            assert self.workspace is not None
            self.measure(self.workspace, *model, sorted(missing))
            missing -= self.taken
            if not missing:
                return
        if missing:
            raise self.untaken[min(missing)]


def read_number(found: Any) -> float:
    """The one number that a metric gives, also where it stands in a list or an array."""
    found = found[0] if isinstance(found, list | tuple) and len(found) == 1 else found
    return float(found.item() if hasattr(found, "item") else found)


@torch.no_grad()
def check_metrics(task: Task) -> None:
    """Refuse a metric of which two samples have several values, and four have not twice as many."""
    averaged = {name: metric for name, metric in task.metrics.items() if name not in task.whole_metrics}
    if not averaged or task.clients.sizes.max() == 0:
        return
    for name, metric in averaged.items():
        try:
            two, four = (torch.as_tensor(task.apply(metric, *predict_copies(task, n))).numel() for n in (2, 4))
        except Exception:  # it may not take four samples that are the same
            continue
        if four != 2 * two:
            raise ExperimentError(
                f"the metric {name!r} returns {two} values for 2 samples, and {four} for 4.",
                "return one number, or one value per sample; several numbers are several metrics",
            )


@torch.no_grad()
def check_label_sets(task: Task) -> None:
    """Refuse a metric by name that is not for several labels at once, where targets are such: it is tried on four."""
    named = {n: metric for n, metric in task.metrics.items() if isinstance(metric, NamedMetric) and metric.of_classes}
    if not named or task.clients.sizes.max() == 0:
        return
    _, (*inputs, target), output = predict_copies(task, 2)
    if not inputs or not are_label_sets(output, target):
        return
    held = torch.tensor([0, 1, 0, 1]).to(target)[:, None].repeat(1, target.shape[1])
    for name, metric in named.items():
        try:
            metric(0.25 + held.to(output) / 2, held)  # chances and scores
        except Exception as error:
            raise ExperimentError(
                f"the metric {name!r} is not for several labels at once: {in_one_line(error)}",
                "f1, auc, average_precision and neg_log_loss are means over labels; or write a function of your own",
            ) from error


def join_outputs(task: Task, model: nn.Module, parts: Sequence[Sample]) -> Any:
    """The model's output for all parts of a split; what has no axis of samples is the same in all of them."""
    outputs, counts = [task.predict(model, part) for part in parts], [part[0].shape[:1] for part in parts]
    several = len(parts) > 1 and not isinstance(outputs[0], torch.Tensor)
    shared = find_shared_parts(task, model, parts[0]) if several else frozenset[int]()
    places = count()

    def join(*pieces: Any) -> Any:
        place = next(places)
        if isinstance(pieces[0], PLAIN):
            return pieces[0]
        of_samples = place not in shared and [piece.shape[:1] for piece in pieces] == counts
        return torch.cat(pieces) if of_samples else pieces[0]

    return _pytree.tree_map(join, *outputs)


def are_finite(output: object) -> bool:
    """Whether all numbers of an output are finite; a metric may refuse others."""
    tensors = [leaf for leaf in _pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    return all(bool(torch.isfinite(leaf).all()) for leaf in tensors)
