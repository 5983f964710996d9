"""The methods by name. Each is its paper's algorithm, spelled with rules.

`PLUGIN+BASE` puts a plug-in on any method: `specgradfilter+scaffold`, `fsa+fedspeed@released`, `adamw+fedsam`.
Several may follow each other; the one named first is applied last. A hyper-parameter goes to every part that has it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Any, cast

from fedkeel.core.method import Method
from fedkeel.errors import FedkeelError, MethodError, bind, nearest, require_known
from fedkeel.importing import Kind, Trust, look_up
from fedkeel.methods import (
    adaptive,
    averaged,
    averaging,
    correction,
    lookback,
    momentum,
    personalised,
    preconditioned,
    sharpness,
    spectral,
    weighting,
)
from fedkeel.methods.optimisers import PLUGINS as OPTIMISER_PLUGINS
from fedkeel.methods.rule_papers import papers_of_parts
from fedkeel.plugins import Named, find_plugin
from fedkeel.text import in_one_line
from fedkeel.typed_values import check_keys, read_values, types_of

FAMILIES = (
    averaging, correction, momentum, preconditioned, sharpness, lookback, spectral, adaptive, weighting, personalised
)  # fmt: skip
"""The modules whose `__all__` lists methods; each has a name of its own in the table of methods."""


def public_name(function: str) -> str:
    """`fedavg_ft` is the method fedavg-ft, `fedlesam_s_released` is fedlesam-s@released."""
    return function.replace("_released", "@released").replace("_", "-")


def with_named_base(make: Callable[..., Method]) -> Callable[..., Method]:
    """The same function, which also takes the name of a method for its base."""

    @wraps(make)
    def taking_names(*values: Any, **settings: Any) -> Method:
        try:
            given = inspect.signature(make).bind(*values, **settings)
        except TypeError:
            return make(*values, **settings)  # it says what is wrong
        if isinstance(base := given.arguments.get("base"), str):
            given.arguments["base"] = build(base)
        return make(*given.args, **given.kwargs)

    return taking_names


def with_ranges(family: Any, function: str, name: str) -> Callable[..., Method]:
    """The function, which from now on checks its hyper-parameters, whoever calls it."""
    make = getattr(family, function)
    signature = inspect.signature(make)

    @wraps(make)
    def checking_values(*values: Any, **settings: Any) -> Method:
        check_keys(settings, signature.parameters, MethodError, f"method {name}", "hyper-parameter")
        given = bind(signature, values, settings, f"method {name}", MethodError)
        given.arguments.update(_read(name, make, given.arguments))
        return make(*given.args, **given.kwargs)

    setattr(family, function, checking_values)
    return checking_values


def _read(name: str, make: Callable[..., Method], given: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters in their final form; one that is not of its type or in its range is refused."""
    read = read_values(given, types_of(make), MethodError, f"method {name}", _defaults(make))
    return {word: tuple(value) if isinstance(value, list) else value for word, value in read.items()}  # to be hashed


@cache
def _defaults(make: Callable[..., Method]) -> dict[str, Any]:
    parameters = inspect.signature(make).parameters.items()
    return {word: one.default for word, one in parameters if one.default is not inspect.Parameter.empty}


METHODS: dict[str, Callable[..., Method]] = Named(
    "methods",
    {
        (name := public_name(function)): with_ranges(family, function, name)
        for family in FAMILIES
        for function in family.__all__
    },
)
METHODS["specgradfilter"] = with_named_base(METHODS["specgradfilter"])
setattr(spectral, "specgradfilter", METHODS["specgradfilter"])  # noqa: B010 - where pickle looks for it

PLUGINS: dict[str, Callable[..., Method]] = {
    "specgradfilter": with_ranges(spectral, "filter_gradients", "specgradfilter"),
    "fedfft": with_ranges(spectral, "filter_perturbations", "fedfft"),
    "fsa": with_ranges(adaptive, "with_fsa", "fsa"),
    "feddecorr": with_ranges(correction, "decorrelate", "feddecorr"),
    "smoothed": with_ranges(correction, "smooth_labels", "smoothed"),
    "ema": with_ranges(averaged, "ema", "ema"),
    "swa": with_ranges(averaged, "swa", "swa"),
    **OPTIMISER_PLUGINS,
}
"""What may stand before a `+`: functions of a method that give a method."""

METHOD = Kind(
    "method",
    Method,
    objects=True,
    makers=True,
    hint="write mine = fk.method(…), or def mine(…) -> fk.Method: return fk.method(…)",
    error=MethodError,
)


