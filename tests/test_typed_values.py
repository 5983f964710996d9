"""Values that are not what they should be: one line that names the key, what it got and what it wants; and a hint."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated

import numpy as np
import pytest
from for_each import for_each

import fedkeel as fk
from fedkeel.cli.main import call
from fedkeel.data.partition.registry import load_partition
from fedkeel.errors import ExperimentError, MethodError, RequestError
from fedkeel.importing import Trust
from fedkeel.methods import METHODS, PLUGINS, build, composition, hyperparameters
from fedkeel.problems.policy import Evaluation
from fedkeel.ranges import Count, Share
from fedkeel.rules import RULES
from fedkeel.runs.experiment import Experiment
from fedkeel.studies.sweep import Sweep
from fedkeel.typed_values import find_fault, read_line, types_of

if TYPE_CHECKING:
    from nowhere import Number

OWN = """
from dataclasses import dataclass
import fedkeel as fk

@dataclass(frozen=True)
class Pull(fk.Rule):
    mu: float

class Outer:
    Inner = Pull

def pulled(mu: float = 0.1):
    return fk.method("pulled", gradient=Pull(mu), weights=fk.BySize())

mine = pulled(0.2)
number = 3
"""


def experiment(**changes):
    return Experiment(**{"dataset": "digits", "model": "logistic"} | changes)


def refused(error, *words):
    """Refused with all these words in one line, and a hint."""
    assert all(word in error.message for word in words), error.message
    assert "\n" not in error.message
    assert error.hint
    return True


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with modules of the user's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in {
        "own_code": OWN,
        "own_broken": "def f(:",
        "own_raising": "1 / 0",
        "own_leaving": "import sys; sys.exit('bye')",
        "own_needing": "import no_such_module",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)


# ---- keys of an experiment ----
@for_each(
    ("key", "value"),
    [
        ("steps", 2.5),
        ("epochs", True),
        ("epochs", [1, 2, 3]),
        ("epochs", [1, "a"]),
        ("dataset", 3),
        ("dataset", [1]),
        ("problem", 3),
        ("model", 3),
        ("augment", 3),
        ("participants", 3),
        ("participants", "ab"),
        ("participants", [["a"]]),
        ("participants", [[True]]),
        ("init", 3),
        ("evaluation", 3),
        ("evaluation", {"tune": -3}),
        ("evaluation", {"tune": "x"}),
        ("evaluation", {"last": "x"}),
        ("lr", True),
        ("lr", "fast"),
        ("seed", True),
        ("seed", 1.0),
        ("seed", 2**64),
        ("seed", -(2**63)),
        ("partition_seed", 2**63),
    ],
)
def test_a_value_of_the_wrong_type_names_its_key(key, value):
    with pytest.raises(ExperimentError) as caught:
        experiment(**{key: value})
    assert refused(caught.value, key, "must ")


def test_seeds_of_the_range_are_different_experiments():
    assert len({experiment(seed=seed).fingerprint() for seed in (0, -1, 1, 2**63 - 1, -(2**63) + 1)}) == 5


def test_numbers_of_numpy_are_numbers():
    given = experiment(
        lr=np.float32(0.5), rounds=np.int64(3), seed=np.uint8(2), epochs=np.array([1, 2]), participants=[range(2)] * 3,
        evaluation={"tune": np.bool_(True)}, method={"name": "fedsam", "rho": np.float64(0.1)},
    )  # fmt: skip
    plain = experiment(
        lr=0.5, rounds=3, seed=2, epochs=(1, 2), participants=[[0, 1]] * 3,
        evaluation={"tune": True}, method={"name": "fedsam", "rho": 0.1},
    )  # fmt: skip
    assert given == plain
    assert type(given.rounds) is int
    assert type(given.lr) is float


def test_items_of_tables_are_of_their_type():
    assert find_fault({"a": "x"}, dict[str, float]) == "must be a table of numbers"
    assert find_fault({"a": None, "b": 1}, dict[str, float | None]) == ""
    assert find_fault([[1, "x"]], list[list[float]]) == "must be a list of lists of numbers"
    assert find_fault({"a": -1}, Mapping[str, Share]) == "must lie in [0, 1]"
    assert find_fault("x", Share | int | None) == "must be a number, or a whole number"


# ---- tables ----
@dataclass(frozen=True)
class Line:
    name: str
    count: Count
    scores: dict[str, float] = field(default_factory=dict)


@for_each(
    ("load", "unknown", "lacking"),
    [
        (composition.load_rule, {"rule": "Sam", "rh": 1}, {"rule": "Sam"}),
        (composition.load_objective, {"objective": "calibrated", "ta": 1}, None),
        (load_partition, {"kind": "dirichlet", "alpa": 1}, {"kind": "dirichlet"}),
        (Evaluation.load, {"modle": "local"}, None),
        (lambda data: experiment(evaluation=data), {1: 2}, None),
        (lambda data: build("fedsam", data), {"rh": 1}, None),
        (composition.load, {"name": "mine", "gradint": []}, None),
        (lambda data: composition.load({"phases": [data]}), {"epoch": 1}, None),
        (lambda data: experiment().with_(**data), {"epoch": 1}, None),
        (lambda data: Experiment.load({"dataset": "digits", **data}), {"epoch": 1}, None),
        (Sweep.load, {"methods": {"fedavg": {}}, "buget": 1}, None),
    ],
)
def test_tables_are_refused_in_the_same_words(load, unknown, lacking):
    word = list(unknown)[-1]
    with pytest.raises(RequestError, match=rf"^.* has no [a-z-]+: {word}\n\nhint: (did you mean|known )") as caught:
        load(unknown)
    assert refused(caught.value)
    if lacking is not None:
        with pytest.raises(RequestError, match=r"^.* lacks: .*\n\nhint: its fields: "):
            load(lacking)


@for_each(
    ("data", "message"),
    [
        ([1], "it must be a table: [1]"),
        ({}, "it lacks: name, count"),
        ({"name": "a", "count": 0}, "count must be at least 1: 0"),
        ({"name": 1, "count": 1}, "name must be a text: 1"),
        ({"name": "a", "count": 1, "scores": {"b": "c"}}, "scores must be a table of numbers: {'b': 'c'}"),
    ],
)
def test_a_line_that_is_not_of_its_dataclass_is_refused(data, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        read_line(Line, data)


def test_a_line_of_a_later_version_is_read():
    assert read_line(Line, {"name": "a", "count": 2, "added": True}) == {"name": "a", "count": 2}


# ---- methods and rules ----
SAM = {"rule": "Sam", "rho": 0.1}


@for_each(
    ("method", "words"),
    [
        ({"perturb": 3}, ["perturb", "3"]),
        ({"perturb": "Sam"}, ["perturb", "Sam"]),
        ({"perturb": ["Sam"]}, ["rule", "Sam"]),
        ({"perturb": [[SAM]]}, ["rule"]),
        ({"weights": "Uniform"}, ["rule", "Uniform"]),
        ({"perturb": [{"rule": "Sam", "rho": "a"}]}, ["rho of rule Sam", "a number", "'a'"]),
        ({"perturb": [{"rule": "Sam", "rho": True}]}, ["rho of rule Sam", "a number", "True"]),
        ({"perturb": [{"rule": "On", "patterns": "fc", "inner": 3}]}, ["inner of rule On", "3"]),
        ({"perturb": [{"rule": "builtins:print"}]}, ["builtins:print", "part of Python, not a rule"]),
        ({"perturb": [SAM], "name": ""}, ["name"]),
        ({"perturb": [SAM], "name": 3}, ["name", "3"]),
        ({"perturb": [SAM], "server_lr": "a"}, ["server_lr", "a number"]),
        ({"perturb": [SAM], "server": 3}, ["server", "3"]),
        ({"perturb": [SAM], "final": 3}, ["phase", "3"]),
        ({"phases": 3}, ["phases", "3"]),
        ({"phases": [3]}, ["phase", "3"]),
        ({"phases": [{"batches": "a"}]}, ["batches of a phase", "a whole number"]),
        ({"name": "fedsam", "rho": "abc"}, ["rho of method fedsam", "a number", "'abc'"]),
        ({"name": "fedsam", "rho": True}, ["rho of method fedsam", "a number"]),
        ({"name": "fsa+fedsam", "top": 1.5}, ["top", "a whole number"]),
        ({"name": "plgu", "head": "fc"}, ["head of method plgu", "a list of texts"]),
    ],
)
def test_a_wrong_part_of_a_method_is_named(method, words):
    with pytest.raises(MethodError) as caught:
        experiment(method=method)
    assert refused(caught.value, *words)


def test_an_empty_list_is_no_method():
    with pytest.raises(ExperimentError) as caught:
        experiment(method=[])
    assert refused(caught.value, "a method is", "[]")


def test_a_rule_alone_is_a_chain_of_one():
    sam, uniform = fk.Sam(0.1), fk.Uniform()
    made = fk.method("m", perturb=sam, weights=uniform, papers="sam")
    assert made == fk.method("m", perturb=[sam], weights=uniform, papers=["sam"])
    assert made == composition.load({"name": "m", "perturb": SAM, "weights": {"rule": "Uniform"}, "papers": ["sam"]})


@pytest.mark.parametrize("wrong", [3, "Sam", fk.Sam, [fk.Sam], ["Sam"]])
@pytest.mark.parametrize("part", ["perturb", "gradient", "server", "personal"])
def test_what_is_no_rule_is_refused(part, wrong):
    with pytest.raises(MethodError) as caught:
        fk.method("m", weights=fk.Uniform(), **{part: wrong})
    assert refused(caught.value, part, "Rule")


def test_annotations_say_what_the_defaults_are():
    """The check knows the type of every field and hyper-parameter of the library, and every default fits its own."""
    for made in [*RULES.values(), *METHODS.values(), *PLUGINS.values(), Experiment, Evaluation]:
        if isinstance(made, type):
            defaults = {field.name: field.default for field in fields(made)}
        else:
            defaults = hyperparameters(made)
        types = types_of(made)
        assert set(defaults) <= set(types), made
        for name, default in defaults.items():  # <: there is none
            assert repr(default).startswith("<") or not find_fault(default, types[name]), (made, name)


def test_annotations_that_only_a_type_checker_sees_refuse_nothing():
    @dataclass(frozen=True)
    class Odd(fk.Rule):
        mu: "Number"

    assert types_of(Odd) == {}
    assert find_fault("x", Annotated[int, {"unhashable": []}]) == ""


# ---- the user's own code ----
@pytest.mark.parametrize(
    ("name", "words", "hint"),
    [
        ("./own_code:pulled", ["module:name", "./own_code:pulled"], "own_code:pulled"),
        ("./own_code.py:pulled", ["module:name"], "own_code:pulled"),
        (":pulled", ["module:name", ":pulled"], "my_module:pulled"),
        ("own_code:", ["module:name", "own_code:"], "own_code:name"),
        ("own_code.py:pulled", ["own_code.py"], "write own_code:pulled"),
        ("own_broken:f", ["own_broken", "SyntaxError", "line 1"], "import own_broken"),
        ("own_raising:f", ["own_raising", "ZeroDivisionError"], "import own_raising"),
        ("own_leaving:f", ["own_leaving", "bye"], "import own_leaving"),
        ("own_needing:f", ["own_needing", "no_such_module"], "import own_needing"),
        ("own_nowhere:f", ["own_nowhere"], "is own_nowhere.py in the current folder"),
        ("own_code:puled", ["own_code", "puled"], "'pulled'"),
        ("own_code:number", ["own_code:number", "int"], "fk.method"),
    ],
)
def test_code_that_cannot_be_had_is_named_with_the_reason(own, name, words, hint):
    with pytest.raises(RequestError) as caught:
        build(name)
    assert refused(caught.value, *words)
    assert hint in caught.value.hint


def test_a_method_object_is_a_method_without_hyperparameters(own):
    assert build("own_code:mine") == build("own_code:pulled", {"mu": 0.2})
    with pytest.raises(MethodError, match="no hyper-parameter: mu"):
        build("own_code:mine", {"mu": 0.2})


@pytest.mark.parametrize("base", ["own_code:pulled", "own_code:mine"])
def test_plugins_take_methods_of_the_users_own(own, base):
    made = build(f"specgradfilter+{base}", {"ratio": 0.3})
    assert made == build("specgradfilter", {"ratio": 0.3, "base": build(base)})


def test_a_rule_inside_a_class_is_found(own):
    assert composition.load_rule({"rule": "own_code:Outer.Inner", "mu": 1}, Trust.FILE).mu == 1


@pytest.mark.parametrize("name", ["__main__:NoSuchRule", "own_code:pulled.<locals>.Pull"])
def test_a_rule_that_no_module_has_says_where_rules_must_lie(own, name):
    with pytest.raises(RequestError, match="has no rule named") as caught:
        composition.load_rule({"rule": name}, Trust.FILE)
    assert "a module that can be imported" in caught.value.hint


# ---- the command line ----
@pytest.mark.parametrize(
    "words",
    [
        ["--set", "steps=2.5"],
        ["--set", "evaluation.tune=-3"],
        ["--set", "seed=18446744073709551616"],
        ["--method", "fedsam", "--set", "method.rho=abc"],
        ["--method", "./own_code:pulled"],
        ["--method", "own_leaving:f"],
    ],
)
def test_wrong_requests_end_with_code_2(own, words, capsys):
    assert call(["run", "--dataset", "digits", "--model", "logistic", "--out", "x", *words]) == 2
    said = capsys.readouterr().err
    assert "hint:" in said
    assert "unexpected" not in said


# ---- values besides fields -----------------------------------------------------------------------------------------
class Shorter(fk.Sam):
    """A subclass that is no dataclass, and needs to be none: all its values are fields."""

    def step(self, tree, client, at):
        return super().step(tree * 0.5, client, at)


class Scaled(Shorter):
    def __init__(self, factor):
        super().__init__(0.1)
        object.__setattr__(self, "factor", factor)


class BySizes(fk.BySize):
    def __init__(self, power):
        object.__setattr__(self, "power", power)


class Smooth(fk.Objective):
    def __init__(self, share):
        object.__setattr__(self, "share", share)


class Flat(fk.Schedule):
    def __init__(self, share):
        self.__dict__.update(warmup=0, by="round", share=share)

    def shape(self, time):
        return self.share


class Sorted(fk.Iid):
    def __init__(self, start):
        super().__init__(4)
        object.__setattr__(self, "start", start)


@for_each(
    ("given", "lost"),
    [
        ({"partition": Sorted(3)}, "start"),
        ({"method": {"perturb": [Scaled(2.0)]}}, "factor"),
        ({"method": {"weights": BySizes(2.0)}}, "power"),
        ({"method": {"objective": Smooth(0.2)}}, "share"),
        ({"schedule": Flat(0.2)}, "share"),
    ],
)
def test_a_value_that_no_file_would_hold_is_refused(given, lost):
    if "method" in given:
        given = {"method": fk.method("mine", **{"weights": fk.BySize()} | given["method"])}
    with pytest.raises(fk.RequestError, match=f"is not a dataclass, so it cannot be saved: {lost} would be lost"):
        fk.Experiment(dataset="digits", **given).fingerprint()


def test_a_subclass_without_values_of_its_own_is_saved_as_its_base():
    def identity(rho):
        rule = Shorter(rho)
        assert rule.stages  # computed once, and kept
        return fk.Experiment(
            dataset="digits", method=fk.method("mine", perturb=[rule], weights=fk.BySize())
        ).fingerprint()

    assert identity(0.1) == identity(0.1) != identity(0.2)
