"""Names of the user's own code, written `module:attribute`."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from fedkeel.errors import RequestError


def import_name(name: str, what: str) -> Any:
    """The attribute of a module that can be imported, also from the current folder."""
    module_name, _, attribute = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise RequestError(
            f"cannot import {what} {name}: {error}", f"is {module_name}.py in the current folder or installed?"
        ) from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise RequestError(f"module {module_name} has no {what} named: {attribute}") from None
