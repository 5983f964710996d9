"""Check a method, or a rule in the place where it stands, against all laws."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from fedkeel.core.method import Method
from fedkeel.core.method import method as compose
from fedkeel.core.rule import Rule, Weighting
from fedkeel.errors import require_known
from fedkeel.methods import build
from fedkeel.rules import BySize
from fedkeel.testing.broken_law import hold
from fedkeel.testing.laws import LAWS
from fedkeel.testing.trial import Trial, as_method, built, difference, train_whole

NEUTRAL, ROUNDING = 1e-12, 1e-6
Given = Method | Callable[..., Method] | str


def check_method(
    method: Given,
    *,
    neutral: Mapping[str, Any] | None = None,
    base: Given = "fedavg",
    skip: Collection[str] = (),
) -> None:
    """Check a method against every law of `fedkeel.testing.laws`; the error names the first that is broken.

    `method` is a Method, a function that returns one, or a name. With `neutral`, hyper-parameters of that function,
    the method must be `base`: neutral={"mu": 0.0}. `skip` names laws that a method breaks on purpose.
    """
    for name in skip:
        require_known(name, LAWS, "unknown law", "laws")
    trial = Trial(as_method(method))
    for name, law in LAWS.items():
        if name not in skip:
            law(trial)
    if neutral is not None:
        check_neutral(make_neutral(method, neutral), as_method(base), str(dict(neutral)))


def check_rule(
    rule: Rule, *, neutral: Rule | None = None, place: str | None = None, skip: Collection[str] = ()
) -> None:
    """Check a rule: a method of this rule alone obeys every law, and with `neutral` in its place is FedAvg.

    A weighting stands in weights, a rule that climbs in perturb, any other in gradient, or in the `place` given.
    """
    name, options = type(rule).__name__, getattr(type(rule), "__dataclass_params__", None)
    hold(isinstance(rule, Rule), f"{rule!r} is no rule.", "a rule is an object of a subclass of fk.Rule")
    frozen = options is not None and options.frozen
    hold(frozen, f"rule {name} is no frozen dataclass.", "@dataclass(frozen=True) above the class")
    acts = bool(rule.stages) or isinstance(rule, Weighting)
    hold(acts, f"rule {name} does nothing: it overrides no stage.", "see docs/guides/extending.md")
    place = place or ("weights" if isinstance(rule, Weighting) else "perturb" if rule.needs_gradient else "gradient")
    check_method(stand(rule, place), skip=skip)
    if neutral is not None:
        check_neutral(stand(neutral, place), build("fedavg"), repr(neutral))


def stand(rule: Rule, place: str) -> Method:
    """The method of one rule."""
    return built(lambda: compose(type(rule).__name__, **{"weights": BySize(), place: rule}))  # type: ignore[arg-type]


def make_neutral(method: Given, settings: Mapping[str, Any]) -> Method:
    if isinstance(method, str):
        return build(method, settings)
    hold(not isinstance(method, Method), "a Method has no hyper-parameters to set.", "give the function that makes it")
    return as_method(method(**settings))  # type: ignore[operator]


def check_neutral(one: Method, base: Method, words: str) -> None:
    """Check that a method with neutral values is its base."""
    far = difference(train_whole(one), train_whole(base))
    hold(
        far < NEUTRAL,
        f"method {one.name!r} with {words} is not {base.name!r}: their models differ by {far:.2g}.",
        "the neutral value of a hyper-parameter switches its idea off"
        if far > ROUNDING
        else "that is rounding: the kit trains in float64, and something here is in float32, such as `.float()`",
    )
