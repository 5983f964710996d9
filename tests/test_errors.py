"""What is mistyped, or of another kind, in Python gets the hint that a mistyped key on the command line gets."""

import dataclasses
import errno
import inspect
import re
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from for_each import for_each

import fedkeel as fk
from fedkeel.core.states import write_text
from fedkeel.errors import FedkeelError, RequestError, RunError, explain_os_errors

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
    "trust": lambda: fk.Experiment.load({"dataset": "digits"}, truts=True),
    "epochs": lambda: fk.Phase(epoch=1),
    "server": lambda: fk.Method("a", (fk.Phase(),), fk.BySize(), sever=()),
    "warmup": lambda: fk.CosineRate(warmpu=5),
    "tau": lambda: fk.Calibrated(tua=0.5),
    "rank": lambda: fk.lora(torch.nn.Linear(2, 2), rnak=1),
    "base": lambda: fk.METHODS["specgradfilter"](bas="fedsam"),
    "perturbation": lambda: fk.optim.SAM([], None, perturbations=()),
}


def test_a_mistyped_argument_is_told_the_nearest_one():
    for meant, call in MISTYPED.items():
        with pytest.raises(FedkeelError, match=r"has no (argument|hyper-parameter)") as caught:
            call()
        assert caught.value.hint == f"did you mean {meant!r}?", meant


@for_each("called", [fk.run, fk.run_together])
def test_the_command_lines_precision_is_told_its_name_here(called):
    with pytest.raises(RequestError, match="has no argument: precision") as caught:
        called(None, precision="float64")
    assert caught.value.hint == "did you mean 'dtype'?"


def test_a_mistyped_name_of_ours_is_told_the_nearest_one():
    for known, typo in (
        (fk.METHODS, "fedagv"), (fk.RULES, "HihgPass"), (fk.PARTITIONS, "dirichet"), (fk.MODELS, "resnet20-ng"),
        (fk.DATASETS, "digit"),
    ):  # fmt: skip
        with pytest.raises(KeyError, match=rf"unknown [a-z ]+: {typo}; did you mean"):
            known[typo]
        assert typo not in known
        assert known.get(typo) is None


class Net(torch.nn.Linear):
    """A network of one's own."""


def problem(**changes):
    data = (torch.ones(4, 2), torch.zeros(4, dtype=torch.int64))
    return fk.Problem(**{"loss": torch.nn.functional.cross_entropy, "clients": [data], "model": Net(2, 2)} | changes)


OBJECT = r"hint: an object is meant, not its class: {}\(…\)$"
WRONG = {
    "is read from a table, not from 3": lambda: fk.Experiment.load(3),
    "is read from a table, not from None": lambda: fk.Experiment.load(None),
    "is read from a table, not from 'a.toml'.*tomllib": lambda: fk.Experiment.load("a.toml"),
    "trust is True or False, not 'no'": lambda: fk.Experiment.load({"dataset": "digits"}, trust="no"),
    "is the path of a folder, not NoneType": lambda: fk.load_run(None),
    "is the path of a folder, not list": lambda: fk.load_run(["runs/a"]),
    "holds no zero character": lambda: fk.load_run("a\0b"),
    "^cannot read aaaa": lambda: fk.load_run("a" * 3000),
    "nowhere is not a run": lambda: fk.load_run("nowhere"),
    f"{Path(__file__).name} is not a run": lambda: fk.load_run(__file__),
    "tests is not a run": lambda: fk.load_run(Path(__file__).parent),
    "fk.load_run: missing a required argument: 'path'": lambda: fk.load_run(),
    "fk.compare: too many positional arguments": lambda: fk.compare([], []),
    "rule Sam: missing a required argument: 'rho'": lambda: fk.Sam(),
    "method fedsam: too many positional arguments": lambda: fk.METHODS["fedsam"](1, 2),
    "model must be a text, or a Module: 3": lambda: fk.Experiment(dataset="digits", model=3),
    "model must be .*" + OBJECT.format("Net"): lambda: fk.Experiment(dataset="digits", model=Net),
    "schedule must be .*" + OBJECT.format("CosineRate"): lambda: fk.Experiment(schedule=fk.CosineRate),
    "optimizer must be .*hint: for example": lambda: fk.Experiment(dataset="digits", optimizer=torch.optim.SGD),
    "gradient of a phase .*" + OBJECT.format("Sam"): lambda: fk.method("a", gradient=fk.Sam, weights=fk.BySize()),
    "not the class Iid.*" + OBJECT.format("Iid"): lambda: fk.Experiment(dataset="digits", partition=fk.Iid),
    "base of LongTail must be .*" + OBJECT.format("Iid"): lambda: fk.LongTail(base=fk.Iid, imbalance=10),
    "loss of a problem .*" + OBJECT.format("CrossEntropyLoss"): lambda: problem(loss=torch.nn.CrossEntropyLoss),
    "model of a problem .*" + OBJECT.format("Net"): lambda: problem(model=Net),
    "params of a problem are tensors by name, not list": lambda: problem(model=None, params=[torch.ones(2)]),
    "params of a problem are tensors by name, not Tensor": lambda: problem(model=None, params=torch.ones(2)),
    "params of a problem are tensors: w is float": lambda: problem(model=None, params={"w": 1.0}),
    "separable of a problem must be true or false: 'no'": lambda: problem(separable="no"),
    "classes of a problem must be a whole number: '3'": lambda: problem(classes="3"),
    "head of a problem must be .*: 3": lambda: problem(head=3),
    "tests of a problem are a list of their data.* not int": lambda: problem(tests=3),
    "progress is True, False, None or a follower, not int": lambda: fk.run_together(
        [fk.Experiment(problem=problem())], progress=[3]
    ),
}


@for_each("line", WRONG)
def test_a_value_of_another_kind_is_refused_in_a_line_with_a_hint(line):
    with pytest.raises(RequestError) as refused:
        WRONG[line]()
    assert re.search(line, " ".join(str(refused.value).split()))
    assert "\n" not in refused.value.message
    assert refused.value.hint


def test_space_is_to_be_freed_only_where_none_is_left(monkeypatch, tmp_path):
    full, closed = (errno.ENOSPC, errno.EDQUOT), (errno.EACCES, errno.EROFS, errno.EIO, None)
    for number in (*full, *closed):
        problem = OSError(number, "refused")
        with pytest.raises(RunError) as told, explain_os_errors("cannot write", "let it", RunError, full="free space"):
            raise problem
        assert told.value.hint == ("free space" if number in full else "let it")
        monkeypatch.setattr("fedkeel.core.states.os.replace", Mock(side_effect=problem))
        with pytest.raises(RunError, match="refused") as told:
            write_text(tmp_path / "a", "b")
        assert ("free some space" in told.value.hint) is (number in full)


def test_what_is_explained_keeps_its_signature_and_its_place_in_the_language():
    assert list(inspect.signature(fk.Experiment).parameters)[:2] == ["method", "dataset"]
    experiment = fk.Experiment(dataset="digits", seed=1)
    assert dataclasses.replace(experiment, seed=3) == fk.Experiment(dataset="digits", seed=3)
    assert fk.Sam(0.1) == fk.Sam(rho=0.1)