def build(name: str, settings: Mapping[str, Any] | None = None, trust: Trust = Trust.TYPED) -> Method:
    """The method of that name, with some of its hyper-parameters set; `trust` says who vouches for names in them.

    `module:name` is one of the user's own, a function or a Method; `specgradfilter+scaffold` puts a plug-in on a base.
    """
    makers, known = makers_of(name, trust), settings_of(name, trust)
    settings = dict(settings or {})
    if isinstance(settings.get("base"), str) and METHODS["specgradfilter"] in makers:
        settings["base"] = build(settings["base"], trust=trust)
    check_keys(settings, known, MethodError, f"method {name}", "hyper-parameter")
    made = _make(name, makers[-1], settings)
    for plugin in reversed(makers[:-1]):
        made = _make(name, plugin, settings, made)
    return made


def makers_of(name: str, trust: Trust = Trust.TYPED) -> list[Callable[..., Method]]:
    """The functions behind a name: plug-ins in the order in which they are written, then the base."""
    *plugins, base = words = name.split("+")
    for word in plugins:
        if word in METHODS and word not in PLUGINS:
            fronts = "+".join([one for one in plugins if one in PLUGINS])
            hint = f"plug-ins stand before the method: {fronts}+{word}" if fronts else f"write {word}, or {base}"
            raise MethodError(f"{word} is a method, not a plug-in, and stands before a +: {name}", hint)
        if words.count(word) > 1:
            raise MethodError(f"{word} stands twice in {name}.", "use it once: " + "+".join(dict.fromkeys(words)))
        require_known(word, PLUGINS, "unknown plug-in", "plug-ins", MethodError)
    return [*(PLUGINS[word] for word in plugins), _maker(base, trust)]


def settings_of(name: str, trust: Trust = Trust.TYPED) -> dict[str, Any]:
    """The hyper-parameters behind a name, with their defaults."""
    makers = reversed(makers_of(name, trust))
    return {word: default for make in makers for word, default in hyperparameters(make).items()}


def _maker(name: str, trust: Trust) -> Callable[..., Method]:
    if ":" in name:
        return _own(name, trust)
    if name in METHODS:
        return METHODS[name]
    if name in PLUGINS:
        raise MethodError(f"{name} is a plug-in, not a method of its own.", f"put it on one: {name}+fedsam")
    if (plugin := find_plugin("methods", name)) is not None:
        return _own(plugin.value, min(trust, Trust.INSTALLED))
    if not name:
        raise MethodError("no method is named behind the last +.", "put plug-ins on one: ema+fedavg")
    hint = nearest(name, METHODS, "methods")
    if not hint.startswith("did you mean") and name.replace(".", "_").isidentifier():
        hint = f"`fedkeel methods` lists them; one of your own is written module:name, such as {name}:name"
    raise MethodError(f"unknown method: {name}", hint)


def _own(name: str, trust: Trust) -> Callable[..., Method]:
    """The user's own function of that name; a Method is made by a function without hyper-parameters."""
    found = look_up(name, METHOD, trust)
    if isinstance(found, Method):

        def make() -> Method:
            return found

        make.__module__ = name.partition(":")[0]  # where its card looks for its family
        return make
    return cast(Callable[..., Method], found)


def _make(name: str, make: Callable[..., Method], settings: Mapping[str, Any], *base: Method) -> Method:
    own = hyperparameters(make)
    mine = _read(name, make, {word: value for word, value in settings.items() if word in own})
    try:
        inspect.signature(make).bind(*base, **mine)
    except TypeError as error:
        hint = f"its hyper-parameters: {', '.join(own)}" if own else "it has none"
        raise MethodError(f"method {name} refused its hyper-parameters: {error}", hint) from error
    try:
        made = make(*base, **mine)
    except FedkeelError:
        raise
    except Exception as error:  # a function of the user's may do anything
        place, word = make.__module__, getattr(make, "__qualname__", "…")
        hint = f"`python -c 'import {place}; {place}.{word}()'` shows where"
        raise MethodError(f"method {name} failed: {type(error).__name__}: {in_one_line(error)}", hint) from error
    if not isinstance(made, Method):
        raise MethodError(f"{name} returned {type(made).__name__}, not a Method", "return fk.method(…)")
    return made


def papers_of(method: Method) -> tuple[str, ...]:
    """The keys of the papers to cite: the method's own, and unless one of METHODS lists them, those of its rules."""
    known = method.name.rpartition("+")[2] in METHODS
    return tuple(dict.fromkeys((*method.papers, *(() if known else papers_of_parts(method)))))


def hyperparameters(make: Callable[..., Method]) -> dict[str, Any]:
    """Names and defaults, from the function's signature; the base of a plug-in is none."""
    found = inspect.signature(make).parameters.items()
    return {name: p.default for name, p in found if not (make in PLUGINS.values() and name == "base")}
