"""The one door through which names of code come in: `module:attribute`, from a file, a command line or Python.

Who vouches for a name is a `Trust`, handed from caller to callee until it arrives here. What a name leads to is taken
only if it is what was asked for: a method, a rule, a network. Nothing else is ever called.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import os
import site
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from importlib.metadata import EntryPoint, distributions
from operator import attrgetter
from pathlib import Path, PurePath
from typing import Any

from fedkeel.errors import RequestError, UntrustedError, nearest
from fedkeel.text import one_line
from fedkeel.typed_values import show_value

log = logging.getLogger("fedkeel.importing")

GROUP = "fedkeel"
"""Entry points of this group, and of `fedkeel.methods` and the like, vouch for the names that they give."""


class Trust(IntEnum):
    """Who vouches for the names in some data; each level allows what the ones below it do."""

    NOTHING = 0  # read and shown: nothing is imported
    INSTALLED = 1  # a file of anyone's: only entry points of installed packages
    FILE = 2  # a file that the user vouches for: --trust, trust=True
    TYPED = 3  # typed on the command line or in Python

    @staticmethod
    def given(trust: bool | Trust) -> Trust:
        """What `--trust` or `trust=True` means for a file that is to be trained from."""
        if isinstance(trust, Trust):
            return trust
        if not isinstance(trust, bool):  # "no" would be a yes
            raise RequestError(f"trust is True or False, not {show_value(trust)}.", "trust=True")
        return Trust.FILE if trust else Trust.INSTALLED


@dataclass(frozen=True)
class Kind:
    """What a name may lead to: an object of a class, a subclass of it, a function that says that it returns one, or a
    function that is itself meant."""

    word: str
    of: type
    objects: bool = False
    classes: bool = False
    makers: bool = False
    functions: bool = False  # any, as they are
    hint: str = ""
    error: type[RequestError] = RequestError

    @property
    def article(self) -> str:
        return "an" if self.word[0] in "aeiou" else "a"


def untrusted(name: str, word: str) -> UntrustedError:
    return UntrustedError(
        f"a file names code of its own, which is not run unasked: the {word} {show_value(name)}",
        "add --trust (in Python trust=True) if you know who wrote the file and that code",
    )


def look_up(name: str, kind: Kind, trust: Trust) -> Any:
    """Import what a name leads to, if someone vouches for it and it is of the kind asked for."""
    if trust < Trust.FILE and not (trust is Trust.INSTALLED and is_installed(name)):
        raise untrusted(name, kind.word)
    if is_stdlib(name.partition(":")[0]):
        raise kind.error(f"{show_value(name)} is part of Python, not {kind.article} {kind.word}", kind.hint)
    target = import_name(name, kind.word, trust, partial(is_taken, kind=kind, trust=trust))
    if not is_taken(target, kind, trust):
        raise kind.error(f"{show_value(name)} is {describe(target)}, not {kind.article} {kind.word}", kind.hint)
    return target


def is_taken(target: Any, kind: Kind, trust: Trust) -> bool:
    """Whether something is of the kind asked for."""
    return (
        (kind.objects and isinstance(target, kind.of))
        or (kind.classes and isinstance(target, type) and issubclass(target, kind.of))
        or (kind.makers and says_it_returns(target, kind.of, trust))
        or (kind.functions and inspect.isfunction(target) and not is_stdlib(target.__module__))
    )


def says_it_returns(target: Any, of: type, trust: Trust) -> bool:
    """Whether a function is annotated to return such an object; one that the user typed need not be."""
    function = inspect.unwrap(target.func if isinstance(target, partial) else target)
    if not inspect.isfunction(function) or is_stdlib(function.__module__):
        return False
    if of is object:  # a loader: its result is checked
        return True
    try:
        returned = inspect.signature(function, eval_str=True).return_annotation
    except Exception:  # names that only a type checker sees
        returned = inspect.signature(function).return_annotation
    if isinstance(returned, type) and returned is not inspect.Signature.empty:
        return issubclass(returned, of)
    if isinstance(returned, str):
        return returned.strip("'\"").rpartition(".")[2] == of.__name__
    return trust is Trust.TYPED


def is_stdlib(module: str | None) -> bool:
    """Whether a module is Python's own: nothing in it is a method, a rule or a network."""
    return (module or "").partition(".")[0] in sys.stdlib_module_names


