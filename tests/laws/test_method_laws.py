"""Laws that every method of the table obeys; a new method adds no test code."""

from __future__ import annotations

import inspect

import pytest
import torch
from every_method import few_of_engines
from for_each import for_each

import fedkeel as fk
from fedkeel.core.trees import tensors
from fedkeel.methods import METHODS, PLUGINS, build, composition, hyperparameters
from fedkeel.runs import prepare, start
from fedkeel.testing import check_method
from fedkeel.testing.checks import check_neutral
from fedkeel.testing.laws import survives_a_file
from fedkeel.testing.trial import WHOLE, Trial, difference, sample_problem
from problems import quick

OTHERWHERE = ["stacked_agrees", "processes_agree", "pure"]
"""Laws that tests of the engines hold every method to; and a run that is resumed has been run again."""
COUNTS_CLIENTS = {"fedawa@released"}  # by their place among the participants


@pytest.fixture(scope="module", autouse=True)
def unchecked():
    """The data are sound, and every method is rehearsed where its card is made: no run need do so again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "check_data", lambda task, **_: None)
        patch.setattr(prepare, "rehearse", lambda method, task: None)
        yield


@pytest.mark.parametrize("name", few_of_engines())
def test_a_method_obeys_the_laws(name):
    check_method(quick(name), skip=OTHERWHERE + ["numbering"] * (name in COUNTS_CLIENTS))


def test_every_method_survives_a_file():
    for method in map(build, METHODS):
        survives_a_file(Trial(method))


def test_hyperparameters_can_be_set_to_their_defaults():
    for name, make in METHODS.items():
        known = {word: value for word, value in hyperparameters(make).items() if value is not None}
        assert build(name, known) == build(name), name


def test_a_method_says_what_it_is():
    for name, make in METHODS.items():
        about = inspect.getdoc(make)
        assert about.split("\n")[0].endswith((".", ".  rho_local = 0: SGD.")), name
        if "@released" in name:
            assert "Released code" in about, name
        if "Paper:" in about:
            assert "Released code" in about, name
            assert "Here:" in about, name


@pytest.mark.slow
def test_plugins_fit_every_base_or_say_why_not():
    for name in (f"{plugin}+{base}" for plugin in PLUGINS for base in METHODS):
        method, hint = None, ""
        try:
            method = build(name)
        except fk.MethodError as refused:
            hint = refused.hint
        else:
            assert composition.load(composition.save(method)) == method, name
        assert hint or method, name


@for_each(
    "name",
    [
        "specgradfilter+fedawa",
        "specgradfilter+fedala",
        "fsa+fedspeed@released",
        "fsa+fedala",
        "fedfft+fedwmsam",
        "specgradfilter+fsa+fedcm",
    ],
)
def test_compositions_that_nobody_published_run(name):
    found = Trial(build(name, {"passes": 2} if "fedala" in name else {})).run()
    assert all(torch.isfinite(slot).all() for slot in tensors(found.server))


REDUCTIONS = [
    ("fedsam", {"rho": 0.0}, "uniform", {}),
    ("fedasam", {"rho": 0.0}, "uniform", {}),
    ("mofedsam", {"rho": 0.0}, "fedcm", {}),
    ("mofedsam", {"alpha": 1.0}, "fedsam", {}),
    ("fedcm", {"alpha": 1.0}, "uniform", {}),
    ("fedgamma", {"rho": 0.0}, "scaffold", {}),
    ("fedgamma", {}, "fedsam-s", {}),
    ("fedlesam", {"rho": 0.0}, "uniform", {}),
    ("fedlesam-s", {"rho": 0.0}, "scaffold", {}),
    ("fedlesam-d", {"rho": 0.0}, "feddyn", {}),
    ("fedspeed@released", {"rho": 0.0}, "feddyn", {}),
    ("fedspeed@released", {}, "fedsam-d", {}),
    ("fedsmoo", {"rho": 0.0}, "feddyn", {}),
    ("fedsmoo@released", {"rho": 0.0}, "feddyn@released", {}),
    ("fedgloss", {"rho": 0.0}, "fedsam-d", {}),
    ("fedgloss", {"rho": 0.0, "rho_local": 0.0}, "feddyn", {}),
    ("fedgloss", {"warmup": 5, "rho0": 0.1}, "fedgloss", {}),
    ("fedprox", {"mu": 0.0}, "fedavg", {}),
    ("fedfft", {"ratio": 0.0}, "fedsam", {}),
    ("fedfft-s", {"ratio": 0.0}, "fedsam-s", {}),
    ("fedfft-d", {"ratio": 0.0}, "fedsam-d", {}),
    ("keel", {"ratio": 0.0, "decay": 0.0}, "feddyn", {}),
    ("specgradfilter+scaffold", {"ratio": 0.0}, "scaffold", {}),
    ("specgradfilter+fedprox", {"ratio": 0.0, "mu": 0.0}, "uniform", {}),
    ("fedavgm", {"momentum": 0.0}, "fedavg", {}),
    ("fedexp", {"epsilon": 1e9}, "uniform", {}),
    ("ghbm", {"beta": 0.0}, "fedavg", {}),
    ("localghbm", {"beta": 0.0}, "fedavg", {}),
    ("fedhbm", {"beta": 0.0}, "fedavg", {}),
    ("fednsam", {"gamma": 0.0, "rho": 0.0}, "uniform", {}),
    ("fednsam@released", {"gamma": 0.0}, "fedsam", {"rho": 0.05}),
    ("feddecorr", {"beta": 0.0}, "fedavg", {}),
    ("feddecorr+scaffold", {"beta": 0.0}, "scaffold", {}),
    ("smoothed+scaffold", {"smoothing": 0.0}, "scaffold", {}),
    ("fedswa", {"rho": 1.0, "server_lr": 1.0}, "uniform", {}),
    ("fedswa@released", {"rho": 1.0, "peak": 1.0}, "uniform", {}),
    ("fedswa@released", {"peak": 1.0}, "fedswa", {"rho": 0.0, "server_lr": 1.0}),
    ("fedpac", {"preconditioner": "muon"}, "fedmuon", {}),
    ("fednova", {"momentum": 1e-14}, "fedavg", {}),
    ("fednova", {}, "fedavg", {}),  # all clients take as many steps
    ("fednova", {"mu": 1e-13}, "fedavg", {}),
    ("fedsol", {"rho": 0.0}, "fedavg", {}),
    ("fedscam-wa", {"gamma": 0.0, "beta": 0.0}, "fedavg", {}),
    ("fedscam-sam", {"alpha_rho": 0.0, "rho_max": 0.0}, "fedavg", {}),
    ("fedfsa", {"rho": 0.1, "rho_larger": 0.1}, "mofedsam", {"rho": 0.1}),
    ("fsa+fedsam", {"rho": 0.1, "top": 0}, "fedsam", {"rho": 0.1}),
    ("q-fedavg", {"q": 0.0}, "uniform", {}),
    ("q-fedavg", {"q": 0.0, "mode": "reweight"}, "fedavg", {}),
    ("feddisco", {"a": 0.0, "b": 0.0}, "fedavg", {}),
    ("fedawa", {"steps": 0}, "fedavg", {}),
    ("fedlws", {"tau_min": 0.0, "tau_max": 0.0}, "fedavg", {}),
    ("fedlaw", {"rate": 0.0}, "fedavg", {}),
    ("ditto", {}, "fedavg", {}),
    ("fedavg-ft", {}, "fedavg", {}),
    ("fedwmsam", {"momentum": False, "sam": False}, "uniform", {}),
]


@pytest.mark.slow
@for_each(("name", "settings", "base", "base_settings"), REDUCTIONS)
def test_neutral_values_give_the_base_method(name, settings, base, base_settings):
    check_neutral(build(name, settings), build(base, base_settings), str(settings))


def test_fedgmt_without_its_teacher_is_its_dual():
    for name, dual, weights in (
        ("fedgmt", fk.ActiveDual(0.1, pull=False), fk.Uniform()),
        ("fedgmt@released", [fk.DynamicDual(0.1, pull=False), fk.LocalMomentum(0.9)], fk.BySize()),
    ):
        check_neutral(build(name, {"gamma": 0.0}), fk.method("x", gradient=dual, weights=weights), "gamma = 0")


@pytest.mark.slow
def test_local_optimisers_without_what_the_server_adds():
    """FedAdamW adds nothing, FedMuon mixes nothing in, FedMoSWA corrects nothing."""
    for one, chain, weights in (
        (build("local-adamw"), fk.AdamW(), fk.BySize()),
        (build("local-muon"), fk.Muon(), fk.BySize()),
        (build("fedadamw", {"alpha": 0.0}), fk.AlignedAdamW(), fk.Uniform()),
        (build("fedmuon", {"mix": 0.0}), fk.Muon(nesterov=False, moments="average"), fk.Uniform()),
        (
            build("fedmuon@released", {"mix": 0.0}),
            fk.Muon(0.98, scale="original", moments="average", other_rate=2.0, others="reset"),
            fk.Uniform(),
        ),
    ):
        check_neutral(one, fk.method("x", gradient=chain, weights=weights), "neutral values")


def test_feddyn_refuses_lambda_zero():
    with pytest.raises(fk.MethodError, match="lam of method feddyn must be above 0"):
        build("feddyn", {"lam": 0.0})


@pytest.mark.parametrize("name", ["scaffold", "fedsam-s"])
def test_equal_clients_do_not_drift(name):
    plain = {"scaffold": "uniform", "fedsam-s": "fedsam"}[name]
    one, other = (Trial(build(method)) for method in (name, plain))
    same = sample_problem(one.method, clients=sample_problem(one.method, sizes=(6,)).clients * 5, tests=None)
    whole = WHOLE | {"participation": 1.0}
    assert difference(one.run(same, **whole), other.run(same, **whole)) < 1e-12
