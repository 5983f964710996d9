"""Lines of JSON that are read into a dataclass: each value is of the type that its field says."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any


def fitting(kind: type, data: object) -> dict[str, Any]:
    """The values of a dataclass's fields; a ValueError names one that is missing, or cannot be what it is."""
    if not isinstance(data, dict):
        raise ValueError(f"it is not a table: {reprlib.repr(data)}")
    found = {}
    for field in fields(kind):
        if field.name in data:
            what, fits = FITS[str(field.type)]
            value = found[field.name] = data[field.name]
            if not fits(value):
                raise ValueError(f"{field.name} is not {what}: {reprlib.repr(value)}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"it has no {field.name}")
    return found


def whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


def number(value: object) -> bool:
    return whole(value) or (isinstance(value, float) and math.isfinite(value))


def number_or_null(value: object) -> bool:
    return value is None or number(value)


def pairs(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(map(number, pair)) for pair in value
    )


FITS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "str": ("text", lambda value: isinstance(value, str)),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "int": ("a whole number", whole),
    "float": ("a number", number),
    "float | None": ("a number or null", number_or_null),
    "dict[str, Any]": ("a table", lambda value: isinstance(value, dict)),
    "dict[str, float]": ("a table of numbers", lambda v: isinstance(v, dict) and all(map(number, v.values()))),
    "dict[str, float | None]": (
        "a table of numbers",
        lambda v: isinstance(v, dict) and all(map(number_or_null, v.values())),
    ),
    "list[int]": ("a list of whole numbers", lambda value: isinstance(value, list) and all(map(whole, value))),
    "list[list[float]]": ("a list of pairs of numbers", pairs),
}
"""What each type of a field is called, and which values of JSON are of it."""
