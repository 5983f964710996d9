"""The reference of the site names everything that there is."""

import re
import runpy
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
import typer

import fedkeel as fk
from fedkeel.catalogue.keys import KEYS
from fedkeel.cli.main import app
from fedkeel.data.partition import dirichlet, pathological

HOOKS = Path(__file__).parents[2] / "docs" / "hooks"


@pytest.fixture(scope="module")
def make():
    """The functions that make the pages."""
    return runpy.run_path(str(HOOKS / "reference.py"))


def test_every_key_of_an_experiment_has_a_sentence(make):
    assert {field.name for field in fields(fk.Experiment)} == KEYS.keys()
    assert all(sentence.endswith(".") for sentence in KEYS.values())
    assert set(re.findall(r"^\| `(\w+)` \|", make["experiment_page"](), flags=re.MULTILINE)) >= KEYS.keys()


def test_every_form_of_a_partition_has_a_picture(make):
    pictured = {make["picture_name"](one) for one in make["PICTURED"]}
    page = make["partitions_page"]()
    assert all(f"]({name})" in page for name in pictured)
    forms = {"dirichlet": get_args(dirichlet.Form), "pathological": get_args(pathological.Form)}
    for kind in fk.PARTITIONS:
        for form in forms.get(kind, ("",)):
            assert f"partition-{kind}{'-' if form else ''}{form}.png" in pictured
    assert make["draw_partition"](fk.Iid(3)).startswith(b"\x89PNG")


@pytest.mark.slow
def test_every_rule_data_set_model_and_name_is_on_its_page(make):
    assert set(re.findall(r"^### (\w+)$", make["rules_page"](), flags=re.MULTILINE)) == fk.RULES.keys()
    assert set(re.findall(r"^## ([\w-]+)$", make["datasets_page"](), flags=re.MULTILINE)) == fk.DATASETS.keys()
    assert set(re.findall(r"^\| `([\w-]+)` ", make["models_page"](), flags=re.MULTILINE)) == fk.MODELS.keys()
    named = {line.rpartition(".")[2] for line in re.findall(r"^::: (\S+)$", make["python_page"](), flags=re.MULTILINE)}
    assert named == {*fk.HOME, "optim"}


def test_every_command_and_option_is_on_the_page_of_commands(make):
    page = make["commands_page"]()
    for name, command in typer.main.get_command(app).commands.items():
        part = page.partition(f"## fedkeel {name}\n")[2].partition("\n## ")[0]
        assert part
        assert all(f"`{one.opts[0]}`" in part for one in command.params if one.opts[0].startswith("--") and one.help)
