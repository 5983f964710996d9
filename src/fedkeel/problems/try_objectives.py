"""Try the objectives that a method brings along on some samples, and refuse those that have no meaning there."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree

from fedkeel.core.objective import Given, Objective, names_a_class, put_classes_last
from fedkeel.core.objectives import OBJECTIVES, Calibrated, CodeBottleneck, Smoothed
from fedkeel.core.round import broadcast, init_server
from fedkeel.core.rule import State
from fedkeel.data.clients import Rows, Sample
from fedkeel.errors import DataError, FedkeelError, MethodError
from fedkeel.models import MODELS
from fedkeel.problems.module_state import copy_trained
from fedkeel.problems.predictions import class_scores
from fedkeel.problems.separability import are_those_of, draw_samples, list_models, spread, train_but_norms
from fedkeel.problems.try_out import FAILURES, takes_last_axis
from fedkeel.randomness import list_gpus
from fedkeel.text import in_one_line

if TYPE_CHECKING:
    from fedkeel.core.method import Method
    from fedkeel.problems.task import Task

Judged = tuple[Any, Sample, Given]
"""What an objective is asked about: the output for some samples, the samples, and what else it may read."""


def check_outputs(method: Method, task: Task) -> None:
    """Refuse a method whose objectives need a network, or a method of it, that the problem lacks."""
    for objective in method.objectives:
        if not objective.of_problem and task.module is None:
            raise MethodError(
                f"{method.name} needs the outputs of a model ({objective}), but this problem has only params.",
                "give it a module: Problem(model=…)",
            )
        of, coded = objective.of, type(objective) in OBJECTIVES.values()
        if of and not callable(getattr(task.module, of, None)):
            has = "a random code" if coded else "a method of this name"
            known = ", ".join(name for name, card in MODELS.items() if "code" in card.defaults)
            raise MethodError(
                f"{method.name} needs a model with {has} ({of}), which {type(task.module).__name__} lacks.",
                f"use one that has: {known}" if coded else f"def {of}(self, inputs)",
            )


def try_objective(task: Task, method: Method, objective: Objective, message: State) -> None:
    """Refuse an objective that does not take what the network gives in training, or gives no value for each sample."""
    if objective.of_problem or task.clients.sizes.max() == 0:
        return
    try:
        judged = predict_some(task, objective, message)
    except FedkeelError:
        raise
    except FAILURES:  # of the network: training says what is wrong
        return
    if objective.scores:
        check_scores(task, method, objective, judged)
    name = type(objective).__name__
    for output, tensors, given in judged:
        try:
            with torch.random.fork_rng(devices=list_gpus(task.device)):
                losses = objective.losses(output, tensors[-1], given)
        except FedkeelError:
            raise
        except FAILURES as error:
            raise MethodError(
                f"objective {name} of {method.name} does not take the outputs of this network: {in_one_line(error)}",
                f"its output is {describe(output)}, its target {describe(tensors[-1])}",
            ) from error
        if not isinstance(losses, Tensor):
            raise MethodError(
                f"objective {name} of {method.name} returns a tensor, not {type(losses).__name__}.",
                "one value per sample",
            )
        if not losses.is_floating_point():
            raise MethodError(
                f"objective {name} of {method.name} gives values of {losses.dtype}, which have no gradient.",
                "real numbers: z.real of complex ones, values.to(output.dtype) of whole ones",
            )
        if losses.dim() > 0 and len(losses) != len(tensors[0]):
            raise MethodError(
                f"objective {name} of {method.name} gives values {list(losses.shape)} for {len(tensors[0])} samples.",
                "one value per sample: a mean over classes is .mean(1)",
            )


def predict_some(task: Task, objective: Objective, message: State) -> list[Judged]:
    """Ask some networks about samples of the client that has most: the second about one more than the first."""
    rows, models = spread(int(task.clients.sizes.max())), enumerate(list_models(task))
    return [predict(task, model, objective, message, np.append(rows, rows[:more])) for more, model in models]


def predict(task: Task, model: Any, objective: Objective, message: State, rows: Rows) -> Judged:
    """Ask a network about samples of the client that has most, as in training."""
    noise = torch.zeros((), dtype=torch.int64, device=task.device)
    batch = task.batch(int(task.clients.sizes.argmax()), rows, noise=noise)
    with torch.random.fork_rng(devices=list_gpus(task.device)):
        with torch.no_grad():
            reference = objective.read_teachers(lambda _: task.predict_for(objective, model.eval(), batch.tensors))
        train_but_norms(model)
        output = task.output(model, batch.tensors, objective, noise)
    return output, batch.tensors, Given(reference, batch.histogram, message, noise, ignored=task.ignored)


def check_scores(task: Task, method: Method, objective: Objective, judged: list[Judged]) -> None:
    """Refuse outputs that are no scores of several classes before a softmax."""
    given = [(output[0] if objective.features else output, tensors) for output, tensors, _ in judged]
    output, tensors = given[0]
    target, reads = tensors[-1], f"{method.name} ({objective}) reads scores of several classes"
    labels = objective.labels or "histogram" in objective.asks
    alike = isinstance(output, Tensor) and output.shape == target.shape and not labels
    if class_scores(output, target) is None and not (alike and may_be_shares(target)):
        raise MethodError(
            f"{reads}, and this network gives {describe(output)} for targets {describe(target)}.",
            "take a method that reads the problem's loss alone, or give the network a score for each of two classes",
        )
    if all(are_shares(put_classes_last(one, parts[-1]), -1) for one, parts in given):
        raise MethodError(
            f"{reads} before a softmax, and this network gives chances.", "leave the softmax to the loss: cross_entropy"
        )
    assert task.module is not None
    if target.dim() > 1 and takes_last_axis(task, copy_trained(task.module).eval(), tensors):
        raise MethodError(
            f"{reads} from the second axis of outputs {describe(output)}, and the loss takes them from the last.",
            "put the classes on the second axis, as cross_entropy has them",
        )


def may_be_shares(target: Tensor) -> bool:
    """Whether targets have a share for each of several classes; blank ones, which a server has of its sites, may."""
    if not target.is_floating_point() or target.dim() < 2 or target.shape[1] == 1:
        return False
    return are_shares(target, 1) or not target.any()


def are_shares(numbers: Tensor, axis: int) -> bool:
    """Whether numbers are at least 0 and add up to 1 along an axis."""
    total = numbers.sum(axis)
    return bool((numbers >= 0).all()) and torch.allclose(total, torch.ones_like(total), rtol=0, atol=1e-3)


def describe(part: Any) -> str:
    """Say what a network, a loss or data give: the shape and the type of a tensor, or what else it is."""
    if not isinstance(part, Tensor):
        return f"a {type(part).__name__}"
    return f"{['n', *part.shape[1:]] if part.dim() else []} of {part.dtype}".replace("torch.", "").replace("'", "")


def bear_filling(task: Task, method: Method) -> bool:
    """Whether samples that only fill a batch up change nothing for a method's objectives.

    They do not for those of this package. One of the user's own may compare samples, or give one number.
    """
    own = [one for one in method.objectives if not one.of_problem and type(one) not in OBJECTIVES.values()]
    if not own or task.clients.sizes.max() == 0:
        return True
    message = broadcast(method, init_server(method, task.initial, task.buffers))
    try:
        return all(bears_filling(task, objective, message) for objective in own)
    except FAILURES:  # it may not take so many samples
        return False


def bears_filling(task: Task, objective: Objective, message: State) -> bool:
    """Whether the values of some samples stay as they are where others fill the batch up and the mask says so."""
    for output, tensors, given in predict_some(task, objective, message):
        fill = partial(add_rows, len(tensors[0]))
        mask = torch.ones(len(tensors[0]), dtype=task.dtype, device=task.device)
        filled = given._replace(reference=_pytree.tree_map(fill, given.reference), mask=functional.pad(mask, (0, 2)))
        with torch.random.fork_rng(devices=list_gpus(task.device)):
            plain = objective.losses(output, tensors[-1], given)
            if plain.dim() == 0:
                return False
            found = objective.losses(_pytree.tree_map(fill, output), fill(tensors[-1]), filled)[: len(mask)]
        if not are_those_of(found, [plain]):
            return False
    return True


def add_rows(count: int, part: Any) -> Any:
    """Repeat the first row twice at the end of what has that many."""
    has = isinstance(part, Tensor) and part.dim() > 0 and len(part) == count
    return torch.cat([part, part[:1], part[:1]]) if has else part


@torch.no_grad()
def describe_other_loss(method: Method, task: Task) -> str | None:
    """Say that a method trains on cross-entropy, or smooths the labels of it, and the problem's own loss has other
    values; None where it has not."""
    taken = any(isinstance(one, Calibrated | CodeBottleneck) for one in method.objectives)
    smoothed = any(isinstance(one, Smoothed) for one in method.objectives)
    if (
        not (taken or smoothed)
        or hasattr(task.problem.loss, "batch_mean")
        or task.problem.loss is functional.cross_entropy
    ):
        return None
    try:
        tensors = draw_samples(task)
    except (DataError, *FAILURES):  # samples of unequal shape, or rows that cannot be read
        return None
    for model in list_models(task):
        assert isinstance(model, nn.Module)
        with torch.random.fork_rng(devices=list_gpus(task.device)):
            output = task.predict(model.eval(), tensors)
            if (scores := class_scores(output, tensors[-1])) is None:
                return None
            own = task.compute_loss(task.mean_loss, model, tensors, output).mean()
        known = tensors[-1].masked_fill(~names_a_class(tensors[-1], scores.shape[-1], task.ignored), -100)
        if not torch.allclose(own, functional.cross_entropy(scores.movedim(-1, 1), known), rtol=1e-3, atol=1e-5):
            if taken:
                return (
                    f"{method.name} trains on plain cross-entropy, and the problem's own loss has other values: its "
                    "weights of classes, smoothing or further terms are only measured"
                )
            return (
                f"{method.name} adds what smooths the labels of plain cross-entropy, and the problem's own loss has "
                "other values: weights of classes, a class it ignores or smoothing of its own are not in what is added"
            )
    return None
