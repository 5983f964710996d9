"""From an experiment to what engines need: the problem, the task, the method in full."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from fedkeel.core.client_epochs import ClientEpochs
from fedkeel.core.method import Method, Phase
from fedkeel.core.rule import Rule, Setting
from fedkeel.data import Dataset, Samples, load
from fedkeel.data.clients import SharedClients
from fedkeel.data.dataset import DatasetCard, Joined
from fedkeel.data.partition.feature_shift import find_shift
from fedkeel.data.partition.partition import Partition, assign_all
from fedkeel.data.partition.partition import divide as divide_labels
from fedkeel.data.prepare import Preparation, find_augmentation
from fedkeel.engines.rehearsal import rehearse
from fedkeel.engines.rehearse_stack import rehearse_stack
from fedkeel.errors import ExperimentError, MethodError, ModelError, nearest
from fedkeel.importing import untrusted
from fedkeel.methods.averaging import head_tuning
from fedkeel.methods.named import NamedModel, refusal
from fedkeel.methods.optimisers import equip, find_optimiser
from fedkeel.models import MODELS, head
from fedkeel.models import build as build_model
from fedkeel.models.classifier import map_names
from fedkeel.problems.personal_data import rows_of, with_own_tests, without_proxy
from fedkeel.problems.problem import Problem
from fedkeel.problems.task import CHUNK, Task
from fedkeel.problems.try_objectives import check_outputs
from fedkeel.randomness import key
from fedkeel.rules import ClipHere, ClipNorm, DecayHere, KeepModel, WeightDecay
from fedkeel.rules.rates import FollowSchedule
from fedkeel.rules.sharing import ShareBuffers, confine
from fedkeel.runs.experiment import from_python, lost
from fedkeel.runs.plan import Plan


class CrossEntropy:
    """One value per sample; `batch_mean` is their mean in one kernel less."""

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target, reduction="none")

    def batch_mean(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target)


cross_entropy = CrossEntropy()


def problem_of(plan: Plan) -> Problem:
    """The plan's own problem, or the one its data set and model make."""
    if isinstance(plan.source, Problem):
        if from_python(plan.source):
            raise lost("problem")
        share = 0.0 if plan.evaluation is None else plan.evaluation.share
        return with_own_tests(plan.source, share, key(partition_key(plan), "own test"))
    if from_python(plan.source.model):
        raise lost("model")
    if isinstance(plan.source.model, NamedModel):
        raise untrusted(plan.source.model, "model")
    data, policy = load(plan.source.dataset), plan.evaluation
    pooled = policy is not None and policy.pool and policy.share > 0 and data.groups is None
    labels = np.asarray(data.train_labels)
    if pooled:
        if find_shift(plan.source.partition) is not None:
            raise ExperimentError("a feature shift is not made of pooled data.", "evaluation.pool = false")
        labels = np.concatenate([labels, np.asarray(data.test_labels)])
    partition = divide(plan, data, labels)
    images = Joined([data.train_images, data.test_images]) if pooled else train_images(plan, data, partition)
    proxy, tests = None, None
    if plan.method.server_phase is not None:
        partition, chosen = without_proxy(partition, key(partition_key(plan), "proxy"), data.classes)
        proxy = rows_of(images, labels, chosen)
    if policy is not None and policy.share > 0:
        partition, aside = partition.split(policy.share, key(partition_key(plan), "own test"))
        tests = SharedClients(images, labels, aside)
    test_labels = np.asarray(data.test_labels)
    # what was divided among the clients is no test of the server's model
    test = None if pooled else SharedClients(data.test_images, test_labels, assign_all(len(test_labels)))
    return problem_with(plan, data.card, SharedClients(images, labels, partition), test, proxy=proxy, tests=tests)


def problem_with(plan: Plan, card: DatasetCard, clients: Any, test: Any, **parts: Any) -> Problem:
    """A problem of the plan's network on these clients' data, which have the form of a data set."""
    model = plan.division.model
    if not isinstance(model, nn.Module):
        # a model of tokens learns how many there are from the data set
        known = MODELS.get(str(model))
        options = {"vocabulary": card.vocabulary} if known and "vocabulary" in known.defaults else {}
        model = build_model(str(model), shape=card.shape, classes=card.classes, seed=plan.seed, **options)
    prepare = Preparation(card.mean, card.std, find_augmentation(plan.division.augment, card.shape))
    return Problem(
        model=model, loss=cross_entropy, clients=clients, test=test, classes=card.classes, prepare=prepare, **parts
    )


def divide(plan: Plan, data: Dataset, labels: NDArray[np.int64] | None = None) -> Partition:
    """The samples with these labels, divided among clients; without any, the data set's training samples."""
    labels = np.asarray(data.train_labels) if labels is None else labels
    return divide_labels(plan.division.partition, labels, partition_key(plan), groups=data.groups)


def train_images(plan: Plan, data: Dataset, partition: Partition) -> Samples:
    """The images as clients see them: corrupted, each client's in its own way, where the partition shifts features."""
    shift = find_shift(plan.division.partition)
    return data.train_images if shift is None else shift.corrupt(data.train_images, partition, partition_key(plan))


def partition_key(plan: Plan) -> int:
    return key(plan.partition_seed, "partition")


