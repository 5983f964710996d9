"""Objectives are values: their numbers are exact, files of before load, and fingerprints stay."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from for_each import for_each

import fedkeel as fk
from fedkeel.core.objectives import OBJECTIVES, CodeBottleneck, Given, Objective
from fedkeel.importing import Trust
from fedkeel.methods import METHODS, build, composition
from fedkeel.runs.claim import claim
from fedkeel.runs.run_folder import RunFolder
from problems import small_problem

RECORDED = json.loads(Path(__file__).with_name("compositions.json").read_text(encoding="utf-8"))
"""Compositions and fingerprints as they were when objectives were texts."""

PLAIN = {"dataset": "digits", "partition": {"kind": "iid", "clients": 10}, "model": "logistic", "rounds": 5}


@dataclass(frozen=True)
class Squared(Objective):
    """Half the squared output of each sample's own class, times a number."""

    weight: float
    most: float | None = None

    def losses(self, output: torch.Tensor, target: torch.Tensor, given: Given) -> torch.Tensor:
        return self.weight / 2 * output.gather(-1, target.unsqueeze(-1)).squeeze(-1).square()


def objectives_of(method: fk.Method) -> list[Objective]:
    return [phase.objective for phase in method.phases]


def test_compositions_of_before_keep_their_fingerprints():
    for name, recorded in RECORDED.items():
        experiment = fk.Experiment(method=recorded["method"], **PLAIN)
        assert experiment.fingerprint() == recorded["fingerprint"], name
        assert composition.save(experiment.plan.method)["phases"] == recorded["method"]["phases"], name


def test_methods_save_their_objectives_as_before():
    def saved(phases: list[dict]) -> list[str]:
        return [phase.get("objective", "loss") for phase in phases]

    for name in METHODS.keys() & RECORDED:
        assert saved(composition.save(build(name))["phases"]) == saved(RECORDED[name]["method"]["phases"]), name


@pytest.mark.parametrize("tau", [0.123456789, 1 / 3, 1e-30, 123456789.0, 0.1 + 0.2, np.float32(0.1)])
def test_no_number_passes_through_a_text(tau, tmp_path):
    made = METHODS["fedlc"](tau=tau)
    assert objectives_of(made) == [fk.Calibrated(tau)]
    again = composition.load(json.loads(json.dumps(composition.save(made))))
    assert again == made
    file = tmp_path / "e.toml"
    file.write_text(tomli_w.dumps(fk.Experiment(method=made, **PLAIN).save()), encoding="utf-8")
    read = fk.Experiment.load(tomllib.loads(file.read_text(encoding="utf-8")))
    assert objectives_of(read.plan.method) == [fk.Calibrated(tau)]


@pytest.mark.parametrize("temperature", [0.123456789, 1 / 3, 3.0])
def test_the_temperature_of_a_rule_is_exact(temperature):
    assert fk.DistilAscent(0.1, temperature=temperature).needs_gradient == fk.Distilled(temperature)


@pytest.mark.parametrize("beta", [0.000123456789, 0.5])
def test_the_beta_of_fedcr_is_exact(beta):
    assert objectives_of(build("fedcr", {"beta": beta}))[0] == CodeBottleneck(beta)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), "x", True, 10**400])
@pytest.mark.parametrize("make", [fk.Calibrated, fk.Distilled, CodeBottleneck, METHODS["fedlc"]])
def test_numbers_out_of_range_are_refused(make, bad):
    with pytest.raises(fk.MethodError):
        make(bad)


def test_two_numbers_that_a_text_would_take_for_one_are_two_experiments():
    one, other = (fk.Experiment(method=METHODS["fedlc"](tau), **PLAIN) for tau in (0.123456789, 0.123457))
    assert one.fingerprint() != other.fingerprint()


@for_each("name", OBJECTIVES)
def test_every_name_is_read_alone_and_saved(name):
    objective = composition.load_objective(name)
    assert type(objective) is OBJECTIVES[name]
    assert composition.load_objective(composition.save_objective(objective)) == objective


