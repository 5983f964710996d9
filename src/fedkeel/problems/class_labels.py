"""Whether labels are classes that a network has outputs of, and losses take: a GPU that met another could not be used
any more."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.objective import put_classes_last
from fedkeel.data.clients import (
    ClientData,
    DerivedClients,
    Rows,
    Sample,
    SharedClients,
    TensorClients,
    in_memory,
    is_at_hand,
    to_tensors,
)
from fedkeel.errors import DataError
from fedkeel.problems.module_state import Place, copy_whole, place_function
from fedkeel.problems.own_samples import read_rows

if TYPE_CHECKING:
    from fedkeel.problems.task import Task

OF_CLASSES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
MAKE_WHOLE = 'if they are classes, make them whole: y.long(), frame.astype({"label": int})'
WHOLE_FRACTIONS = f"the targets are fractions, though all of them are whole numbers; {MAKE_WHOLE}"


def are_whole_fractions(target: Tensor) -> bool:
    """Whether targets are fractions by their type alone, as where classes are written 1.0."""
    return target.is_floating_point() and bool((target == target.round()).all())


def targets_of_classes(data: ClientData) -> Iterator[Tensor]:
    """Yield the targets in memory that are whole numbers, of samples or of their pixels and words."""
    if isinstance(data, DerivedClients):
        for source in data.sources:
            yield from targets_of_classes(source)
    elif isinstance(data, SharedClients):
        yield torch.from_numpy(data.labels[data.partition.indices])
    elif in_memory(data) and isinstance(data, TensorClients):
        for client in np.flatnonzero(data.sizes).tolist():
            *inputs, target = to_tensors(data.clients[client], f"client {client}")
            if inputs and target.dtype in OF_CLASSES:
                yield target
    elif hasattr(data, "read_targets"):  # a site's own
        yield from (target for target in data.read_targets() if target.dtype in OF_CLASSES)


def lowest_and_highest(target: Tensor) -> tuple[int, int]:
    """As numbers of Python: PyTorch would bring -100 into the range of eight bits before it compares."""
    low, high = target.aminmax() if target.numel() else (0, -1)
    return int(low), int(high)


def has_label(data: ClientData, label: int) -> bool:
    """Whether a target of data in memory is that label."""

    def has(target: Tensor) -> bool:
        low, high = lowest_and_highest(target)
        return low <= label <= high and bool((target == label).any())

    return any(map(has, targets_of_classes(data)))


def list_outside(data: ClientData, classes: int) -> list[int]:
    """The labels in memory that are none of so many classes, each once."""
    found = set[int]()
    for target in targets_of_classes(data):
        low, high = lowest_and_highest(target)
        if low < 0 or high >= classes:
            found |= {label for label in target.unique().tolist() if not 0 <= label < classes}
    return sorted(found)


def list_untrained(data: ClientData, tests: ClientData, classes: int) -> list[int]:
    """The classes of samples, not of words in a text, that tests in memory hold and no client does."""
    known, asked = (
        {*(label for target in targets_of_classes(part) if target.dim() == 1 for label in target.unique().tolist())}
        for part in (data, tests)
    )
    return sorted(label for label in asked - known if 0 <= label < classes) if known else []


@torch.no_grad()
def check_labels(task: Task, parts: Mapping[str, ClientData], taken: Collection[int] = ()) -> int | None:
    """Refuse labels that the loss does not take; return how many classes outputs are scores of.

    They are tried on a sample: a loss may ignore some labels. Those that are `taken` were tried before.
    """
    data = next((data for data in parts.values() if next(targets_of_classes(data), None) is not None), None)
    if task.module is None or data is None:
        return None
    model = copy_whole(task.module).cpu().eval()
    loss = place_function(task.problem.loss, Place(torch.device("cpu"), task.dtype, task.dtype))
    *inputs, target = data.rows(int(data.sizes.argmax()), np.zeros(2 if task.needs_pairs else 1, np.int64))
    with torch.random.fork_rng(devices=[]):
        sample = tuple(part.cpu() for part in task.prepare((*inputs, target)))
        output: Any = task.predict(model, sample)
        if not isinstance(output, Tensor) or output.dim() != sample[-1].dim() + 1:
            return None
        scores = put_classes_last(output, sample[-1])
        if scores.shape[:-1] != sample[-1].shape:
            return None
        classes = scores.shape[-1]
        for name, part in parts.items():
            for label in [one for one in list_outside(part, classes) if one not in taken][:4]:
                changed = torch.full_like(target, label, dtype=torch.int64)
                try:
                    task.compute_loss(loss, model, tuple(t.cpu() for t in task.prepare((*inputs, changed))), output)
                except (IndexError, RuntimeError, ValueError):
                    raise DataError(
                        f"{name} hold{'s' if name.endswith('set') else ''} the label {label}, but the model has "
                        f"{classes} outputs: labels go from 0 to {classes - 1}.",
                        "number the classes from 0, or give the model more outputs",
                    ) from None
    return classes


def check_labels_that_fit(task: Task, parts: Mapping[str, ClientData], taken: Collection[int] = ()) -> int | None:
    """Refuse labels that the loss does not take, where the network takes the sample; `try_sample` refuses others."""
    try:
        return check_labels(task, parts, taken)
    except DataError:
        raise
    except Exception:
        return None


def check_labels_of_gpu(task: Task) -> None:
    """Refuse labels out of range before a loss meets them on a GPU, which nobody could use after that."""
    if task.device.type == "cuda":
        check_labels_that_fit(task, {"the training data": task.clients})


class WatchedLabels(DerivedClients):
    """Clients that are read when their turn comes; labels that the loss does not take are refused as they are read.

    A GPU that met one could not be used any more.
    """

    def __init__(self, clients: ClientData, task: Task, whose: str):
        self.unwatched, self.sizes, self.sources, self.task, self.whose = clients, clients.sizes, [clients], task, whose
        self.classes: int | None = 0  # so that the first labels are tried; None where outputs are no scores
        self.taken, self.tries = set[int](), False

    def rows(self, client: int, rows: Rows) -> Sample:
        sample = read_rows(self.unwatched.rows(client, rows), rows, type(self.unwatched).__name__)
        if self.tries or self.classes is None:
            return sample  # a try reads rows, too
        given = TensorClients([sample])
        if not self.taken.issuperset(new := list_outside(given, self.classes)):
            self.tries = True
            try:
                self.classes = check_labels_that_fit(self.task, {self.whose.format(client): given}, self.taken)
            finally:
                self.tries = False
            self.taken.update(new)
        return sample


def watch_labels(task: Task) -> None:
    """Watch the labels of data that nobody has looked at before training begins."""
    words = {"clients": "the data of client {}", "validation": "the validation share of client {}",
             "test": "the test set", "tests": "the test data of client {}"}  # fmt: skip
    for name, whose in words.items():
        data: ClientData | None = getattr(task, name)
        if data is not None and not is_at_hand(data):
            setattr(task, name, WatchedLabels(data, task, whose))


def unwatch(data: ClientData) -> ClientData:
    """The data as they were given."""
    return data.unwatched if isinstance(data, WatchedLabels) else data
