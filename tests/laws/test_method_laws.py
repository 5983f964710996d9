"""Laws that every method of the table obeys; a new method adds no test code."""

from __future__ import annotations

import inspect
import tomllib
from dataclasses import replace
from functools import cache

import pytest
import tomli_w
import torch
from every_method import few_by_default

import fedkeel as fk
from fedkeel.core.trees import tensors
from fedkeel.engines.serial import SerialEngine
from fedkeel.methods import METHODS, PLUGINS, build, composition, hyperparameters
from fedkeel.runs import prepare, start
from problems import model_for, quick, small_problem

SIZES = (7, 4, 5, 1, 6)
everything = pytest.mark.parametrize("name", few_by_default())


@pytest.fixture(scope="module", autouse=True)
def unchecked():
    """The data are sound, and every method is rehearsed where its card is made: no run need do so again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "check_data", lambda task: None)
        patch.setattr(prepare, "rehearse", lambda method, task: None)
        yield


def problem(sizes=SIZES, **changes):
    given = small_problem(sizes=sizes, test=4)
    settings = {"model": given.model, "loss": given.loss, "clients": given.clients, "test": given.test, "classes": 3,
                "proxy": given.test, "tests": given.clients} | changes  # fmt: skip
    return fk.Problem(**settings)


def experiment(name, given=None, **changes):
    settings = {"rounds": 3, "participation": 0.6, "epochs": 1, "batch_size": 3, "lr": 0.05, "weight_decay": 1e-3,
                "clip": 10.0} | changes  # fmt: skip
    given = given or problem()
    method = quick(name) if isinstance(name, str) else name
    return fk.Experiment(problem=replace(given, model=model_for(name, given.model)), method=method, **settings)


def run(name, given=None, out=None, **changes):
    return fk.run(experiment(name, given, **changes), dtype=torch.float64, engine="serial", out=out)


def difference(one, other):
    return max((one[name] - other[name]).abs().max().item() for name in one)


@cache
def counted(name):
    """A run of three rounds, and how many gradients were taken in it. Several laws look at it."""
    taken, engines = [0], []
    gradient = SerialEngine.gradient

    def counting(self, params, batch, objective, message, buffers):
        engines.append(self)
        taken[0] += self is engines[0] and objective.differentiable  # the server's own are not here
        return gradient(self, params, batch, objective, message, buffers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SerialEngine, "gradient", counting)
        return run(name), taken[0]


@everything
def test_everything_is_finite_after_three_rounds(name):
    found, _ = counted(name)
    assert all(torch.isfinite(slot).all() for slot in tensors(found.server))
    assert not any(record.dropped for record in found.records)
    first = model_for(name, problem().model)
    assert difference(found.params, {n: p.detach().double() for n, p in first.named_parameters()}) > 0


def test_a_method_survives_a_file():
    for method in map(build, METHODS):
        assert composition.load(tomllib.loads(tomli_w.dumps(composition.save(method)))) == method


def test_hyperparameters_can_be_set_to_their_defaults():
    for name, make in METHODS.items():
        known = {word: value for word, value in hyperparameters(make).items() if value is not None}
        assert build(name, known) == build(name), name


@everything
def test_declared_backward_passes_are_the_counted_ones(name):
    found, taken = counted(name)
    assert taken == sum(record.backward_passes for record in found.records) > 0


@everything
def test_a_resumed_run_is_an_uninterrupted_one(name, tmp_path):
    run(name, out=tmp_path / "run", rounds=1)
    assert run(name, out=tmp_path / "run", rounds=3).result["model_digest"] == counted(name)[0].result["model_digest"]


COUNTS_CLIENTS = {"fedawa@released", "fedcr"}  # by their place among the participants; in the key of their noise


@pytest.mark.parametrize("name", few_by_default([name for name in METHODS if name not in COUNTS_CLIENTS]))
def test_the_numbering_of_clients_changes_nothing(name):
    order = [3, 0, 4, 2, 1]  # the new client k is the old order[k]
    plain, schedule = problem(), [[0, 1], [1, 2, 3], [0, 4]]
    moved = problem(clients=[plain.clients[i] for i in order])
    whole = {"batch_size": 8}
    one = run(name, plain, participants=schedule, **whole)
    other = run(name, moved, participants=[[order.index(i) for i in clients] for clients in schedule], **whole)
    assert difference(one.params, other.params) < 1e-9


@everything
def test_what_is_not_a_number_reaches_nobody_else(name):
    plain = problem()
    inputs, labels = plain.clients[2]
    broken = problem(clients=[*plain.clients[:2], (inputs * torch.nan, labels), *plain.clients[3:]])
    with_it = run(name, broken, participants=[[1, 2, 3], [1, 3]], rounds=2)
    without = run(name, plain, participants=[[1, 3], [1, 3]], rounds=2)
    assert with_it.records[0].dropped == [2]
    assert with_it.result["model_digest"] == without.result["model_digest"]


@everything
def test_one_client_with_one_sample_and_no_gradient(name):
    flat = problem(sizes=(1,), loss=lambda output, target: 0 * output.sum(-1))
    found = run(name, flat, participation=1.0, batch_size=1)
    assert all(torch.isfinite(slot).all() for slot in tensors(found.server))
    assert not any(record.dropped for record in found.records)


def test_a_method_says_what_it_is():
    for name, make in METHODS.items():
        about = inspect.getdoc(make)
        assert about.split("\n")[0].endswith((".", ".  rho_local = 0: SGD.")), name
        if "@released" in name:
            assert "Released code" in about, name
        if "Paper:" in about:
            assert "Released code" in about, name
            assert "Here:" in about, name


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


@pytest.mark.parametrize(
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
    found = run(name)
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
    ("specgradfilter+scaffold", {"ratio": 0.0}, "scaffold", {}),
    ("specgradfilter+fedprox", {"ratio": 0.0, "mu": 0.0}, "uniform", {}),
    ("fedavgm", {"momentum": 0.0}, "fedavg", {}),
    ("fedexp", {"epsilon": 1e9}, "uniform", {}),
    ("ghbm", {"beta": 0.0}, "fedavg", {}),
    ("localghbm", {"beta": 0.0}, "fedavg", {}),
    ("fedhbm", {"beta": 0.0}, "fedavg", {}),
    ("fednsam", {"gamma": 0.0, "rho": 0.0}, "uniform", {}),
    ("feddecorr", {"beta": 0.0}, "fedavg", {}),
    ("feddecorr+scaffold", {"beta": 0.0}, "scaffold", {}),
    ("fedswa", {"rho": 1.0, "server_lr": 1.0}, "uniform", {}),
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


WHOLE = {"batch_size": 8, "epochs": 2}
"""Measuring phases draw other batches, so clients see all of their data in each step."""


@cache
def of_base(name, **settings):
    return run(build(name, settings), **WHOLE)


@pytest.mark.parametrize(("name", "settings", "base", "base_settings"), REDUCTIONS)
def test_neutral_values_give_the_base_method(name, settings, base, base_settings):
    one, other = run(build(name, settings), **WHOLE), of_base(base, **base_settings)
    assert difference(one.params, other.params) < 1e-12


def test_fedgmt_without_its_teacher_is_its_dual():
    for name, dual, weights in (
        ("fedgmt", fk.ActiveDual(0.1, pull=False), fk.Uniform()),
        ("fedgmt@released", [fk.DynamicDual(0.1, pull=False), fk.LocalMomentum(0.9)], fk.BySize()),
    ):
        one, other = (
            run(build(name, {"gamma": 0.0}), **WHOLE),
            run(fk.method("x", gradient=dual, weights=weights), **WHOLE),
        )
        assert difference(one.params, other.params) < 1e-12


def test_local_optimisers_without_what_the_server_adds():
    """FedAdamW adds nothing, FedMuon mixes nothing in, FedMoSWA corrects nothing."""
    for one, chain, weights in (
        (build("local-adamw"), fk.AdamW(), fk.BySize()),
        (build("local-muon"), fk.Muon(), fk.BySize()),
        (build("fedadamw", {"alpha": 0.0}), fk.AlignedAdamW(), fk.Uniform()),
        (build("fedmuon", {"mix": 0.0}), fk.Muon(nesterov=False, moments="average"), fk.Uniform()),
    ):
        other = fk.method("x", gradient=chain, weights=weights)
        assert difference(run(one, **WHOLE).params, run(other, **WHOLE).params) < 1e-12, one.name


def test_feddyn_refuses_lambda_zero():
    with pytest.raises(fk.MethodError, match="lam of method feddyn must be above 0"):
        build("feddyn", {"lam": 0.0})


@pytest.mark.parametrize("name", ["scaffold", "fedsam-s"])
def test_equal_clients_do_not_drift(name):
    same = problem(sizes=(6,)).clients * 5
    plain = {"scaffold": "uniform", "fedsam-s": "fedsam"}[name]
    whole = WHOLE | {"participation": 1.0}
    one, other = (run(method, problem(clients=same), **whole).params for method in (name, plain))
    assert difference(one, other) < 1e-12