def test_texts_and_tables_of_files():
    for given in ("calibrated:0.5", {"objective": "calibrated", "tau": 0.5}):
        data = {"name": "mine", "phases": [{"objective": given}]}
        assert objectives_of(composition.load(data)) == [fk.Calibrated(0.5)]
        assert composition.load({"name": "mine", "objective": given}) == composition.load(data)
        assert composition.rewrite(data)["phases"] in ([{"objective": "calibrated:0.5"}], data["phases"])


@for_each(
    ("given", "message"),
    [
        ("calibrate:1", "unknown objective|cannot import"),
        ("calibrated:x", "is not one"),
        ("loss:3", "has no number"),
        ("", "unknown objective"),
        (3, "a text, or a table"),
        ([0], "a text, or a table"),
        ({"tau": 1.0}, "a text, or a table"),
        ({"objective": "calibrated", "sigma": 1.0}, "no field"),
        ({"objective": "calibrated", "tau": "x"}, "must be a number"),
        ({"objective": "json:dumps"}, "is part of Python, not an objective"),
        ({"objective": "problems:small_problem"}, "not an objective"),
        (f"{__name__}:Squared", "lacks: weight"),
    ],
)
def test_what_is_no_objective_is_refused(given, message):
    with pytest.raises(fk.RequestError, match=message):
        composition.load({"name": "mine", "phases": [{"objective": given}]}, Trust.FILE)


def test_texts_are_refused_in_python():
    with pytest.raises(fk.MethodError, match="must be an Objective"):
        fk.method("mine", weights=fk.Uniform(), objective="calibrated:1")  # type: ignore[arg-type]

    @dataclass(frozen=True)
    class Old(fk.Rule):
        needs_gradient = "loss"  # type: ignore[assignment]

        def step(self, tree, client, at):
            return tree, client

    with pytest.raises(fk.MethodError, match="must be an Objective"):
        fk.method("mine", weights=fk.Uniform(), perturb=[Old()])


@pytest.mark.parametrize("engine", ["serial", "stacked"])
def test_a_users_own_objective_trains_as_its_formula_says(engine):
    """One full batch, one step: w − η ∇ mean(weight/2 z_y²), by hand from autograd."""
    problem = replace(small_problem(), clients=small_problem().clients[:1])
    mine = fk.method("mine", weights=fk.Uniform(), objective=Squared(0.3))
    settings = {"rounds": 1, "participation": 1.0, "epochs": 1, "batch_size": 1000, "lr": 0.1}
    made = fk.run(fk.Experiment(method=mine, problem=problem, **settings), engine=engine)
    x, y = problem.clients[0]
    params = {name: leaf.detach().clone().requires_grad_() for name, leaf in problem.model.named_parameters()}
    output = torch.func.functional_call(problem.model, params, (x,))
    loss = 0.15 * output.gather(-1, y.unsqueeze(-1)).square().mean()
    slopes = torch.autograd.grad(loss, list(params.values()))
    for (name, leaf), slope in zip(params.items(), slopes, strict=True):
        torch.testing.assert_close(made.params[name], (leaf - 0.1 * slope).detach(), rtol=1e-5, atol=1e-6)


def test_a_users_own_objective_is_saved_by_its_module():
    mine = fk.method("mine", weights=fk.Uniform(), objective=Squared(0.3))
    saved = composition.save(mine)["phases"][0]["objective"]
    assert saved == {"objective": f"{__name__}:Squared", "weight": 0.3}  # what is None is left out, as TOML needs it
    assert composition.load(composition.save(mine), Trust.FILE) == mine


def test_a_folder_with_an_objective_in_another_spelling_goes_on(tmp_path):
    """Files of before may say `calibrated`, where today's say `calibrated:1`."""
    method = {"name": "mine", "phases": [{"objective": "calibrated"}]}
    experiment = fk.Experiment(**PLAIN | {"method": method, "rounds": 1})
    fk.run(experiment, out=tmp_path / "a")
    file = tmp_path / "a" / "experiment.toml"
    text = file.read_text(encoding="utf-8")
    assert "calibrated:1" in text
    file.write_text(text.replace("calibrated:1", "calibrated"), encoding="utf-8")
    claim(RunFolder(tmp_path / "a"), experiment.with_(rounds=2))
    with pytest.raises(fk.FolderError, match="differs in: method"):
        claim(RunFolder(tmp_path / "a"), experiment.with_(method={"name": "mine", "phases": [{"objective": "loss"}]}))
