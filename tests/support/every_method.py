"""Laws over all methods: those that together use every rule and objective run by default, the others as slow tests."""

from functools import cache

import pytest

from fedkeel.core.rule import LOCAL_STAGES
from fedkeel.methods import METHODS, build


@cache
def few(kinds) -> frozenset[str]:
    """Methods that together have every one of these kinds; those that bring most are taken first."""
    left = {name: kinds(name) for name in METHODS}
    chosen: set[str] = set()
    while any(left.values()):
        best = max(left, key=lambda name: len(left[name]))
        chosen.add(best)
        gained = left[best]
        left = {name: kinds - gained for name, kinds in left.items()}
    return frozenset(chosen)


def kinds_of(name: str) -> frozenset[object]:
    """Kinds of rules, with the place where they stand, of objectives and of phases."""
    method = build(name)
    places = {(type(rule), place) for place in ("server", "personal") for rule in getattr(method, place)}
    places |= {(type(rule), chain) for phase in method.all_phases for chain, rules in phase.chains for rule in rules}
    return frozenset({*places, type(method.weights), *map(type, method.objectives), len(method.phases)})


def local_kinds_of(name: str) -> frozenset[object]:
    """Kinds of rules and objectives that an engine calls."""
    method = build(name)
    called = {type(rule) for rule in method.local_rules if rule.stages & LOCAL_STAGES}
    return frozenset({*called, *map(type, method.objectives), len(method.phases)})


def heard_kinds_of(name: str) -> frozenset[object]:
    """Kinds of rules that make something of the server's message, and of objectives."""
    method = build(name)
    heard = {type(rule) for rule in method.local_rules if rule.stages & {"broadcast", "start"}}
    return frozenset({*heard, *map(type, method.objectives), len(method.phases)})


def few_by_default(names=METHODS, kinds=kinds_of):
    """Parameters of a law: names of methods, all but a few of them marked slow."""
    return [name if name in few(kinds) else pytest.param(name, marks=pytest.mark.slow) for name in names]


def few_of_engines():
    """Parameters of a law about engines, which know nothing of the server's rules."""
    return few_by_default(kinds=local_kinds_of)


def few_of_joint_engines():
    """Parameters of a law about runs in one stack, in which every client has a message of its own."""
    return few_by_default(kinds=heard_kinds_of)
