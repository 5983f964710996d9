"""Names of the user's own code, written `module:attribute`."""

from __future__ import annotations

import importlib
import os
import sys
from operator import attrgetter
from pathlib import PurePath
from typing import Any

from fedkeel.errors import RequestError, nearest


def import_name(name: str, what: str) -> Any:
    """The attribute of a module that can be imported, also from the current folder."""
    module_name, _, attribute = name.partition(":")
    if module_name.startswith(".") or "/" in module_name or not module_name or not attribute:
        file = PurePath(module_name).name.removesuffix(".py").lstrip(".")
        hint = f"write {file or 'my_module'}:{attribute or 'name'}, in the module's folder or with it on PYTHONPATH"
        raise RequestError(f"a {what} of your own is written module:name, not {name}", hint)
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a module may do anything when it is imported
        raise RequestError(f"cannot import {what} {name}: {_reason(error)}", _import_hint(name, error)) from error
    try:
        return attrgetter(attribute)(module)
    except AttributeError:
        raise RequestError(
            f"module {module_name} has no {what} named: {attribute}", _attribute_hint(module, what, attribute)
        ) from None


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, ImportError) and text else f"{type(error).__name__}: {text}".removesuffix(": ")


def _import_hint(name: str, error: BaseException) -> str:
    module_name, _, attribute = name.partition(":")
    if module_name.endswith(".py"):
        return f"write {module_name.removesuffix('.py')}:{attribute}"
    if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
        return f"is {module_name.replace('.', '/')}.py in the current folder or installed?"
    return f"`python -c 'import {module_name}'` shows where it fails"


def _attribute_hint(module: Any, what: str, attribute: str) -> str:
    if module.__name__ == "__main__" or "<locals>" in attribute:
        return (
            f"a {what} of a run that is to be resumed or compared must lie in a module that can be imported, "
            "not in a script, a notebook or a function"
        )
    return nearest(attribute, [known for known in vars(module) if not known.startswith("_")], "names there")