def task_maker(plan: Plan, device: torch.device, dtype: torch.dtype) -> Callable[[Problem], Task]:
    """Return the function that makes a task from a problem, the same here and in every worker process."""
    return partial(
        Task,
        device=device,
        dtype=dtype,
        validation=plan.validation,
        seed=plan.seed,
        start=None if plan.init is None else start_weights(Path(plan.init)),
        asks=plan.method.asks,
        personal_chunk=CHUNK if plan.evaluation is None else plan.evaluation.batch,
    )


def start_weights(path: Path) -> dict[str, Tensor]:
    """Weights to begin from, by name."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ExperimentError(f"cannot read start weights {path}: {error}", "give a .safetensors file") from None


def method_of(plan: Plan, task: Task) -> Method:
    """The method fitted to its problem, with what every local step ends in.

    That is: clip, then weight decay, as SGD after clip_grad_norm_, unless a chain says where they go.
    """
    if (error := refusal(plan.method)) is not None:
        raise error
    if isinstance(plan.epochs, ClientEpochs):
        plan.epochs.check(len(task.clients.sizes))
    sizes = task.clients.sizes[task.clients.sizes > 0]
    size = float(sizes.mean()) if len(sizes) else 0.0
    lowered = task.compute != task.dtype
    layout = task.initial.layout
    names = {name: first for name, first in name_parameters(task).items() if first in layout.shapes}
    setting = Setting(layout, head_of(task), plan.most_epochs(size), size, plan.lr, plan.decay, lowered, names)
    clip: tuple[Rule, ...] = (ClipNorm(plan.clip),) if plan.clip else ()
    decay: tuple[Rule, ...] = (WeightDecay(plan.weight_decay),) if plan.weight_decay else ()
    method, policy = plan.method, plan.evaluation
    if policy is not None and policy.tune and method.final is None:
        method = replace(method, final=equip(head_tuning(), find_optimiser(method)))
    method = method.map_rules(lambda rule: rule.settled(setting))
    method = method.map_phases(lambda phase: measured(phase, task)).map_phases(lambda phase: ended(phase, clip, decay))
    if plan.schedule is not None and plan.schedule.by == "step":
        method = method.then(FollowSchedule(plan.schedule, plan.rounds))
    check_fit(method, task)
    method = confine(repeated(method), task.initial)
    if policy is not None and task.tests is None:
        raise ExperimentError("clients have no test sets of their own.", hint_at_tests(task, policy.share))
    if policy is not None and (policy.model == "local" or method.final is not None):
        method = replace(method, personal=(*method.personal, KeepModel()))
    if task.buffers is not None and plan.buffers == "average":  # else they never leave a client
        method = replace(method, personal=(*method.personal, ShareBuffers()))
    rehearse(method, task)
    rehearse_stack(plan.method, setting)
    return method


def hint_at_tests(task: Task, share: float) -> str:
    """Say how clients get test sets."""
    if getattr(task.problem.clients, "own", False):  # on nodes of a federation
        return "leave out evaluation; site-test = 0.2 has the sites test the model on a share of their data"
    return "Problem(tests=[…])" if share else "set evaluation.share, or Problem(tests=[…])"


def head_of(task: Task) -> tuple[str, ...]:
    """Names of the classifier's parameters: what the problem says, or the last module that has any."""
    given = task.problem.head
    if given is not None:
        names = name_parameters(task)
        for pattern in given:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ModelError(
                    f"the problem's head names parameters {pattern!r}, but the model has none.",
                    nearest(pattern, names, "parameters"),
                )
        found = {first for name, first in names.items() if any(fnmatchcase(name, pattern) for pattern in given)}
        return tuple(name for name in task.initial if name in found)
    return () if task.module is None else tuple(name for name in head(task.module) if name in task.initial)


def name_parameters(task: Task) -> dict[str, str]:
    """Every name of a parameter, also of a frozen one, with the first."""
    return {name: name for name in task.initial} if task.module is None else map_names(task.module.named_parameters)


def measured(phase: Phase, task: Task) -> Phase:
    """A phase with as many steps as its rules need."""
    needed = [steps for rule in phase.rules if (steps := rule.steps_needed(task.initial.layout)) is not None]
    return replace(phase, batches=max(needed)) if needed else phase


def repeated(method: Method) -> Method:
    """A method with each phase as often as its rules need it."""
    return replace(method, phases=tuple(phase for phase in method.phases for _ in range(phase.passes)))


def ended(phase: Phase, clip: tuple[Rule, ...], decay: tuple[Rule, ...]) -> Phase:
    """A training phase's chain with clip and decay where it says they go.

    Else the clip stands in front of the optimiser, and the decay behind it, or in front where it is part of the
    direction; without an optimiser both stand at the end.
    """
    if not phase.trains:
        return phase
    chain = list(phase.gradient)
    for place, rules in ((ClipHere(), clip), (DecayHere(), decay)):
        if place not in chain:
            is_behind = (rule.optimiser and (place == ClipHere() or rule.coupled_decay) for rule in chain)
            chain.insert([*is_behind, True].index(True), place)
        at = chain.index(place)
        chain[at : at + 1] = rules
    return replace(phase, gradient=tuple(chain))


def check_fit(method: Method, task: Task) -> None:
    """Refuse a method that needs what the problem lacks."""
    check_outputs(method, task)
    if "histogram" in method.asks and task.problem.classes is None:
        raise MethodError(f"{method.name} counts the samples of each class.", "say how many there are: classes=10")
    if method.server_phase is not None and task.problem.proxy is None:
        raise MethodError(f"{method.name} learns on data of the server.", "give some: Problem(proxy=(x, y))")
