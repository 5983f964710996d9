"""What an objective is: it judges the model's output against the targets, and a step descends its gradient.

An objective is a frozen value, `Calibrated(tau=0.5)`. It gives one number per sample, so any engine can offer it. A
user's own is a subclass of Objective under @dataclass(frozen=True).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedkeel.errors import MethodError
from fedkeel.typed_values import check_fields


class Given(NamedTuple):
    """What an objective may read besides outputs and targets.

    `reference`: the output of another model on the same samples, or a tuple of several. `histogram`: how many samples
    of each class the client has. `message`: what the server sent. `key`: randomness for this (seed, round, client,
    step), 0-d int64. `mask`: 1 for each real sample, 0 for one that only fills the batch up; None: all are real.
    `ignored`: the class that the problem's loss ignores, such as padding; None: it ignores none.
    """

    reference: Any = None
    histogram: Tensor | None = None
    message: dict[str, Any] = {}  # noqa: RUF012 - read, never written
    key: Tensor | None = None
    mask: Tensor | None = None
    ignored: int | None = None


@dataclass(frozen=True)
class Objective:
    """What is differentiated. A subclass defines `losses`, and says in class attributes what they need.

    `adds`: to the problem's own loss, which is taken too. `reference`: the output of another model, in the slot
    `teacher` of the server's message or of the client; of several slots, a tuple of their outputs. `features`: outputs
    are pairs, the prediction and what the classifier was given for it, that of the reference, too. `asks`: facts
    gathered only when asked for, "histogram" and "key". `of`: the method of the model that gives the output, called
    with the key if asked for. `total`: the values of a batch are added up, not averaged. `scores`: takes scores of
    several classes before a softmax; other outputs are refused. `labels`: reads each sample's class; targets with a
    share for each class are refused. `differentiable` False: only the value is measured.
    """

    of_problem: ClassVar[bool] = False  # the problem's own loss is taken; `losses` is never called
    differentiable: ClassVar[bool] = True
    reference: ClassVar[bool] = False
    teacher: ClassVar[str | tuple[str, ...]] = "params"
    adds: ClassVar[bool] = False
    features: ClassVar[bool] = False
    asks: ClassVar[tuple[str, ...]] = ()
    of: ClassVar[str] = ""
    total: ClassVar[bool] = False
    scores: ClassVar[bool] = False
    labels: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self, MethodError, f"objective {type(self).__name__}")

    @property
    def teachers(self) -> tuple[str, ...]:
        """The slots of the models that the output is compared with."""
        if not self.reference:
            return ()
        return (self.teacher,) if isinstance(self.teacher, str) else self.teacher

    def read_teachers(self, output_of: Callable[[str], Any]) -> Any:
        """What `given.reference` is, where `output_of(slot)` is the output of the model in a slot."""
        outputs = tuple(output_of(slot) for slot in self.teachers)
        return (outputs[0] if isinstance(self.teacher, str) else outputs) if outputs else None

    def losses(self, output: Any, target: Tensor, given: Given) -> Tensor:
        """One value per sample, or one number for the batch. `given` is a Given."""
        raise MethodError(f"{type(self).__name__} does not say its losses.", "def losses(self, output, target, given)")


@dataclass(frozen=True)
class Loss(Objective):
    """The problem's own loss."""

    of_problem: ClassVar[bool] = True


@dataclass(frozen=True)
class Value(Objective):
    """The value of the problem's own loss: a phase that only measures takes no gradient."""

    of_problem: ClassVar[bool] = True
    differentiable: ClassVar[bool] = False


def put_classes_last(output: Tensor, target: Tensor) -> Tensor:
    """Scores with the classes on the last axis. They lie on the second, as in PyTorch's cross-entropy, also where the
    target has a share for each class; where that does not fit, they lie on the last already."""
    second = target.shape in (output.shape, output.shape[:1] + output.shape[2:])
    return output.movedim(1, -1) if second else output


def names_a_class(target: Tensor, classes: int, ignored: int | None = None) -> Tensor:
    """Say of each target whether there is an output of its class, and the loss does not ignore that class.

    A loss of classes ignores the others, or refuses them; one that trains on them reads something else in the outputs.
    """
    there = (target >= 0) & (target < classes)
    return there if ignored is None else there & (target != ignored)


def divide_by_counted(counts: Tensor, mask: Tensor | None) -> Tensor:
    """What turns a mean over all targets of the real samples into that over those which count: 1 where all do."""
    real = torch.ones_like(counts) if mask is None else mask.view(-1, *[1] * (counts.dim() - 1)).expand_as(counts)
    return real.sum() / (real * counts).sum().clamp(min=1.0)
