"""Objectives are values: their numbers are exact, files of before load, and fingerprints stay."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import tomli_w
import torch
from for_each import for_each
from torch import nn
from torch.nn import functional

import fedkeel as fk
from fedkeel.core.objective import Given, Objective
from fedkeel.core.objectives import OBJECTIVES, CodeBottleneck
from fedkeel.importing import Trust
from fedkeel.methods import METHODS, build, composition
from fedkeel.problems.task import Task
from fedkeel.problems.try_out import takes_last_axis
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
        ("calibrate:1", "unknown objective: 'calibrate'"),
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


def test_an_objective_written_as_a_rule_is_told_how_in_its_own_words():
    for name, right in (("Smoothed", "smoothed"), ("CodeBottleneck", "bottleneck"), ("smoothed", "smoothed")):
        with pytest.raises(fk.MethodError, match="a text, or a table") as refused:
            composition.load_objective({"rule": name, "smoothing": 0.1})
        assert refused.value.hint == f'write objective = "{right}" in place of rule = "{name}"'


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


# ---- which axis holds the classes, and which targets count ---------------------------------------------------------
def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("places", [4, 5])
@pytest.mark.parametrize("objective", [fk.Distilled(2.0), fk.Guided(0.7, 2.0), fk.Calibrated(0.5)])
def test_classes_of_pixels_and_words_lie_where_cross_entropy_has_them(objective, places):
    """`[batch, classes, places]` has the values of `[batch · places, classes]`, also with as many places as classes."""
    output, sent, target = draw(3, 4, places), draw(3, 4, places, seed=1), torch.arange(3 * places).view(3, -1) % 4
    histogram = torch.tensor([1.0, 2.0, 3.0, 40.0], dtype=torch.float64)
    found = objective.losses(output, target, Given(sent, histogram))

    def flat(scores: torch.Tensor) -> torch.Tensor:
        return scores.movedim(1, -1).reshape(-1, 4)

    alone = objective.losses(flat(output), target.reshape(-1), Given(flat(sent), histogram))
    torch.testing.assert_close(found.reshape(-1), alone)


@pytest.mark.parametrize("shape", [(6,), (6, 3)])
def test_tau_0_is_cross_entropy_where_targets_are_ignored(shape):
    output, target = draw(6, 4, *shape[1:]), torch.arange(6 * (3 if shape[1:] else 1)).view(shape) % 4
    target[1::2] = -100
    histogram, mask = torch.ones(4, dtype=torch.float64), torch.tensor([1.0] * 4 + [0.0] * 2, dtype=torch.float64)
    found = fk.Calibrated(0.0).losses(output, target, Given(histogram=histogram))
    torch.testing.assert_close(found.mean(), functional.cross_entropy(output, target))
    filled = fk.Calibrated(0.0).losses(output, target, Given(histogram=histogram, mask=mask)).reshape(6, -1).mean(1)
    torch.testing.assert_close(filled @ mask / mask.sum(), functional.cross_entropy(output[:4], target[:4]))


@pytest.mark.parametrize("shape", [(6,), (6, 3)])
@pytest.mark.parametrize("objective", [fk.Distilled(2.0), fk.Guided(0.7, 2.0)])
def test_outputs_are_compared_where_targets_count(objective, shape):
    output, sent = (draw(6, 4, *shape[1:], seed=seed) for seed in (0, 1))
    target = torch.arange(6 * (3 if shape[1:] else 1)).view(shape) % 4
    every = objective.losses(output, target, Given(sent))
    ignored = target.where(torch.arange(6).view(6, *[1] * (len(shape) - 1)) % 2 == 0, -100)
    found = objective.losses(output, ignored, Given(sent))
    torch.testing.assert_close(found.mean(), every[::2].mean())
    mask = torch.tensor([1.0] * 4 + [0.0] * 2, dtype=torch.float64)
    filled = objective.losses(output, ignored, Given(sent, mask=mask)).reshape(6, -1).mean(1)
    torch.testing.assert_close(filled @ mask / mask.sum(), every[:4:2].mean())
    assert objective.losses(output, torch.full_like(target, -100), Given(sent)).abs().sum() == 0
    shares = torch.full_like(output, 0.25)
    assert torch.equal(objective.losses(output, shares, Given(sent)), every)


def test_a_client_whose_targets_are_all_ignored_stays_where_it_is():
    output, target = draw(3, 4).requires_grad_(), torch.full((3,), -100)
    found = fk.Calibrated(1.0).losses(output, target, Given(histogram=torch.zeros(4, dtype=torch.float64))).mean()
    assert found == 0
    assert not torch.autograd.grad(found, output)[0].any()


# ---- what is tried before training ---------------------------------------------------------------------------------
SETTINGS = {"rounds": 1, "participation": 1.0, "epochs": 1, "batch_size": 4, "lr": 0.1}


def last_axis(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.movedim(-1, 1), target)


def nll_of_chances(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.nll_loss(output.log(), target)


def first_of_two(output: tuple[torch.Tensor, ...], target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output[0], target) + output[1].square().mean()


class Twice(nn.Linear):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        return super().forward(x), x


CLASSES = torch.arange(9) % 3
OUTPUTS = {
    "one score": (nn.Linear(6, 1), functional.binary_cross_entropy_with_logits, (CLASSES > 0).double()[:, None]),
    "numbers": (nn.Linear(6, 3), functional.mse_loss, draw(9, 3)),
    "sets of labels": (nn.Linear(6, 3), functional.binary_cross_entropy_with_logits, (draw(9, 3) > 0).double()),
    "chances": (nn.Sequential(nn.Linear(6, 3), nn.Softmax(1)), nll_of_chances, CLASSES),
    "two outputs": (Twice(6, 3), first_of_two, CLASSES),
    "classes last": (nn.Sequential(nn.Linear(6, 9), nn.Unflatten(1, (3, 3))), last_axis, CLASSES[:, None].repeat(1, 3)),
}


@for_each("name, outputs", product(["fedlc", "fedsol", "fedgmt", "smoothed+fedavg"], OUTPUTS))
def test_what_has_no_scores_of_classes_is_refused(name, outputs):
    model, loss, target = OUTPUTS[outputs]
    problem = fk.Problem(model=model, loss=loss, clients=[(draw(9, 6), target)] * 2, classes=3)
    with pytest.raises(fk.RequestError, match=r"reads scores of several classes|targets are fractions"):
        fk.run(fk.Experiment(method=name, problem=problem, **SETTINGS), dtype=torch.float64)


def test_the_axis_of_the_classes_shows_whatever_the_outputs_are():
    """What is added to scores on the wrong axis may change a loss by chance as little as rounding does."""
    for last, loss in ((True, last_axis), (False, functional.cross_entropy)):
        model, _, target = OUTPUTS["classes last"]
        task = Task(fk.Problem(model=model, loss=loss, clients=[(draw(9, 6), target)], classes=3))
        for seed in range(300):
            inputs = 3 * draw(9, 6, seed=seed).float()
            assert takes_last_axis(task, task.module, (inputs, target)) == last


@pytest.mark.parametrize("name", ["fedsol", "fedgmt"])
def test_logarithms_of_chances_and_shares_of_classes_are_taken(name):
    shares = draw(9, 3).softmax(1)
    for last, loss, target in (
        (nn.LogSoftmax(1), functional.nll_loss, CLASSES),
        (nn.Identity(), functional.cross_entropy, shares),
    ):
        model = nn.Sequential(nn.Linear(6, 3), last)
        problem = fk.Problem(model=model, loss=loss, clients=[(draw(9, 6), target)], classes=3)
        assert fk.run(fk.Experiment(method=name, problem=problem, **SETTINGS), dtype=torch.float64).params


def test_smoothed_labels_are_no_shares_of_classes():
    problem = fk.Problem(
        model=nn.Linear(6, 3), loss=functional.cross_entropy, clients=[(draw(9, 6), draw(9, 3).softmax(1))]
    )
    with pytest.raises(fk.MethodError, match="reads scores of several classes"):
        fk.run(fk.Experiment(method="smoothed+fedavg", problem=problem, **SETTINGS), dtype=torch.float64)


TAKEN = {
    "fedlc": "fedlc trains on plain cross-entropy",
    "smoothed+fedavg": "smoothed+fedavg adds what smooths the labels of plain cross-entropy",
}


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize(("weight", "told"), [([1.0, 1.0, 1.0], False), ([1.0, 5.0, 20.0], True)])
def test_a_loss_that_a_method_does_not_train_on_is_told(name, weight, told, caplog):
    given = small_problem()
    given.clients[0][1][0] = 255
    problem = replace(given, loss=nn.CrossEntropyLoss(weight=torch.tensor(weight), ignore_index=255))
    fk.run(fk.Experiment(method=name, problem=problem, **SETTINGS))
    assert (TAKEN[name] in caplog.text) == told


@dataclass(frozen=True)
class Mean(Objective):
    """One number for the batch."""

    def losses(self, output: torch.Tensor, target: torch.Tensor, given: Given) -> torch.Tensor:
        return functional.cross_entropy(output, target, label_smoothing=0.3)


@dataclass(frozen=True)
class Added(Mean):
    adds: ClassVar[bool] = True


@dataclass(frozen=True)
class Meeting(Added):
    """Samples meet, whatever the mask says."""

    def losses(self, output: torch.Tensor, target: torch.Tensor, given: Given) -> torch.Tensor:
        return (output @ output.T).square().mean(1)


@dataclass(frozen=True)
class Total(Objective):
    """Several values per sample, added up."""

    total: ClassVar[bool] = True

    def losses(self, output: torch.Tensor, target: torch.Tensor, given: Given) -> torch.Tensor:
        return 0.01 * output.square()


@for_each("objective, smooth", [(Mean(), True), (Added(), False), (Meeting(), True), (Total(), False)])
def test_engines_agree_on_objectives_of_ones_own(objective, smooth):
    """Clients of unequal size, with kernels and by vmap."""
    problem = small_problem(sizes=(7, 4, 5))
    if smooth:
        problem = replace(problem, model=nn.Sequential(problem.model[0], nn.Tanh(), problem.model[2]))
    experiment = fk.Experiment(
        method=fk.method("mine", weights=fk.BySize(), objective=objective), problem=problem, **SETTINGS
    )
    one, other = (fk.run(experiment, engine=name, dtype=torch.float64).params for name in ("serial", "stacked"))
    for name, leaf in one.items():
        torch.testing.assert_close(leaf, other[name], rtol=0, atol=1e-12)


@dataclass(frozen=True)
class Odd(Objective):
    """Returns what it is told to."""

    what: str

    def losses(self, output: torch.Tensor, target: torch.Tensor, given: Given) -> torch.Tensor:
        if self.what == "raise":
            raise ValueError("no such thing")
        return {"float": 1.0, "None": None, "classes": output.mean(0)}[self.what]  # type: ignore[return-value]


@dataclass(frozen=True)
class Asking(Objective):
    asks: ClassVar[tuple[str, ...]] = ("histograms",)


@dataclass(frozen=True)
class OfOther(Objective):
    of: ClassVar[str] = "embed"


@for_each(
    ("objective", "message"),
    [
        (Odd("float"), "objective Odd of mine returns a tensor, not float"),
        (Odd("None"), "objective Odd of mine returns a tensor, not NoneType"),
        (Odd("classes"), r"gives values \[3\] for 8 samples"),
        (Odd("raise"), "does not take the outputs of this network: no such thing"),
        (Asking(), "asks for 'histograms', which objectives are not given"),
        (OfOther(), r"needs a model with a method of this name \(embed\)"),
    ],
)
def test_objectives_of_ones_own_are_tried_before_training(objective, message):
    def train() -> None:
        method = fk.method("mine", weights=fk.BySize(), objective=objective)
        fk.run(fk.Experiment(method=method, problem=small_problem(), **SETTINGS))

    with pytest.raises(fk.MethodError, match=message):
        train()
