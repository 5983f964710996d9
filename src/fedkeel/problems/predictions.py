"""What outputs and targets are: classes of samples or of their pixels and words, sets of labels, or numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def class_scores(output: Any, target: Tensor) -> Tensor | None:
    """Return scores of several classes with the classes on the last axis; None where outputs are something else.

    Targets are classes, one for each sample or for each of its pixels; the classes lie on the second axis of the
    output, as PyTorch's losses have them, or, where that does not fit, on the last.
    """
    if not isinstance(output, Tensor) or not output.is_floating_point() or target.dtype != torch.int64:
        return None
    if output.dim() != target.dim() + 1:
        return None
    if output.shape[:1] + output.shape[2:] == target.shape:
        output = output.movedim(1, -1)
    elif output.shape[:-1] != target.shape:
        return None
    return output if output.shape[-1] > 1 else None


def find_hits(output: Any, target: Tensor) -> Tensor | None:
    """Say of each target whether its class has the highest score; None where there are no classes."""
    scores = class_scores(output, target)
    return None if scores is None else scores.argmax(-1) == target


def are_label_sets(output: Any, target: Tensor) -> bool:
    """Whether targets say of several labels which hold, and outputs are a score for each."""
    if not isinstance(output, Tensor) or output.dim() != 2 or output.shape[1] < 2 or output.shape != target.shape:
        return False
    return bool(((target == 0) | (target == 1)).all())


def probabilities(output: Tensor, target: Tensor) -> Tensor:
    """The probability of each class, or of each label; with one output, of the second of two classes."""
    if (scores := class_scores(output, target)) is not None:
        return scores.to(torch.float64).softmax(-1)
    return output.to(torch.float64).reshape(len(output), -1).squeeze(-1).sigmoid()
