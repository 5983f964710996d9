"""A problem by its name: `my_module:hospitals`, a Problem or a function that returns one."""

from __future__ import annotations

from functools import cache
from typing import Any

from fedkeel.errors import ExperimentError
from fedkeel.importing import Kind, Trust, look_up
from fedkeel.problems.problem import Problem

KIND = Kind(
    "problem",
    Problem,
    objects=True,
    makers=True,
    hint="write hospitals = fk.Problem(…), or def hospitals() -> fk.Problem: return fk.Problem(…)",
    error=ExperimentError,
)


def find_problem(name: str, trust: Trust = Trust.TYPED) -> Problem:
    """Import a problem by its name, if someone vouches for it; a function is called once."""
    found = look_up(name, KIND, trust)
    return found if isinstance(found, Problem) else _make(name, found)


@cache
def _make(name: str, maker: Any) -> Problem:
    made = maker()
    if not isinstance(made, Problem):
        raise ExperimentError(f"{name} returned {type(made).__name__}, not a Problem.", KIND.hint)
    return made
