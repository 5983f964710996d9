"""`import fedkeel as fk`: what type checkers read and what there is are one list; a rule or method is listed once."""

import importlib
import inspect
import pickle
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedkeel as fk
from fedkeel import errors, methods, rules
from fedkeel.core.method import Method
from fedkeel.core.rule import Rule
from fedkeel.methods.registry import FAMILIES, public_name

STUB = Path(fk.__file__).with_name("__init__.pyi").read_text()
NOT_BY_NAME = {
    "AverageModels", "BandFilter", "Confined", "FollowSchedule", "NamesLayers", "Optimiser", "Sensitivity",
    "ShareBuffers", "Variates",
}  # fmt: skip
"""Rules that nobody writes down: some are what others share, the rest the library puts beside others by itself."""


def modules_of(package):
    return [importlib.import_module(f"{package.__name__}.{one.name}") for one in pkgutil.iter_modules(package.__path__)]


def test_every_name_is_there_and_where_the_list_says():
    for name in fk.__all__:
        assert getattr(fk, name) is getattr(importlib.import_module(fk.HOME.get(name, "fedkeel.rules")), name)
    assert {*fk.__all__, "__version__"} <= set(dir(fk))


@pytest.mark.slow
def test_completion_shows_what_is_public_alone():
    """In a new process, since modules become names of the package when they are imported."""
    code = "import fedkeel as fk; print(*(name for name in dir(fk) if not name.startswith('_')))"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert shown == sorted([*fk.__all__, "optim"])
    with pytest.raises(AttributeError) as missing:
        fk.optimm
    assert (missing.value.obj, missing.value.name) == (fk, "optimm")  # by which Python looks for the nearest


def test_methods_can_be_pickled():
    for name, make in fk.METHODS.items():
        assert pickle.loads(pickle.dumps(make)) is make, name
        assert pickle.loads(pickle.dumps(make())) == make(), name


def test_every_rule_and_error_is_public():
    kinds = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert kinds | set(fk.RULES) <= set(fk.__all__)


def test_every_error_says_when_it_is_raised_and_what_to_do():
    kinds = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    for kind in kinds:
        when, _, then = (vars(kind)["__doc__"] or "").partition("\n\n")
        assert when, kind
        assert then.strip(), kind
        assert f"{kind.__name__} " in errors.__doc__ or f"{kind.__name__}\n" in errors.__doc__, kind


def test_type_checkers_see_the_rules_that_there_are():
    """They follow stars, which take what the modules list."""
    assert "from fedkeel.rules import *" in STUB.splitlines()
    gathered = {line.split()[1] for line in inspect.getsource(rules).splitlines() if line.endswith(" import *")}
    listed = {module.__name__: module.__all__ for module in modules_of(rules) if hasattr(module, "__all__")}
    assert gathered == set(listed)
    assert list(fk.RULES) == sorted(name for names in listed.values() for name in names)


def test_a_rule_is_registered_by_its_module_and_none_is_forgotten():
    made = {
        name: value
        for module in modules_of(rules)
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Rule) and value.__module__ == module.__name__
    }
    assert {name: kind for name, kind in made.items() if name not in NOT_BY_NAME} == fk.RULES


def test_a_method_is_registered_by_its_module_and_none_is_forgotten():
    made = {
        public_name(name): inspect.unwrap(value)
        for module in FAMILIES
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
        if inspect.signature(value, eval_str=True).return_annotation is Method
        if "base" not in list(inspect.signature(value).parameters)[:1] and name != "filtered"
    }
    assert {name: inspect.unwrap(make) for name, make in fk.METHODS.items()} == made
    assert set(FAMILIES) == {module for module in modules_of(methods) if hasattr(module, "__all__")}
    assert all(make().name == name for name, make in fk.METHODS.items())


def test_names_of_modules_import_nothing_else():
    """`fedkeel --help` needs no PyTorch, nor does a module that needs none."""
    code = "import sys, fedkeel; from fedkeel import importing; fedkeel.RequestError; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_other_names_are_missing():
    for name in ("nope", "Nope"):
        with pytest.raises(AttributeError, match=f"module 'fedkeel' has no attribute '{name}'"):
            getattr(fk, name)
