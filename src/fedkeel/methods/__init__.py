"""The methods by name. Each is its paper's algorithm, spelled with rules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fedkeel.errors import MethodError, nearest
from fedkeel.importing import import_name
from fedkeel.method import Method
from fedkeel.methods.averaging import fedavg, fedavgm, uniform
from fedkeel.methods.correction import fedcm, feddyn, fedprox, scaffold
from fedkeel.methods.sharpness import fedsam, fedsam_d, fedsam_s, mofedsam
from fedkeel.methods.spectral import fedfft, fedfft_d, fedfft_s, specgradfilter

METHODS: dict[str, Callable[..., Method]] = {
    "fedavg": fedavg,
    "uniform": uniform,
    "fedavgm": fedavgm,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "feddyn": feddyn,
    "fedcm": fedcm,
    "fedsam": fedsam,
    "mofedsam": mofedsam,
    "fedsam-s": fedsam_s,
    "fedsam-d": fedsam_d,
    "fedfft": fedfft,
    "fedfft-s": fedfft_s,
    "fedfft-d": fedfft_d,
    "specgradfilter": specgradfilter,
}


def build(name: str, settings: Mapping[str, Any] | None = None) -> Method:
    """The method of that name, or `module:function` of the user's own, with some of its hyper-parameters set."""
    make = import_name(name, "method") if ":" in name else METHODS.get(name)
    if make is None:
        raise MethodError(f"unknown method: {name}", nearest(name, METHODS, "methods"))
    settings = dict(settings or {})
    known = hyperparameters(make)
    for word in settings:
        if word not in known:
            hint = nearest(word, known, "hyper-parameters") if known else "it has none"
            raise MethodError(f"method {name} has no hyper-parameter: {word}", hint)
    try:
        made = make(**settings)
    except TypeError as error:
        raise MethodError(f"method {name} refused its hyper-parameters: {error}") from error
    if not isinstance(made, Method):
        raise MethodError(f"{name} returned {type(made).__name__}, not a Method", "return fk.method(…)")
    return made


def hyperparameters(make: Callable[..., Method]) -> dict[str, Any]:
    """Names and defaults, from the function's signature."""
    return {name: parameter.default for name, parameter in inspect.signature(make).parameters.items()}


__all__ = ["METHODS", "build", "hyperparameters"]
