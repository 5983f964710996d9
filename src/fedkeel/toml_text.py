"""TOML from outside: whatever is wrong with a text, it is told in one way."""

from __future__ import annotations

import tomllib
from typing import Any


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
