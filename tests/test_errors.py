"""A mistyped argument in Python gets the hint that a mistyped key on the command line gets."""

import dataclasses
import inspect

import pytest

import fedkeel as fk
from fedkeel.errors import FedkeelError

MISTYPED = {
    "dataset": lambda: fk.Experiment(datset="digits"),
    "rounds": lambda: fk.Experiment(dataset="digits", round=3),
    "out": lambda: fk.run(fk.Experiment(dataset="digits"), ot="x"),
    "callbacks": lambda: fk.run_together([], callback=[]),
    "problem": lambda: fk.load_run("nowhere", problm=None),
    "baseline": lambda: fk.compare([], basline="fedavg"),
    "rho": lambda: fk.METHODS["fedsam"](rhoo=1),
    "ratio": lambda: fk.HighPass(ration=0.1),
    "alpha": lambda: fk.Dirichlet(alfa=1),
    "patience": lambda: fk.EarlyStop(patince=3),
    "metric": lambda: fk.KeepBest(metrik="f1"),
    "loss": lambda: fk.Problem(los=1),
    "perturb": lambda: fk.method("a", perturbs=[]),
    "model": lambda: fk.Evaluation(modell="local"),
}


def test_a_mistyped_argument_is_told_the_nearest_one():
    for meant, call in MISTYPED.items():
        with pytest.raises(FedkeelError, match=r"has no (argument|hyper-parameter)") as caught:
            call()
        assert caught.value.hint == f"did you mean {meant!r}?", meant


def test_what_is_explained_keeps_its_signature_and_its_place_in_the_language():
    assert list(inspect.signature(fk.Experiment).parameters)[:2] == ["method", "dataset"]
    experiment = fk.Experiment(dataset="digits", seed=1)
    assert dataclasses.replace(experiment, seed=3) == fk.Experiment(dataset="digits", seed=3)
    assert fk.Sam(0.1) == fk.Sam(rho=0.1)
