"""Samples that code of one's own gives: refused where they are no tensors with a row for each sample, or where they
change when they are asked for again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.data.clients import Rows, Sample, is_at_hand
from fedkeel.data.prepare import Preparation
from fedkeel.errors import DataError
from fedkeel.problems.separability import KEYS, are_near, spread
from fedkeel.text import plural

if TYPE_CHECKING:
    from fedkeel.problems.problem import Problem
    from fedkeel.problems.task import Task

TRIES = 4  # of each call: what is drawn may be the same by chance
ROUNDING = 1e-4  # a product of matrices may round each row by where it stands in them


def call_prepare(problem: Problem, raw: Sample, keys: NDArray[np.uint64] | None) -> Sample:
    """Turn raw rows into what the model sees, by a problem's `prepare`; refuse what is not one row for each sample."""
    prepare = problem.prepare
    if prepare is None or isinstance(prepare, Preparation):
        return raw if prepare is None else prepare(raw, keys)
    count = len(raw[0])
    made = read_samples(prepare(raw, keys), count, "the samples that prepare returns")
    if problem.names is not None and len(made) != len(problem.names):
        raise DataError(
            f"prepare returns {plural(len(made), 'part')} of samples that have {len(problem.names)} with names.",
            f"return a tuple of them, in this order: {', '.join(problem.names)}",
        )
    return made


def read_rows(given: Any, rows: Rows, whose: str) -> Sample:
    """The rows of a client as an object of one's own gives them; refuse what is not one for each asked for."""
    return read_samples(given, len(rows), f"the rows of {whose}")


def read_samples(given: Any, count: int, what: str) -> Sample:
    """Samples as a tuple of tensors, with so many rows in each."""
    if not isinstance(given, tuple | list):
        raise DataError(
            f"{what} have to be a tuple of tensors, not {type(given).__name__}.",
            "return (x, y), inputs and target; one part alone is (x,)",
        )
    for part in given:
        if not isinstance(part, Tensor):
            raise DataError(f"{what} have to be tensors, not {type(part).__name__}.", "torch.as_tensor(part)")
        if part.layout is not torch.strided:
            raise DataError(f"{what} are sparse, and rows of them cannot be taken.", "part.to_dense()")
    if not given or any(part.shape[:1] != (count,) for part in given):
        shapes = ", ".join(str(tuple(part.shape)) for part in given) or "none"
        raise DataError(
            f"{what} have to be {count}, as many as are asked for; their parts have the shapes {shapes}.",
            "the first axis of every part counts samples, in the order in which they are asked for",
        )
    return tuple(given)


@torch.no_grad()
def check_repeated(task: Task) -> None:
    """Refuse rows that depend on the order in which they are asked for, and a `prepare` that gives other samples when
    it is called again for the same ones with the same keys."""
    client = int(task.clients.sizes.argmax())
    size = int(task.clients.sizes[client])
    if size == 0:
        return
    rows = spread(size)
    if not is_at_hand(task.clients):
        given, turned = task.clients.rows(client, rows), task.clients.rows(client, rows[::-1].copy())
        if not all(are_near(a, b.flip(0), ROUNDING) for a, b in zip(given, turned, strict=True)):
            raise DataError(
                "the clients' data give other rows when the same ones are asked for again, in another order.",
                "rows(client, numbers) gives those of these numbers, in their order; prepare is what draws",
            )
    if task.problem.prepare is None or isinstance(task.problem.prepare, Preparation):
        return
    keyed = [KEYS[0] * np.arange(1, len(rows) + 1, dtype=np.uint64)] if task.augments else []
    parts = set[int]()
    with torch.random.fork_rng(devices=[]):
        for keys in (None, *keyed):
            first, *others = (task.prepare(task.clients.rows(client, rows), keys) for _ in range(TRIES))
            if not all(are_near(a, b, ROUNDING) for other in others for a, b in zip(first, other, strict=True)):
                raise DataError(
                    f"prepare gives other samples when it is called again with{'out' if keys is None else ' the same'} "
                    "keys: engines, and a resumed run, would train other models.",
                    "draw nothing where keys is None, as in evaluation; else from the keys alone, such as after "
                    "torch.manual_seed(int(keys[0]))",
                )
            parts.add(len(first))
    if len(parts) > 1:
        raise DataError(
            "prepare returns another number of parts with keys, in training, than without, in evaluation.",
            "return as many in both: the model takes the same inputs",
        )
