"""Values as people write them: TOML, and `alpha=0.1,clients=100` in one word of a command line."""

from __future__ import annotations

import tomllib
from typing import Any

from fedkeel.errors import RequestError
from fedkeel.text import split_words


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