def import_name(name: str, word: str, trust: Trust, fits: Callable[[Any], bool]) -> Any:
    """Import a module and take its attribute; from the current folder too, where someone vouches for it.

    Where it has no such attribute, the hint names those that fit, or all if none does.
    """
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")) or not attribute:
        file = PurePath(module_name).name.removesuffix(".py").lstrip(".")
        hint = f"write {file or 'my_module'}:{attribute or 'name'}, in the module's folder or with it on PYTHONPATH"
        raise RequestError(f"a {word} of your own is written module:name, not {name}", hint)
    new = module_name not in sys.modules
    try:
        with path_without_here() if trust is Trust.INSTALLED else path_with_here():
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a module may do anything when it is imported
        raise RequestError(f"cannot import {word} {name}: {_reason(error)}", _import_hint(name, error)) from error
    if new:
        place = getattr(module, "__file__", None)
        log.log(
            logging.WARNING if trust is Trust.FILE else logging.INFO, "imported %s, for the %s %s: %s",
            module_name, word, show_value(name), place or "built in", extra={"word": "note"},
        )  # fmt: skip
    try:
        return attrgetter(attribute)(module)
    except AttributeError:
        raise RequestError(
            f"module {module_name} has no {word} named: {attribute}", _attribute_hint(module, word, attribute, fits)
        ) from None


# ---- installed packages, and the current folder, which is none -----------------------------------------------------
def installed() -> Iterator[EntryPoint]:
    """Entry points of ours in installed packages; a folder that lies here is not installed."""
    places = [Path(place).resolve() for place in (*site.getsitepackages(), site.getusersitepackages())]
    for one in distributions():
        if Path(str(one.locate_file(""))).resolve() in places:
            yield from (point for point in one.entry_points if point.group.partition(".")[0] == GROUP)


def is_installed(name: str) -> bool:
    """Whether an installed package vouches for this `module:name`."""
    return any(point.value == name for point in installed())


@contextlib.contextmanager
def path_with_here() -> Iterator[None]:
    """Let modules be imported from the current folder too, also later by what is imported here."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    yield


@contextlib.contextmanager
def path_without_here() -> Iterator[None]:
    """Let modules be imported from installed packages only, not from the current folder."""
    before, here = list(sys.path), Path.cwd()
    sys.path[:] = [place for place in before if place and Path(place).resolve() != here]
    try:
        yield
    finally:
        sys.path[:] = before


# ---- what went wrong -----------------------------------------------------------------------------------------------
def describe(target: Any) -> str:
    """Say what something is."""
    if inspect.isclass(target):
        return f"the class {target.__name__}"
    if inspect.isroutine(target):
        return "a function that does not say so"
    return f"of type {type(target).__name__}"


def _reason(error: BaseException) -> str:
    text = one_line(str(error))
    return text if isinstance(error, ImportError) and text else f"{type(error).__name__}: {text}".removesuffix(": ")


def _import_hint(name: str, error: BaseException) -> str:
    module_name, _, attribute = name.partition(":")
    if module_name.endswith(".py"):
        return f"write {module_name.removesuffix('.py')}:{attribute}"
    if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
        return f"is {module_name.replace('.', '/')}.py in the current folder or installed?"
    return f"`python -c 'import {module_name}'` shows where it fails"


def _attribute_hint(module: Any, word: str, attribute: str, fits: Callable[[Any], bool]) -> str:
    if module.__name__ == "__main__" or "<locals>" in attribute:
        return (
            f"a {word} of a run that is to be resumed or compared must lie in a module that can be imported, "
            "not in a script, a notebook or a function"
        )
    here = {known: one for known, one in vars(module).items() if not known.startswith("_") and _is_of(module, one)}
    return nearest(attribute, [known for known, value in here.items() if fits(value)] or here, "names there")


def _is_of(module: Any, value: Any) -> bool:
    """Whether a value of a module is its package's own, not a module, class or function that it imported."""
    if inspect.isclass(value) or inspect.isroutine(value):
        return str(value.__module__).partition(".")[0] == module.__name__.partition(".")[0]
    return not inspect.ismodule(value)
