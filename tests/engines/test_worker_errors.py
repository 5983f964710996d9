"""What a worker process makes of errors of classes of the user's own: the parent is told each of them."""

import pickle

import pytest
from for_each import for_each

from fedkeel.engines.worker import Desk


class NoText(Exception):
    def __str__(self):
        raise ValueError("no text")


class Frozen(Exception):
    def __setattr__(self, name, value):
        raise AttributeError("frozen")


class AnotherThing(Exception):
    def __reduce__(self):
        return dict, ()


class Leaving(Exception):
    def __reduce__(self):
        raise SystemExit(3)


class TwoArguments(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


TOLD = {
    "NoText: <exception str": NoText("x"),
    "Frozen: cold": Frozen("cold"),
    "AnotherThing: else": AnotherThing("else"),
    "Leaving: home": Leaving("home"),
    "TwoArguments: one and two": TwoArguments("one", "two"),
}


@for_each("told", TOLD)
def test_an_error_that_cannot_travel_is_told_in_its_words(told):
    def fail():
        raise TOLD[told]

    answer = pickle.loads(pickle.dumps(Desk().answer("call", [fail])))
    with pytest.raises(RuntimeError, match=f"^{told}"):
        raise answer
