"""Optimisers of the clients by name: `optimizer = "adamw"` of an experiment, and the plug-ins `adamw+BASE` …"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from inspect import Parameter, Signature
from typing import Any, cast

from fedkeel.core.method import Method, Phase
from fedkeel.core.rule import Rule
from fedkeel.errors import ExperimentError, MethodError, require_known
from fedkeel.importing import Trust
from fedkeel.methods.composition import load_rule
from fedkeel.methods.named import NamedRule
from fedkeel.methods.rule_papers import papers_of_part
from fedkeel.rules import Adagrad, AdamW, DecayHere, Lion, LocalMomentum, Muon
from fedkeel.rules.optimisers import Optimiser
from fedkeel.typed_values import check_table, show_value, types_of

OPTIMISERS: dict[str, type[Optimiser] | None] = {
    "sgd": None, "momentum": LocalMomentum, "adamw": AdamW, "adagrad": Adagrad, "lion": Lion, "muon": Muon,
}  # fmt: skip
"""The optimisers by name; SGD, without momentum, needs no rule."""

RATES = ("lr", "weight_decay")
"""What other libraries give to the optimiser, and here is the experiment's."""

HINT = 'optimizer = "adamw", or [optimizer] with name = "adamw" and fields such as beta1 = 0.8'


def read_optimiser(given: Any, trust: Trust = Trust.TYPED) -> Rule | None:
    """An optimiser from itself, its name, or a table of its name and fields; None is SGD."""
    if given is None:
        return None
    if isinstance(given, Mapping) and "rule" in given:
        given = load_rule(given, trust)
    if isinstance(given, NamedRule):
        given.refuse()
    if isinstance(given, Rule):
        if not given.optimiser:
            raise ExperimentError(f"{type(given).__name__} is no optimiser.", "put it into the method's gradient chain")
        return given
    settings = dict(given) if isinstance(given, Mapping) else {"name": given}
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise ExperimentError(f"an optimizer is a name, or a table with one: {show_value(given)}", HINT)
    if name == "nesterov":
        raise ExperimentError("unknown optimizer: nesterov", 'name = "momentum" with nesterov = true')
    kind = OPTIMISERS[require_known(name, OPTIMISERS, "unknown optimizer", "optimizers", ExperimentError)]
    if kind is None:
        if settings:
            raise ExperimentError(
                f"optimizer sgd has no field: {next(iter(settings))}", 'with momentum it is name = "momentum"'
            )
        return None
    if foreign := next((word for word in settings if word in RATES), None):
        raise ExperimentError(f"optimizer {name} has no field: {foreign}", explain_rate(foreign))
    check_table(kind, settings, ExperimentError, f"optimizer {name}")
    return kind(**settings)


def explain_rate(word: str) -> str:
    return f"it is a key of the experiment: {word}, not optimizer.{word}"


def find_optimiser(method: Method) -> Rule | None:
    """The optimiser in a method's own chains, of the model that clients send."""
    chains = (phase.gradient for phase in method.phases if phase.trains and phase.uploads)
    return next((rule for chain in chains for rule in chain if rule.optimiser), None)


def give_optimiser(method: Method, rule: Rule | None) -> Method:
    """A method whose clients step with an optimiser, in every phase that trains; None leaves it as it is."""
    if rule is None:
        return method
    own = find_optimiser(method)
    if own is not None:
        raise MethodError(
            f"{method.name} has an optimiser of its own, {type(own).__name__}, and takes no second one.",
            "leave the optimizer out, or choose a method without one",
        )
    name = name_optimiser(rule)
    papers = tuple(dict.fromkeys((*papers_of_part(rule), *method.papers)))
    return replace(method.map_phases(lambda phase: equip(phase, rule)), name=f"{name}+{method.name}", papers=papers)


def equip(phase: Phase, rule: Rule | None) -> Phase:
    """A phase that ends in an optimiser, behind all but what stands behind the weight decay."""
    if rule is None or not phase.trains:
        return phase
    chain = list(phase.gradient)
    chain.insert([*(one == DecayHere() for one in chain), True].index(True), rule)
    return replace(phase, gradient=tuple(chain))


def name_optimiser(rule: Rule) -> str:
    known = (name for name, kind in OPTIMISERS.items() if kind is type(rule))
    return next(known, type(rule).__name__.lower())


# ---- plug-ins ------------------------------------------------------------------------------------------------------
def plug_in(name: str, kind: type[Optimiser]) -> Callable[..., Method]:
    """A function of a base and of the optimiser's fields, which gives the base that optimiser."""

    def plugged(base: Method, **settings: Any) -> Method:
        return give_optimiser(base, kind(**settings))

    types, keyword = types_of(cast(Any, kind)), Parameter.KEYWORD_ONLY
    words = [
        Parameter(one.name, keyword, default=one.default, annotation=types[one.name]) for one in fields(cast(Any, kind))
    ]
    base = Parameter("base", Parameter.POSITIONAL_OR_KEYWORD, annotation=Method)
    vars(plugged)["__signature__"] = Signature([base, *words], return_annotation=Method)
    plugged.__doc__ = f"The plug-in `{name}+BASE`: {kind.__name__} in place of the base's SGD."
    return plugged


PLUGINS = {name: plug_in(name, kind) for name, kind in OPTIMISERS.items() if kind is not None}
"""Each optimiser as a function of a method."""
