"""Values from outside, held against the types that the code is annotated with."""

from __future__ import annotations

import inspect
import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from fedkeel.errors import RequestError, nearest
from fedkeel.ranges import find_fault

KINDS: dict[Any, tuple[str, str, str]] = {
    bool: ("true or false", "true or false", "true"),
    int: ("a whole number", "whole numbers", "1"),
    float: ("a number", "numbers", "0.1"),
    str: ("a text", "texts", '"…"'),
    Mapping: ("a table", "tables", "{…}"),
}
"""One of a type, several of it, and an example."""

HELD = ("builtins", "collections", "fedkeel", "torch")
"""Whose classes values are held against; what an annotation of another's class lets in is not ours to say."""


def typed(
    values: Mapping[str, Any],
    types: Mapping[str, Any],
    error: type[RequestError],
    place: str = "{}",
    examples: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The values as Python's own numbers, texts and lists; one that is not of its type or in its range is refused."""
    found = {word: plain(value) for word, value in values.items()}
    for word, value in found.items():
        wanted, example = types.get(word, Any), (examples or {}).get(word)
        fault = find_fault(value, wanted) if fits(value, wanted) else f"must be {described(wanted)}"
        if fault:
            written = example_of(wanted) if example is None else json.dumps(example, ensure_ascii=False, default=str)
            hint = f"for example {word} = {written}"
            if get_origin(wanted) is Literal and isinstance(value, str):
                hint = nearest(value, map(str, get_args(wanted)), "choices")
            raise error(f"{place.format(word)} {fault}: {shown(value)}", hint)
    return found


def hold_fields(made: Any, error: type[RequestError], what: str) -> None:
    """Refuse a dataclass one of whose fields is not of its type or in its range; lists become tuples."""
    if not is_dataclass(made):
        return
    known = [field for field in fields(made) if field.init]
    defaults = {field.name: field.default for field in known if field.default is not MISSING}
    given = {field.name: getattr(made, field.name) for field in known}
    kind: Any = type(made)
    for word, value in typed(given, _types_of(kind), error, f"{{}} of {what}", defaults).items():
        whole = tuple(value) if isinstance(value, list) else value
        if whole is not given[word]:
            object.__setattr__(made, word, whole)


@cache
def _types_of(made: Any) -> dict[str, Any]:
    return types_of(made)


def types_of(made: Any) -> dict[str, Any]:
    """The annotated types of a class's fields or a function's parameters; none where they cannot be evaluated."""
    try:
        if isinstance(made, type):
            return get_type_hints(made, include_extras=True)
        return {name: one.annotation for name, one in inspect.signature(made, eval_str=True).parameters.items()}
    except (NameError, AttributeError, TypeError, ValueError, SyntaxError):  # names that only a type checker sees
        return {}


def plain(value: Any) -> Any:
    """numpy's numbers and arrays, ranges and paths as Python's own."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if type(value) in (list, tuple):
        return type(value)(plain(item) for item in value)
    if isinstance(value, range):
        return list(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def fits(value: Any, wanted: Any) -> bool:
    """Whether a value is of an annotated type: lists are tuples, whole numbers are numbers, true is neither."""
    if get_origin(wanted) in (Union, UnionType):
        return any(fits(value, one) for one in get_args(wanted))
    if get_origin(wanted) is Annotated:
        return fits(value, get_args(wanted)[0])
    if get_origin(wanted) is Literal:
        return any(type(value) is type(one) and value == one for one in get_args(wanted))
    kind, items = get_origin(wanted) or wanted, get_args(wanted)
    if kind in (int, float):
        return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if kind in (list, tuple, Sequence):
        several = items if kind is tuple and items[-1:] != (...,) else None
        if not isinstance(value, list | tuple) or (several and len(several) != len(value)):
            return False
        return all(fits(item, one) for item, one in zip(value, several or items[:1] * len(value), strict=False))
    if (
        not isinstance(kind, type)
        or kind.__module__.partition(".")[0] not in HELD
        or getattr(kind, "_is_protocol", False)
    ):
        return True
    return isinstance(value, kind)


def _options(wanted: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """The types that a type allows, each with those of its items."""
    for one in get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,):
        if get_origin(one) is Annotated:
            yield from _options(get_args(one)[0])
        elif one is not NoneType:
            yield get_origin(one) or one, tuple(item for item in get_args(one) if item is not ...)


def described(wanted: Any, *, many: bool = False) -> str:
    """A type in words: "a whole number, or a list of 2 whole numbers"."""
    words = []
    for kind, items in _options(wanted):
        if kind in KINDS:
            words.append(KINDS[kind][many])
        elif kind is Literal:
            words.append(" or ".join(", ".join(map(str, items)).rsplit(", ", 1)))
        elif kind in (list, tuple, Sequence):
            count = f"{len(items)} " if len(items) > 1 else ""
            of = f" of {count}{described(items[0], many=True)}" if items else ""
            words.append(f"{'lists' if many else 'a list'}{of}")
        else:
            name = getattr(kind, "__name__", str(kind))
            words.append(f"{name}s" if many else f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")
    return ", or ".join(words)


def example_of(wanted: Any) -> str:
    kind, items = next(_options(wanted))
    if kind in (list, tuple, Sequence):
        return f"[{', '.join(example_of(item) for item in items)}]"
    if kind is Literal:
        return json.dumps(items[0])
    return KINDS[kind][2] if kind in KINDS else f"{getattr(kind, '__name__', kind)}(…)"


def shown(value: Any) -> str:
    """A value in one line, the end of a long one left out."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:79]}…"


def read_toml(text: str) -> dict[str, Any]:
    """Plain data, or a TOMLDecodeError: also for what Python's reader answers with other errors."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError("its values are nested too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # a number of thousands of digits, a date that is none
        raise tomllib.TOMLDecodeError(f"a value cannot be read: {str(error).partition(':')[0]}") from None
