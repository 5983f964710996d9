"""The one validator of values from outside (files, `--set`, Python, ledger lines): keys, types and ranges of numbers
are what the annotations of a dataclass or a function say, and every refusal is one line with a hint."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from itertools import cycle
from math import isfinite
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from fedkeel.errors import RequestError, ask_for_object, nearest
from fedkeel.ranges import Range
from fedkeel.text import LISTS, describe_type, list_options, write_example

Refusal = Callable[[str, str], Exception]
"""Makes an error of a message and a hint."""

TABLES = (dict, Mapping)
NUMBERS = (int, float)

CHECKED = ("builtins", "collections", "fedkeel", "torch")
"""The packages whose classes are checked; what an annotation of another's class lets in is not ours to say."""

WRONG_TYPE = "is of another type"


# ---- tables and their values ---------------------------------------------------------------------------------------
def check_keys(given: Iterable[str], known: Collection[str], error: Refusal, what: str, noun: str = "field") -> None:
    """Refuse a key that is not known."""
    for word in given:
        if word not in known:
            hint = nearest(str(word), known, f"{noun}s") if known else "it has none"
            raise error(f"{what} has no {noun}: {word}", hint)


def check_table(kind: Any, data: Mapping[str, Any], error: Refusal, what: str, noun: str = "field") -> None:
    """Refuse a table with a key that a dataclass does not have, or without one that it needs."""
    check_keys(data, [field.name for field in fields(kind) if field.init], error, what, noun)
    _check_complete(kind, data, error, what, noun)


def _check_complete(kind: Any, data: Mapping[str, Any], error: Refusal, what: str, noun: str = "field") -> None:
    missing = [field.name for field in fields(kind) if field.name not in data and _is_needed(field)]
    if missing:
        raise error(
            f"{what} lacks: {', '.join(missing)}", f"its {noun}s: {', '.join(field.name for field in fields(kind))}"
        )


def _is_needed(field: Any) -> bool:
    return field.init and field.default is MISSING and field.default_factory is MISSING


