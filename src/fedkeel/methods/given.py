"""Methods and networks as files, command lines and Python give them; what nobody vouches for stays a name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedkeel.core.method import Method
from fedkeel.errors import ExperimentError, UntrustedError
from fedkeel.importing import Trust
from fedkeel.methods import composition
from fedkeel.methods.named import NamedModel, named_method
from fedkeel.methods.registry import build
from fedkeel.models import check_name
from fedkeel.typed_values import show_value


def is_composition(given: Any) -> bool:
    """Whether it is a table of rules: parts of a method written out in full, not its name and hyper-parameters."""
    return isinstance(given, Mapping) and bool({"phases", "perturb", "gradient", "weights", "server"} & set(given))


def read_method(given: Any, trust: Trust) -> Method:
    """A method from itself, its composition or its name; where nobody vouches for the name, the name alone."""
    if isinstance(given, Method):
        return given
    if is_composition(given):
        return composition.load(given, trust)
    if not isinstance(given, str | Mapping):
        raise ExperimentError(f"a method is a name or a Method, not {show_value(given)}.", 'method="fedavg"')
    settings = {"name": given} if isinstance(given, str) else dict(given)
    name = str(settings.pop("name", "fedavg"))
    try:
        return build(name, settings, trust)
    except UntrustedError as error:
        return named_method(name, settings, error)


def read_model(given: Any, trust: Trust) -> Any:
    """A network's name as it is, if it is ours or vouched for."""
    if not isinstance(given, str) or ":" not in given:
        return given
    try:
        check_name(given, trust)
    except UntrustedError:
        return NamedModel(given)
    return given
