"""Methods as a file or the command line gives them: their names, and the hyper-parameters that --set changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedkeel.errors import MethodError, nearest
from fedkeel.importing import Trust
from fedkeel.methods import settings_of
from fedkeel.methods.given import is_composition


def give_hyperparameters(given: Sequence[Any], settings: Mapping[str, Any], trust: Trust) -> list[Any]:
    """Each method with those settings that it has; a setting that none of them has is an error."""
    known = [list_hyperparameters(method, trust) for method in given]
    for word in settings:
        if not any(word in names for names in known):
            several = f"none of these methods has a hyper-parameter: {word}"
            one = f"method {name_of(given[0])} has no hyper-parameter: {word}"
            every = {name for names in known for name in names}
            hint = nearest(word, every, "hyper-parameters") if every else "there are none to set"
            raise MethodError(several if len(given) > 1 else one, hint)
    methods = []
    for method, names in zip(given, known, strict=True):
        mine = {word: value for word, value in settings.items() if word in names}
        table = {"name": method} if isinstance(method, str) else method
        methods.append({**table, **mine} if mine else method)
    return methods


def list_hyperparameters(method: Any, trust: Trust) -> set[str]:
    """The hyper-parameters of a method as a file or the command line gives it."""
    if is_composition(method):
        return set()
    return set(settings_of(name_of(method), trust))


def name_of(method: Any) -> str:
    return str(method.get("name", "composed")) if isinstance(method, Mapping) else str(method)


def label_methods(methods: Sequence[Any]) -> list[str]:
    """Names; where one occurs twice, with the settings that differ."""
    names = [name_of(method) for method in methods]
    return [
        name if names.count(name) == 1 or isinstance(method, str) or is_composition(method) else describe_method(method)
        for name, method in zip(names, methods, strict=True)
    ]


def describe_method(method: Mapping[str, Any]) -> str:
    settings = [f"{name}={value}" for name, value in method.items() if name != "name"]
    return " ".join([name_of(method), *settings])
