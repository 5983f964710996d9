"""Laws over all methods: those that together use every rule and objective run by default, the others as slow tests."""

from functools import cache

import pytest

from fedkeel.methods import METHODS, build


@cache
def few() -> frozenset[str]:
    """Methods that together have every kind of rule, objective and phase; those that bring most are taken first."""
    left = {name: kinds_of(name) for name in METHODS}
    chosen: set[str] = set()
    while any(left.values()):
        best = max(left, key=lambda name: len(left[name]))
        chosen.add(best)
        gained = left[best]
        left = {name: kinds - gained for name, kinds in left.items()}
    return frozenset(chosen)


def kinds_of(name: str) -> frozenset[object]:
    method = build(name)
    places = {(type(rule), place) for place in ("server", "personal") for rule in getattr(method, place)}
    places |= {(type(rule), chain) for phase in method.all_phases for chain, rules in phase.chains for rule in rules}
    return frozenset({*places, type(method.weights), *map(type, method.objectives), len(method.phases)})


def few_by_default(names=METHODS):
    """Parameters of a law: names of methods, all but a few of them marked slow."""
    return [name if name in few() else pytest.param(name, marks=pytest.mark.slow) for name in names]
