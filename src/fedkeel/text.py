"""Texts from anyone, made safe to show; sizes, times and types in words."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin


def make_printable(text: str) -> str:
    """Replace all but letters and signs: no control code and no change of direction reaches a terminal."""
    if text.isprintable():
        return text
    return "".join(" " if c == "\n" else c if _visible(c) else f"\\u{ord(c):04x}" for c in text)


def _visible(character: str) -> bool:
    kind = unicodedata.category(character)
    return not (kind.startswith("C") or kind in ("Zl", "Zp"))


def shorten(text: str, most: int) -> str:
    """Cut a text to at most `most` characters: of a longer one the two ends stay."""
    return text if len(text) <= most else f"{text[: most * 2 // 3]} … {text[-(most // 3 - 3) :]}"


def byte_size(size: float) -> str:
    """Bytes in three digits and a unit."""
    one, unit = byte_unit(size)
    return f"{size / one:.3g} {unit}"


def byte_unit(size: float) -> tuple[float, str]:
    """Choose the unit in which a number of bytes has one to three digits: its own bytes, and its name."""
    one = 1.0
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5 * one:
            return one, unit
        one *= 1000
    return one, "TB"


def duration(seconds: float) -> str:
    """Seconds, or minutes and seconds, or hours and minutes."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def plural(count: int, word: str) -> str:
    """A number of things: 1 run, 2 runs, 2 classes."""
    return f"{count} {word}" if count == 1 else f"{count} {word}{'es' if word.endswith('s') else 's'}"


def write_settings(values: Mapping[str, object]) -> list[str]:
    """Settings by their dotted names, as `rho=0.1`; the items of a list are one, of a long one its two ends."""
    found: dict[str, list[str]] = {}
    for name, value in values.items():
        found.setdefault(re.sub(r"(\.\d+)+$", "", name), []).append(str(value))
    return [
        f"{name.rsplit('.', 1)[-1]}={items[0] if len(items) == 1 else shorten(' '.join(items), 40)}"
        for name, items in found.items()
    ]


def write_value(value: object) -> str:
    """A setting's value: numbers in a few digits, others as they are."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def split_words(text: str) -> list[str]:
    """Return what stands between the commas of a text; nothing of what is empty."""
    return [word for word in (word.strip() for word in text.split(",")) if word]


def one_line(text: str) -> str:
    """Join the lines of a text, with one blank between words."""
    return " ".join(text.split())


def in_one_line(error: BaseException) -> str:
    """Return what an error says in one line, of one of the system's the reason alone; or its name."""
    return one_line(str(getattr(error, "strerror", None) or error)) or type(error).__name__


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or its name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# ---- types ---------------------------------------------------------------------------------------------------------
KINDS: dict[Any, tuple[str, str, str]] = {
    bool: ("true or false", "true or false", "true"),
    int: ("a whole number", "whole numbers", "1"),
    float: ("a number", "numbers", "0.1"),
    str: ("a text", "texts", '"…"'),
    Mapping: ("a table", "tables", "{…}"),
    dict: ("a table", "tables", "{…}"),
}
"""One of a type, several of it, and an example."""

LISTS = (list, tuple, Sequence)


def list_options(wanted: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """The types that a type allows, each with those of its items."""
    for one in get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,):
        if get_origin(one) is Annotated:
            yield from list_options(get_args(one)[0])
        elif one is not NoneType:
            yield get_origin(one) or one, tuple(item for item in get_args(one) if item is not ...)


def describe_type(wanted: Any, *, many: bool = False) -> str:
    """Say a type in words: "a whole number, or a list of 2 whole numbers"."""
    words = []
    for kind, items in list_options(wanted):
        if kind in KINDS:
            of = f" of {describe_type(items[1], many=True)}" if items and items[1] is not Any else ""
            words.append(KINDS[kind][many] + of)
        elif kind is Literal:
            words.append(" or ".join(", ".join(map(str, items)).rsplit(", ", 1)))
        elif kind in LISTS:
            count = f"{len(items)} " if len(items) > 1 else ""
            of = f" of {count}{describe_type(items[0], many=True)}" if items and items[0] is not Any else ""
            words.append(f"{'lists' if many else 'a list'}{of}")
        else:
            name = getattr(kind, "__name__", str(kind))
            words.append(f"{name}s" if many else f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")
    return ", or ".join(words)


def write_example(wanted: Any) -> str:
    """Write a value of a type as TOML has it."""
    kind, items = next(list_options(wanted))
    if kind in LISTS:
        return f"[{', '.join(write_example(item) for item in items)}]"
    if kind is Literal:
        return json.dumps(items[0])
    return KINDS[kind][2] if kind in KINDS else f"{getattr(kind, '__name__', kind)}(…)"
