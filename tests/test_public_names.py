"""`import fedkeel as fk`: the list of public names is complete, sorted, and the same for type checkers."""

import ast
import importlib
from pathlib import Path
from types import ModuleType

import pytest

import fedkeel as fk


def declared():
    """What type checkers read: name -> module."""
    tree = ast.parse(Path(fk.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    found = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name  # re-exported, as type checkers want it said
            found[alias.name] = node.module
    return found


def test_type_checkers_see_the_names_that_there_are():
    assert declared() == fk.HOME


def test_names_are_sorted_and_once():
    assert fk.__all__ == sorted(set(fk.__all__))
    assert list(fk.PUBLIC) == sorted(fk.PUBLIC)
    assert sum(len(names.split()) for names in fk.PUBLIC.values()) == len(fk.__all__)


@pytest.mark.parametrize("name", fk.__all__)
def test_every_name_is_there(name):
    assert getattr(fk, name) is getattr(importlib.import_module(fk.HOME[name]), name)
    assert name in dir(fk)


def test_every_rule_and_error_is_public():
    from fedkeel import errors

    kinds = {name for name, value in vars(errors).items() if getattr(value, "__module__", "") == errors.__name__}
    assert (kinds - {"nearest"}) | set(fk.RULES) <= set(fk.__all__)


def test_importing_the_modules_run_and_method_leaves_the_functions():
    for name in ("run", "method"):
        module = importlib.import_module(f"fedkeel.{name}")
        assert isinstance(module, ModuleType)
        setattr(fk, name, module)  # what the first import of a submodule does
        assert not isinstance(getattr(fk, name), ModuleType)


def test_other_names_are_missing():
    with pytest.raises(AttributeError, match="module 'fedkeel' has no attribute 'nope'"):
        fk.nope
