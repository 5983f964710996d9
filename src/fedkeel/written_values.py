"""Values as people write them, TOML and `alpha=0.1,clients=100` in one word, and values that no file would hold."""

from __future__ import annotations

import errno
import inspect
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property
from itertools import takewhile
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import Any

from fedkeel.errors import RequestError
from fedkeel.text import split_words
from fedkeel.typed_values import Refusal, show_value

LARGEST = 4 * 2**20
"""The most bytes of a file of plain data."""


def read_toml_file(path: Path) -> dict[str, Any]:
    """Read a file of plain data, or raise a TOMLDecodeError. An OSError refuses a device, a pipe with a name, and what
    is larger than anyone writes: each could be read without end."""
    mode = path.stat().st_mode
    by_shell = stat.S_ISFIFO(mode) and str(path).startswith(("/dev/", "/proc/"))  # `<(…)` is /dev/fd/63
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or by_shell):
        raise OSError(errno.EINVAL, "it is a device or a pipe, not a file")
    with path.open("rb") as file:
        body = file.read(LARGEST + 1)
    if len(body) > LARGEST:
        raise OSError(errno.EFBIG, f"it is larger than {LARGEST >> 20} MiB")
    try:
        return read_toml(body.decode("utf-8").removeprefix("\ufeff"))  # a mark of editors of Windows
    except UnicodeDecodeError as error:
        raise tomllib.TOMLDecodeError(f"it is not text ({error.reason})") from None


def read_toml(text: str) -> dict[str, Any]:
    """Read plain data, or raise a TOMLDecodeError: also for what Python's reader answers with other errors."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError("its values are nested too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # a number of thousands of digits, a date that is none
        raise tomllib.TOMLDecodeError(f"a value cannot be read: {str(error).partition(':')[0]}") from None


def parse_value(text: str) -> Any:
    """Read a TOML value, a number that TOML would write differently (.05), or take the text itself."""
    try:
        found = read_toml(f"value = {text}")
    except tomllib.TOMLDecodeError:
        try:
            return float(text)
        except ValueError:
            return text
    return found["value"] if len(found) == 1 else text


def parse_fields(text: str, fault: str, hint: str, error: type[RequestError] = RequestError) -> dict[str, Any]:
    """Read `alpha=0.1,clients=100` as plain data; refuse a field without a value with the fault and the hint."""
    fields = {}
    for piece in split_words(text):
        name, equals, value = piece.partition("=")
        if not equals:
            raise error(f"{fault}: {piece}", hint)
        fields[name.strip()] = parse_value(value.strip())
    return fields


def check_accuracy(given: Any) -> float | None:
    """An accuracy to reach, or None; people write 75 for 75 %."""
    if given is not None and not 0 < _check_number(given, "an accuracy") <= 1:
        meant = f"{given:g} % is {given / 100:g}" if 1 < given <= 100 else "write 0.75 for 75 %"
        raise RequestError(f"an accuracy is above 0 and at most 1: {given:g}", meant)
    return given


def check_loss(given: Any) -> float | None:
    """A loss to reach, or None: any number."""
    if given is not None and not isfinite(_check_number(given, "a target")):
        raise RequestError(f"a target must be finite: {given}", "for example 0.5")
    return given


def _check_number(given: Any, what: str) -> float:
    if isinstance(given, bool) or not isinstance(given, Real):
        raise RequestError(f"{what} is a number, not {show_value(given)}.", "write 0.75 for 75 %")
    return float(given)


def check_whole(instance: Any, error: Refusal, what: str) -> None:
    """Refuse an object that keeps values besides its fields, where its class is no dataclass but inherits from one.

    Files, fingerprints and comparisons see the fields alone. A subclass that makes no values of its own is as its base.
    """
    own = list(takewhile(lambda kind: "__dataclass_fields__" not in vars(kind), type(instance).__mro__))
    if not any({"__init__", "__post_init__"} & vars(kind).keys() for kind in own):
        return
    known = {field.name for field in fields(instance)}
    hidden = [name for name in vars(instance) if name not in known and not is_computed(type(instance), name)]
    if hidden:
        raise error(
            f"{what} is not a dataclass, so it cannot be saved: {', '.join(hidden)} would be lost.",
            "decorate it: @dataclass(frozen=True), with a field for each value",
        )


def hash_of(value: Any) -> int:
    """Hash a value by what it holds, tables and lists included; what has no hash is known by its class."""
    if isinstance(value, Mapping):
        return hash(frozenset((key, hash_of(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return hash(tuple(map(hash_of, value)))
    try:
        return hash(value)
    except TypeError:
        return hash(type(value))


def is_computed(kind: type, name: str) -> bool:
    """Whether an attribute is a property that was computed before."""
    return isinstance(inspect.getattr_static(kind, name, None), cached_property)
