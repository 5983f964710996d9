"""How data sets number their classes: a class has the same number for all clients, or labels mean different things."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import ConcatDataset, DataLoader, Subset

from fedkeel.data.clients import TARGETS
from fedkeel.errors import DataError

ALIKE = (
    "a folder of pictures numbers the classes that it holds: where one lacks a class, give each data set a "
    "target_transform that numbers them alike"
)


def check_class_numbers(parts: Iterable[tuple[Any, str]], label: Any = None) -> None:
    """Refuse data sets that say how they number their classes, and do it differently. `parts`: each with its name."""
    numbers: dict[str, tuple[int, str]] = {}
    names: dict[int, tuple[str, str]] = {}
    for given, whose in parts:
        for name, number in find_class_numbers(given, label):
            before, owner = numbers.setdefault(name, (number, whose))
            if before != number:
                raise DataError(f"class {name} is number {number} in {whose}, and number {before} in {owner}.", ALIKE)
            other, owner = names.setdefault(number, (name, whose))
            if other != name:
                raise DataError(f"number {number} is class {name} in {whose}, and class {other} in {owner}.", ALIKE)


def find_class_numbers(given: Any, label: Any = None) -> Iterator[tuple[str, int]]:
    """The classes and numbers that a data set names, as torchvision's and Hugging Face's do; none where their targets
    are transformed."""
    if isinstance(given, DataLoader | Subset):
        yield from find_class_numbers(given.dataset, label)
    elif isinstance(given, ConcatDataset):
        for one in given.datasets:
            yield from find_class_numbers(one, label)
    elif not transforms_targets(given):
        found = getattr(given, "class_to_idx", None)
        if isinstance(found, dict):
            yield from ((str(name), int(number)) for name, number in found.items())
        columns = getattr(given, "features", None)
        if isinstance(columns, dict):
            column = label if isinstance(label, str) else next((one for one in TARGETS if one in columns), None)
            classes = getattr(columns.get(column), "names", None) or ()
            yield from ((str(name), number) for number, name in enumerate(classes))


def transforms_targets(given: Any) -> bool:
    """Whether a data set of torchvision changes its targets: with a transform of its own, or one of both parts."""
    both = type(getattr(given, "transforms", None)).__name__
    return getattr(given, "target_transform", None) is not None or both not in ("NoneType", "StandardTransform")
