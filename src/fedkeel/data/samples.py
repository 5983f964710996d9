"""Samples one by one, put one behind the other as tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from fedkeel.data.clients import TARGETS, refuse_masked
from fedkeel.errors import DataError
from fedkeel.text import in_one_line


def walk(data: Any, whose: str) -> Iterator[Any]:
    """Yield the samples of a map-style data set, as many as it says it has."""
    count = len(data)
    for i in range(count):
        try:
            yield data[i]
        except IndexError as error:
            raise DataError(
                f"{whose} says it has {count} samples, and sample {i} is out of range: {in_one_line(error)}",
                "len(dataset) is how many there are; a Subset or a sampler names numbers below it",
            ) from error


def collate(samples: Sequence[Any], whose: str) -> Any:
    """Put samples one behind the other: tuples of parts become a tuple of tensors, dicts a dict of them."""
    if not samples:
        raise DataError(
            f"{whose} has no samples, and so does not say what they look like.",
            "leave it out, or give empty tensors: (torch.empty(0, 8), torch.empty(0))",
        )
    named = [part for one in samples if isinstance(part := one[0] if isinstance(one, tuple) and one else one, Mapping)]
    if (other := next((one for one in named if one.keys() != named[0].keys()), None)) is not None:
        raise DataError(
            f"the samples of {whose} have other parts from one to the next: {', '.join(map(str, named[0]))} and "
            f"{', '.join(map(str, other))}.",
            "give all of them the same parts",
        )
    try:
        parts = default_collate([plain(one, whose) for one in samples])
    except (TypeError, RuntimeError, ValueError, KeyError) as error:
        raise DataError(
            f"the samples of {whose} cannot be put one behind the other: {in_one_line(error)}",
            "each sample is (x, y) or a dict of numbers, tensors or arrays, of one shape in all samples",
        ) from None
    if isinstance(parts, Tensor):
        return parts
    if isinstance(parts, Mapping):
        return check_numbers(dict(parts), whose)
    if len(parts) == 2 and isinstance(parts[0], Mapping):
        return check_numbers({**parts[0], TARGETS[0]: parts[1]}, whose)
    return tuple(check_numbers(dict(enumerate(parts)), whose).values())


def plain(sample: Any, whose: str) -> Any:
    """A sample with its pictures as arrays."""
    if isinstance(sample, Mapping):
        return {name: plain(part, whose) for name, part in sample.items()}
    if isinstance(sample, tuple | list):
        parts = [plain(part, whose) for part in sample]
        return parts if type(sample) is list else tuple(parts)
    refuse_masked(sample, whose)
    if getattr(sample, "mode", None) == "P":
        raise DataError(
            f"a picture of {whose} has a palette: its pixels are numbers of colours.", 'image.convert("RGB"), or "L"'
        )
    return np.array(sample) if hasattr(sample, "__array_interface__") else sample  # a picture's own array is read-only


def check_numbers(parts: dict[Any, Any], whose: str) -> dict[Any, Any]:
    """Refuse parts of samples that are texts or lists of lists; lists of numbers become one tensor."""
    for name, part in parts.items():
        if isinstance(part, list) and part and all(isinstance(one, Tensor) for one in part):
            parts[name] = torch.stack(part, 1)  # a sample was a list of numbers
        elif not isinstance(part, Tensor):
            raise DataError(
                f"part {name} of the samples of {whose} holds no numbers.",
                "turn texts into tokens and files into tensors, or leave it out",
            )
    return parts
