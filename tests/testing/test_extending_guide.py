"""The guide's examples are what it says they are, and pass the kit."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fedkeel as fk
from fedkeel.core.objective import Given
from fedkeel.testing import check_method, check_partition, check_rule
from fedkeel.testing.laws import LAWS
from fedkeel.testing.trial import Trial, difference

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "extending.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def find_block(line: str) -> str:
    [found] = [block for block in BLOCKS if line in block]
    return found


@pytest.mark.slow
def test_the_guides_fednova_is_fednova(tmp_path, monkeypatch):
    (tmp_path / "nova.py").write_text(find_block("def nova("))
    monkeypatch.syspath_prepend(tmp_path)
    nova = importlib.import_module("nova").nova
    assert find_block('check_method(nova, neutral={}, base="fedavg")')
    check_method(nova, neutral={}, base="fedavg", skip=["processes_agree"])
    ours = fk.METHODS["fednova"]()
    assert difference(Trial(nova()).plain, Trial(ours).plain) < 1e-12
    assert difference(Trial(nova()).plain, Trial(fk.METHODS["fedavg"]()).plain) > 1e-6  # clients take unequal steps
    del sys.modules["nova"]


@pytest.mark.slow
def test_the_guides_fading_pull_lies_between_fedprox_and_fedavg(tmp_path, monkeypatch):
    (tmp_path / "fading.py").write_text(find_block("class FadingPull("))
    monkeypatch.syspath_prepend(tmp_path)
    fading = importlib.import_module("fading").fading
    check_method(fading, neutral={"mu": 0.0}, base="fedavg", skip=["processes_agree"])
    fedprox = fk.METHODS["fedprox"]
    assert difference(Trial(fading(mu=0.1, gamma=1.0)).plain, Trial(fedprox(mu=0.1)).plain) < 1e-12
    assert difference(Trial(fading(mu=0.1)).plain, Trial(fedprox(mu=0.1)).plain) > 1e-9  # from the second round on
    del sys.modules["fading"]


def test_the_guides_rounding_is_right_on_average():
    given: dict[str, Any] = {}
    exec(find_block("class RandomRounding(").partition("\n\n\nmethod =")[0], given)
    delta = fk.Tree.of({"w": torch.tensor([0.3, -1.25, 2.0], dtype=torch.float64)})
    at = fk.Local(delta, delta, {}, None, *torch.zeros(3), torch.zeros((), dtype=torch.int64))
    drawn = []
    for key in range(1000):
        report, _ = given["RandomRounding"](0.5).finish({"delta": delta}, {}, at._replace(key=torch.tensor(key)))
        drawn.append(report["delta"].buffer)
    mean = torch.stack(drawn).mean(0)
    assert all(((one / 0.5) % 1 == 0).all() for one in drawn)
    assert torch.allclose(mean, delta.buffer, atol=0.5 * 5 * 0.5 / 1000**0.5)  # five standard errors


@pytest.mark.slow
def test_the_guides_head_momentum_is_that_of_the_head(tmp_path, monkeypatch):
    (tmp_path / "heads.py").write_text(find_block("class HeadMomentum"))
    monkeypatch.syspath_prepend(tmp_path)
    heads = importlib.import_module("heads")
    slow = ["processes_agree", "resumes", "numbering", "nan_reaches_nobody", "own_data_only"]
    check_rule(heads.HeadMomentum(0.9), neutral=heads.HeadMomentum(0.0), place="server", skip=slow)
    run, plain = Trial(heads.method).plain, Trial(fk.METHODS["fedavgm"](momentum=0.9)).plain
    velocity, whole = run.server["velocity"], run.server["params"]
    assert 0 < velocity.layout.size < whole.layout.size
    first = Trial(heads.method).run(rounds=1), Trial(fk.METHODS["fedavg"]()).run(rounds=1)
    assert difference(*first) == 0.0  # a momentum begins in the second round
    assert difference(run, plain) > 1e-9
    del sys.modules["heads"]


def test_the_guides_partition_obeys_the_laws(tmp_path, monkeypatch):
    (tmp_path / "nths.py").write_text(find_block("class EveryNth:"))
    monkeypatch.syspath_prepend(tmp_path)
    check_partition("nths:EveryNth,clients=5")
    check_partition(importlib.import_module("nths").EveryNth(5))
    del sys.modules["nths"]


@pytest.mark.slow
def test_the_guides_not_true_distillation_is_the_loss_without_beta(tmp_path, monkeypatch):
    (tmp_path / "not_true.py").write_text(find_block("class NotTrue(").partition("\n\n\nmethod =")[0] + MADE)
    monkeypatch.syspath_prepend(tmp_path)
    made = importlib.import_module("not_true").made
    check_method(made, neutral={"beta": 0.0}, base="fedavg", skip=["processes_agree"])
    assert difference(Trial(made()).plain, Trial(fk.METHODS["fedavg"]()).plain) > 1e-9
    del sys.modules["not_true"]


MADE = """


def made(beta: float = 1.0) -> fk.Method:
    \"\"\"FedAvg on the objective.\"\"\"
    return fk.method("not-true", objective=NotTrue(beta), weights=fk.BySize())
"""


def test_the_guide_and_the_docstrings_name_every_flag_of_an_objective():
    flags = [name for name, kind in vars(fk.Objective)["__annotations__"].items() if "ClassVar" in str(kind)]
    assert len(flags) > 9
    for flag in flags:
        assert flag == "of_problem" or (f"| `{flag} = " in GUIDE and f"`{flag}`" in str(fk.Objective.__doc__)), flag
    for word in Given._fields:
        assert f"| `given.{word}` |" in GUIDE, word
        assert f"`{word}`" in str(Given.__doc__), word


def test_the_guide_names_every_law_and_every_fact():
    for law in LAWS:
        assert f"`{law}`" in GUIDE, law
    for word in fk.Local._fields:
        assert f"`at.{word}`" in GUIDE, word
    reports = Trial(fk.METHODS["fedavg"]()).watched.engine.outcomes[0][0].report
    for fact in reports:
        assert f'`"{fact}"`' in GUIDE, fact
    assert isinstance(reports["steps"], torch.Tensor)
