"""What outputs and targets are: classes of samples or of their pixels and words, sets of labels, or numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedkeel.core.objective import names_a_class, put_classes_last

COUNTED = "targets that count"
"""The share of targets whose class the loss does not ignore: it is measured beside the accuracy, and is no measure of
its own."""

Scores = dict[str, tuple[float, float]]
"""Sums and counts by name."""


def class_scores(output: Any, target: Tensor) -> Tensor | None:
    """Return scores of several classes with the classes on the last axis; None where outputs are something else.

    Targets are classes, one for each sample or for each of its pixels; the classes lie on the second axis of the
    output, as PyTorch's losses have them, or, where that does not fit, on the last.
    """
    if not isinstance(output, Tensor) or not output.is_floating_point() or target.dtype != torch.int64:
        return None
    if output.dim() != target.dim() + 1:
        return None
    scores = put_classes_last(output, target)
    return scores if scores.shape[:-1] == target.shape and scores.shape[-1] > 1 else None


def find_hits(output: Any, target: Tensor, ignored: int | None) -> Tensor | None:
    """Say of each target that counts whether its class has the highest score; None where there are no classes."""
    scores = class_scores(output, target)
    return None if scores is None else (scores.argmax(-1) == target)[names_a_class(target, scores.shape[-1], ignored)]


def measure_hits(output: Any, target: Tensor, ignored: int | None) -> dict[str, Tensor]:
    """Say of each target whether it was hit and whether it counts; nothing where there are no classes.

    Targets count that name a class, but for the one that the loss ignores.
    """
    if (scores := class_scores(output, target)) is None:
        return {}
    counts = names_a_class(target, scores.shape[-1], ignored)
    return {"accuracy": (scores.argmax(-1) == target) & counts, COUNTED: counts}


def weigh_means(means: Mapping[str, float], samples: int) -> Scores:
    """Turn means over samples into sums and counts; of the accuracy, only targets that count are in the count.

    The count is in samples, of which each target is a part: it is whole where nothing is ignored. Where no target
    counts, a loss without a value counts nothing.
    """
    left = means.get(COUNTED, 1.0) * samples
    left = round(left) if abs(left - round(left)) < 1e-9 else left  # GPUs multiply by 1/n, which is rounded
    counts = {"accuracy": left}
    found = {name: (mean * samples, counts.get(name, samples)) for name, mean in means.items() if name != COUNTED}
    return found if left or not math.isnan(means.get("loss", 0.0)) else found | {"loss": (0.0, 0)}


def divide(total: float, count: float) -> float:
    """The mean of a sum and a count; not a number where nothing counts."""
    return total / count if count else math.nan


def keep_counted(output: Any, target: Tensor, ignored: int | None) -> tuple[Any, Tensor]:
    """Leave out the targets that do not count, each with its scores; what has none of them stays as it is."""
    scores = class_scores(output, target)
    there = None if scores is None else names_a_class(target, scores.shape[-1], ignored)
    return (output, target) if scores is None or there is None or bool(there.all()) else (scores[there], target[there])


def has_gaps(target: Tensor) -> bool:
    """Whether some targets are not known: they are no number."""
    return target.is_floating_point() and bool(target.isnan().any())


def keep_known(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Leave out samples of whose targets none is known."""
    if not has_gaps(target):
        return output, target
    known = ~target.isnan().reshape(len(target), -1).all(1)
    return output[known], target[known]


def set_against_rest(output: Any, target: Tensor, ignored: int) -> tuple[Any, Tensor]:
    """Turn classes into labels, of which one holds: each class but the ignored one, its score that of a sigmoid.

    Classes stay where one alone would be left, or where one of those left has no sample.
    """
    scores = class_scores(output, target)
    left = [] if scores is None else [label for label in range(scores.shape[-1]) if label != ignored]
    if len(left) < 2 or len(target.unique()) < len(left):
        return output, target
    chances = probabilities(output, target).flatten(0, -2)[:, left]
    return chances.logit(), (target.reshape(-1, 1) == torch.tensor(left)).to(torch.int64)


def are_answers(output: Tensor, target: Tensor) -> bool:
    """Whether targets are zeros and ones, and outputs are a score for each of them."""
    return output.numel() == target.numel() and bool(((target == 0) | (target == 1)).all())


def are_label_sets(output: Any, target: Tensor) -> bool:
    """Whether targets say of several labels which hold, and outputs are a score for each."""
    if not isinstance(output, Tensor) or output.dim() != 2 or output.shape[1] < 2 or output.shape != target.shape:
        return False
    return are_answers(output, target)


def probabilities(output: Tensor, target: Tensor) -> Tensor:
    """The probability of each class, or of each label; with one output, of the second of two classes."""
    if (scores := class_scores(output, target)) is not None:
        return scores.to(torch.float64).softmax(-1)
    return output.to(torch.float64).reshape(len(output), -1).squeeze(-1).sigmoid()


def average_scores(scores: Sequence[Mapping[str, tuple[float, float]]]) -> dict[str, float]:
    """Means of scores from their sums and counts, added in order."""
    names = scores[0] if scores else {}
    return {name: divide(sum(s[name][0] for s in scores), sum(s[name][1] for s in scores)) for name in names}
