"""Every hyper-parameter says what it may be, and nothing else gets in: one line and a hint, when it is given."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from math import inf, nan, nextafter
from typing import Annotated, Any, get_args, get_origin

import numpy as np
import pytest
from annotations import has_range
from for_each import for_each

import fedkeel as fk
from fedkeel.core.method import Method, Phase
from fedkeel.errors import FedkeelError, MethodError
from fedkeel.methods import METHODS, PLUGINS, build, hyperparameters, sharpness
from fedkeel.ranges import AnyFinite, Count, NonNegative, OpenShare, Range, Share
from fedkeel.rules import RULES
from fedkeel.typed_values import find_fault, types_of

ODD = (-1, -0.5, nan, inf, -inf, 1e300, 2**64, 10**400, 10**5000, True, "a", "", [], [1], [nan], {}, None, fk.Sam, b"a")
BASES = {plugin: f"{plugin}+fedsam" for plugin in PLUGINS}
NEEDED = {"inner": fk.ClipNorm(1.0), "patterns": "*", "top": 1, "batches": 2, "warmup": 3}
"""What to give for fields without a default; 0.5 for the others."""


def usual(kind):
    return {f.name: NEEDED.get(f.name, 0.5) for f in fields(kind) if f.default is f.default_factory is MISSING}


def makers():
    """Everything that takes hyper-parameters: its name, the types of its fields, how it is made with one changed."""
    for name, kind in RULES.items():
        known = {field.name for field in fields(kind)}
        types = {word: wanted for word, wanted in types_of(kind).items() if word in known}
        yield name, types, lambda change, kind=kind: kind(**usual(kind) | change)
    for name, make in (METHODS | PLUGINS).items():
        types = {word: wanted for word, wanted in types_of(make).items() if word in hyperparameters(make)}
        yield name, types, lambda change, name=name: build(BASES.get(name, name), change)
        base = () if make not in PLUGINS.values() else (METHODS["fedsam"](),)
        yield f"{name}(…)", types, lambda change, make=make, base=base: make(*base, **change)
    plain = {"name": "m", "phases": (Phase(),), "weights": fk.Uniform()}
    for kind, given in ((Phase, {}), (Method, plain)):
        types = types_of(kind)
        yield kind.__name__, types, lambda change, kind=kind, given=given: kind(**given | change)


CASES = [(name, word, wanted, make) for name, types, make in makers() for word, wanted in types.items()]


def caught(kind, make, change):
    """What is raised, if anything is."""
    try:
        make(change)
    except kind as error:
        return error
    return None


@pytest.mark.slow
def test_what_is_given_is_taken_or_refused_with_one_line():
    for name, word, _, make in CASES:
        for value in ODD:
            error = caught(FedkeelError, make, {word: value})
            if error is not None:
                assert "\n" not in error.message, (name, word)
                assert len(error.message) < 400, (name, word)
                assert error.hint, (name, word)


def test_every_number_has_its_range_beside_it():
    assert [(name, word) for name, word, wanted, _ in CASES if not has_range(wanted)] == []


def ranges_of(wanted: Any) -> list[tuple[type, Range]]:
    if get_origin(wanted) is Annotated:
        kind, *notes = get_args(wanted)
        return [(kind, note) for note in notes if isinstance(note, Range)]
    return [found for one in get_args(wanted) for found in ranges_of(one)]


def test_what_lies_outside_of_its_range_is_refused():
    for name, word, wanted, make in CASES:
        for kind, known in ranges_of(wanted):
            under = known.low if known.above else known.low - 1 if kind is int else nextafter(known.low, -inf)
            over = known.high if known.below else known.high + 1 if kind is int else nextafter(known.high, inf)
            for value in (under, over, nan, inf, -inf, True, "1", "a"):
                error = caught(MethodError, make, {word: value})
                assert error is not None, (name, word, value)
                assert word in error.message, (name, word, value)


@for_each(
    ("make", "words"),
    [
        (lambda: fk.Sam("a"), "rho of rule Sam must be a number: 'a'"),
        (lambda: fk.Sam([0.1]), "rho of rule Sam must be a number: [0.1]"),
        (lambda: fk.Sam(True), "rho of rule Sam must be a number: True"),
        (lambda: fk.Sam(-1), "rho of rule Sam must be at least 0: -1"),
        (lambda: fk.Sam(10**30), "rho of rule Sam must be written as 1e+30"),
        (lambda: fk.Sam(nan), "rho of rule Sam must be finite: nan"),
        (lambda: fk.HighPass(2), "ratio of rule HighPass must lie in [0, 1]: 2"),
        (lambda: fk.ControlVariates(scale=-1), "scale of rule ControlVariates must be at least 0"),
        (lambda: fk.MeasureNorm(0), "batches of rule MeasureNorm must be at least 1"),
        (lambda: fk.ServerMomentum(0.9, "emma"), "form of rule ServerMomentum must be heavy-ball, ema or nesterov"),
        (lambda: build("fedavgm", {"server_lr": -1}), "server_lr of method fedavgm must be at least 0: -1"),
        (lambda: build("fedlc", {"tau": -1}), "tau of method fedlc must be at least 0: -1"),
        (lambda: build("fedlc", {"tau": nan}), "tau of method fedlc must be finite"),
        (lambda: METHODS["fedlc"](tau=-1), "tau of method fedlc must be at least 0: -1"),
        (lambda: METHODS["fedlc"](-1), "tau of method fedlc must be at least 0: -1"),
        (lambda: METHODS["fedgloss@released"](warmup=-1), "warmup of method fedgloss@released must be at least 0: -1"),
        (lambda: sharpness.fedgloss_released(warmup=-1), "warmup of method fedgloss@released must be at least 0: -1"),
        (lambda: METHODS["specgradfilter"](2, "fedavg"), "ratio of method specgradfilter must lie in [0, 1]: 2"),
        (lambda: PLUGINS["fedfft"](METHODS["fedsam"](), nan), "of method fedfft must be finite: nan"),
        (lambda: build("fedgloss@released", {"warmup": -1}), "warmup of method fedgloss@released must be at least 0"),
        (lambda: build("fedadam", {"tau": 0}), "tau of method fedadam must be above 0"),
        (lambda: fk.method("m", weights=fk.Uniform(), server_lr=-1), "server_lr of a method must be at least 0"),
        (lambda: Phase(batches=0), "batches of a phase must be at least 1"),
        (lambda: Phase(epochs=nan), "epochs of a phase must be finite"),
        (lambda: Phase(trains=1), "trains of a phase must be true or false"),
        (lambda: fk.Distilled(0), "temperature of objective Distilled must be above 0"),
    ],
)
def test_the_cases_that_were_once_let_in(make, words):
    with pytest.raises(MethodError) as refused:
        make()
    assert words in refused.value.message


def test_a_subclass_with_a_post_init_of_its_own_is_held_first():
    @dataclass(frozen=True)
    class Own(fk.Rule):
        mu: float
        times: Count = 1

        def __post_init__(self):
            assert self.mu < 1
            assert self.times > 0

    assert Own(0.5).mu == 0.5
    for wrong in ({"mu": "a"}, {"mu": nan}, {"mu": 0.5, "times": 0}, {"mu": 0.5, "times": 0.5}):
        with pytest.raises(MethodError, match="of rule Own must be"):
            Own(**wrong)


def test_numbers_of_numpy_and_lists_become_pythons_own():
    sam = fk.Sam(np.float32(0.5))
    assert (type(sam.rho), sam) == (float, fk.Sam(0.5))
    assert fk.OnlyLayers(["a", "b"]) == fk.OnlyLayers(("a", "b"))


@for_each(
    ("value", "wanted", "fault"),
    [
        (0, NonNegative | None, ""),
        (None, NonNegative | None, ""),
        (0, Count | tuple[Count, Count], "must be at least 1"),
        ((1, 0), Count | tuple[Count, Count], "must be at least 1"),
        ([1, 2], Count | tuple[Count, Count], ""),
        ([0.5, nan], tuple[float, ...], "must be finite"),
        (10**400, AnyFinite, "must be finite"),
        (10**12, Count, "must be at most 1000000000"),
        (1, Share, ""),
        (1, OpenShare, "must lie in (0, 1)"),
        (-1, str | NonNegative, "must be at least 0"),
        ("x", str | NonNegative, ""),
        ({"a": inf}, dict[str, float], "must be finite"),
    ],
)
def test_ranges_inside_of_other_types(value, wanted, fault):
    assert find_fault(value, wanted) == fault
