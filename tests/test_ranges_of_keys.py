"""Every number that an experiment, an evaluation, a partition, an objective or an analysis takes has a range, and
what lies outside is refused when it is given."""

from dataclasses import MISSING, fields

import pytest
from annotations import has_range
from for_each import for_each

import fedkeel as fk
from fedkeel.core.objectives import OBJECTIVES
from fedkeel.data.partition.registry import PARTITIONS, load_partition
from fedkeel.errors import RequestError
from fedkeel.problems.policy import Evaluation
from fedkeel.runs.experiment import Experiment
from fedkeel.studies.diagnose import Extent
from fedkeel.typed_values import types_of

KINDS = [Experiment, Evaluation, Extent, *PARTITIONS.values(), *OBJECTIVES.values()]
SOUND = {"alpha": 0.5, "clients": 5, "classes": 2, "imbalance": 2.0, "base": fk.Iid(5), "dataset": "digits"}
ODD = [float("nan"), float("inf"), float("-inf"), 10**400, -(10**400), -1e300]


def numeric(kind):
    """Fields that take a number, alone or in a list."""
    types = types_of(kind)
    return [f.name for f in fields(kind) if any(word in str(types[f.name]) for word in ("int", "float"))]


def make(kind, **changes):
    needed = {f.name for f in fields(kind) if f.default is MISSING} | ({"dataset"} if kind is Experiment else set())
    return kind(**{name: value for name, value in SOUND.items() if name in needed} | changes)


@for_each("kind", KINDS)
def test_every_number_has_a_range(kind):
    types = types_of(kind)
    assert [name for name in numeric(kind) if not has_range(types[name])] == []


@for_each(("kind", "name"), [(kind, name) for kind in KINDS for name in numeric(kind)])
def test_numbers_out_of_range_are_refused(kind, name):
    for value in ODD:
        for given in (value, [value], [1, value], [[value]]):
            with pytest.raises(RequestError) as caught:
                make(kind, **{name: given})
            assert name in caught.value.message
            assert "\n" not in caught.value.message
            assert caught.value.hint


@for_each(
    "changes",
    [
        {"lr": -1}, {"lr": 0}, {"lr_decay": 0}, {"lr_decay": 2**64}, {"lr_decay": 1.5, "rounds": 10_000}, {"clip": -1},
        {"weight_decay": -0.1}, {"rounds": 0}, {"rounds": 10**12}, {"epochs": 0}, {"epochs": (2, 1)},
        {"epochs": (0, 1)},
        {"batch_size": 0}, {"validation": 1}, {"unavailable": 1.0}, {"participation": 0}, {"participation": 1.01},
        {"participation": "bernoulli:nan"}, {"participation": "shuffled:2"}, {"participants": [[-1]]},
        {"evaluate_every": 0}, {"seed": 2**63},
        {"partition_seed": -(2**63)}, {"buffers": "x"}, {"on_nonfinite": 3}, {"evaluation": {"share": 1}},
        {"evaluation": {"batch": 0}}, {"evaluation": {"last": 0}}, {"evaluation": {"model": "x"}},
        {"partition": {"kind": "feature-shift", "fewest": "x", "base": "iid:clients=3"}},
        {"partition": {"kind": "pathological", "classes": 2, "clients": 3, "form": [0]}},
        {"partition": {"kind": "dirichlet", "alpha": 0.1, "clients": 3, "form": [0]}},
        {"partition": {"kind": "long-tail", "imbalance": 0.5, "base": "iid:clients=3"}},
    ],
)  # fmt: skip
def test_keys_out_of_range_are_refused_when_given(changes):
    with pytest.raises(RequestError):
        Experiment(dataset="digits", **changes)


def test_options_of_a_run_out_of_range_are_refused():
    asked = Experiment(dataset="digits", model="logistic", rounds=1)
    for changes in ({"checkpoint_seconds": -1}, {"checkpoint_seconds": float("nan")}, {"workers": 10**6}):
        with pytest.raises(RequestError, match=next(iter(changes))):
            fk.run(asked, **changes)


@pytest.mark.parametrize("kind", ["long-tail", "feature-shift"])
def test_a_base_is_a_partition(kind):
    with pytest.raises(RequestError, match="partition"):
        make(PARTITIONS[kind], base=3)
    with pytest.raises(RequestError, match="partition"):
        load_partition({"kind": kind, "imbalance": 2, "base": 3} if kind == "long-tail" else {"kind": kind, "base": 3})