def read_values(
    values: Mapping[str, Any],
    types: Mapping[str, Any],
    error: Refusal,
    what: str = "",
    examples: Mapping[str, Any] | None = None,
    notes: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Convert values to Python's own numbers, texts and lists; refuse one that is not of its type or in its range.

    The hint then is an example of the key, and a note on it if there is one.
    """
    converted = {word: to_plain(value) for word, value in values.items()}
    for word, value in converted.items():
        wanted, example = types.get(word, Any), (examples or {}).get(word)
        if fault := find_fault(value, wanted):
            written = write_example(wanted) if example is None else json.dumps(example, ensure_ascii=False, default=str)
            hint = "; ".join(filter(None, (f"for example {word} = {written}", (notes or {}).get(word))))
            if get_origin(wanted) is Literal and isinstance(value, str):
                hint = nearest(value, map(str, get_args(wanted)), "choices")
            if (kind := _find_class(value, wanted)) is not None:
                hint = ask_for_object(kind)
            raise error(f"{word}{f' of {what}' if what else ''} {fault}: {show_value(value)}", hint)
    return converted


def list_given(given: Any, what: str, alone: tuple[type, ...] = (str,)) -> list[Any]:
    """Return what was given as a list: None is none, and one alone needs no list."""
    if given is None:
        return []
    if isinstance(given, alone) or callable(given):
        return [given]
    if not isinstance(given, Iterable):
        raise RequestError(f"{what} takes a list, not {show_value(given)}", f"{what}=[…]")
    return list(given)


def read_line(kind: Any, data: Any) -> dict[str, Any]:
    """The fields of a dataclass in a line of JSON; later versions may have added others. A ValueError says a fault."""

    def refuse(message: str, hint: str) -> ValueError:  # what to do, the reader of the file says
        return ValueError(message)

    if not isinstance(data, Mapping):
        raise ValueError(f"it must be a table: {show_value(data)}")
    _check_complete(kind, data, refuse, "it")
    known = {field.name: data[field.name] for field in fields(kind) if field.name in data}
    return read_values(known, types_of(kind), refuse)


def check_fields(instance: Any, error: Refusal, what: str) -> None:
    """Refuse a dataclass one of whose fields is not of its type or in its range; lists become tuples."""
    kind: Any = type(instance)
    types = types_of(kind)
    if not is_dataclass(instance):
        return
    known = [field for field in fields(instance) if field.init]
    defaults = {field.name: field.default for field in known if field.default is not MISSING}
    given = {field.name: getattr(instance, field.name) for field in known}
    for word, value in read_values(given, types, error, what, defaults).items():
        final = tuple(value) if isinstance(value, list) else value
        if final is not given[word]:
            object.__setattr__(instance, word, final)


@cache
def types_of(annotated: Any) -> dict[str, Any]:
    """The annotated types of a class's fields or a function's parameters; none where they cannot be evaluated."""
    try:
        if isinstance(annotated, type):
            return get_type_hints(annotated, include_extras=True)
        return {name: one.annotation for name, one in inspect.signature(annotated, eval_str=True).parameters.items()}
    except (NameError, AttributeError, TypeError, ValueError, SyntaxError):  # names that only a type checker sees
        return {}


def to_plain(value: Any) -> Any:
    """Convert numpy's numbers and arrays, ranges and paths to Python's own."""
    if type(value) in (int, float, str):
        return value
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if type(value) in (list, tuple):
        return type(value)([to_plain(item) for item in value])
    if isinstance(value, range):
        return list(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def flatten(value: Any, name: str = "", *, lists: bool = True) -> dict[str, Any]:
    """Write the values of nested tables, and of `lists` in them, under dotted names."""
    if isinstance(value, Mapping):
        items: Iterable[tuple[Any, Any]] = value.items()
    elif lists and isinstance(value, list):
        items = enumerate(value)
    else:
        return {name: value}
    parts = [flatten(item, f"{name}.{word}" if name else str(word), lists=lists) for word, item in items]
    return {word: item for part in parts for word, item in part.items()}


def name_keys(keys: Iterable[str]) -> list[str]:
    """The last words of dotted names, each once; numbers of a list's items are none."""
    return list(dict.fromkeys([word for word in key.split(".") if not word.isdecimal()][-1] for key in keys))


# ---- one value against one annotation ------------------------------------------------------------------------------
def find_fault(value: Any, wanted: Any) -> str:
    """Say what is wrong with a value for an annotation: its type, or the range of a number. Empty: nothing.

    Lists are tuples, whole numbers are numbers, true is neither; every number is finite.
    """
    try:
        fault = _check_of(wanted)(value)
    except TypeError:  # notes of an annotation that cannot be hashed
        return ""
    return f"must be {describe_type(wanted)}" if fault == WRONG_TYPE else fault


@cache
def _check_of(wanted: Any) -> Callable[[Any], str]:
    """The function that finds a fault: an annotation is taken apart once, for the thousands of lines of a file."""
    kind, items = get_origin(wanted) or wanted, get_args(wanted)
    if kind in (Union, UnionType):
        options = [_check_of(one) for one in items]
        return lambda value: _least([check(value) for check in options])
    if kind is Annotated:
        check, ranges = _check_of(items[0]), [one for one in items[1:] if isinstance(one, Range)]
        return lambda value: check(value) or _worst([one.find_fault(value) for one in ranges])
    if kind is Literal:
        return lambda value: "" if any(type(value) is type(one) and value == one for one in items) else WRONG_TYPE
    if kind in LISTS:
        checks = [_check_of(one) for one in items if one is not ...]
        sizes = {len(checks)} if kind is tuple and items[-1:] != (...,) else None

        def check_list(value: Any) -> str:
            if not isinstance(value, list | tuple) or (sizes and len(value) not in sizes):
                return WRONG_TYPE
            return _worst([check(item) for item, check in zip(value, cycle(checks), strict=False)])

        return check_list
    if kind in TABLES and items:
        of_item = _check_of(items[1])
        return lambda value: _worst([*map(of_item, value.values())]) if isinstance(value, kind) else WRONG_TYPE
    types = NUMBERS if kind is float else kind if _is_checked(kind) else object

    def check_plain(value: Any) -> str:
        if not isinstance(value, types) or (kind in NUMBERS and isinstance(value, bool)):
            return WRONG_TYPE
        if not _is_finite(value):
            return "must be finite"
        if kind is float and isinstance(value, int) and abs(value) >= 1 << 63:  # PyTorch takes 64 bits
            return f"must be written as {float(value):g}"
        return ""

    return check_plain


def _worst(faults: list[str]) -> str:
    """The fault of a whole: a wrong type comes before a wrong number."""
    return WRONG_TYPE if WRONG_TYPE in faults else next(filter(None, faults), "")


def _least(faults: list[str]) -> str:
    """The fault of a choice: none where one of them fits."""
    return "" if "" in faults else next((fault for fault in faults if fault != WRONG_TYPE), WRONG_TYPE)


def _is_checked(kind: Any) -> bool:
    is_ours = isinstance(kind, type) and kind.__module__.partition(".")[0] in CHECKED
    return is_ours and not getattr(kind, "_is_protocol", False)


def _is_finite(value: Any) -> bool:
    try:
        return not isinstance(value, NUMBERS) or isfinite(value)
    except OverflowError:  # a whole number too large for a float
        return False


# ---- words ---------------------------------------------------------------------------------------------------------
def _find_class(value: Any, wanted: Any) -> type | None:
    """Find a class that was given, alone or in a list, where an object of it would fit."""
    kinds = tuple(one for kind, items in list_options(wanted) for one in (kind, *items) if _is_checked(one))
    given = value if isinstance(value, list | tuple) else [value]
    return next((one for one in given if isinstance(one, type) and issubclass(one, kinds)), None)


def show_value(value: Any) -> str:
    """Write a value in one line, the end of a long one left out."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:79]}…"
