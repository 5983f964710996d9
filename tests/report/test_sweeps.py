"""Runs that differ in one number are found, named and drawn."""

from dataclasses import replace
from statistics import stdev
from types import SimpleNamespace

import pytest
from invented import record

from fedkeel.report.series import Spread
from fedkeel.report.source import Group, Source
from fedkeel.report.sweeps import (
    Trial,
    find_sweeps,
    on_shared_seeds,
    simplify,
    sweep_charts,
    trial_of,
    trials_of_ledger,
)


def trial(method, mean=50.0, **settings):
    given = {"dataset": "digits", "model": "mlp"} | {name.replace("__", "."): value for name, value in settings.items()}
    return Trial(method, given, Spread(mean, 1.0, 2), [1, 2], [mean - 5, mean])


def shape(sweeps):
    return [(one.key, {name: [t.result.mean for t in line] for name, line in one.lines.items()}) for one in sweeps]


def test_only_runs_that_differ_in_one_number_make_a_line():
    trials = [
        trial("fedavg", 60, partition__alpha=1.0, lr=0.1), trial("fedavg", 50, partition__alpha=0.1, lr=0.1),
        trial("fedsam", 55, partition__alpha=0.1, lr=0.1), trial("fedsam", 65, partition__alpha=1.0, lr=0.1),
        trial("fedprox", 40, partition__alpha=0.1, lr=0.1),  # one value only
        trial("fedavg", 30, partition__alpha=0.3, lr=0.5),  # differs in two
    ]  # fmt: skip
    assert shape(find_sweeps(trials)) == [("partition.alpha", {"fedavg": [50, 60], "fedsam": [55, 65]})]
    assert find_sweeps(trials)[0].fixed == "digits, mlp"


def test_two_numbers_make_two_charts_and_lines_say_what_else_differs():
    trials = [
        trial("fedfft", 10 * i + j, method__rho=rho, method__ratio=ratio)
        for i, rho in enumerate((0.05, 0.1))
        for j, ratio in enumerate((0.01, 0.02))
    ]
    assert shape(find_sweeps(trials)) == [
        ("method.ratio", {"fedfft rho=0.05": [0, 1], "fedfft rho=0.1": [10, 11]}),
        ("method.rho", {"fedfft ratio=0.01": [0, 10], "fedfft ratio=0.02": [1, 11]}),
    ]


def test_other_data_stand_in_another_chart():
    trials = [trial("fedavg", lr=lr, dataset=name) for lr in (0.1, 0.2) for name in ("digits", "cifar10")]
    assert [one.fixed for one in find_sweeps(trials)] == ["digits, mlp", "cifar10, mlp"]


def test_charts_that_differ_in_another_setting_say_so():
    trials = [trial("fedprox", method__mu=mu, lr=lr) for mu in (0.1, 0.2) for lr in (0.03, 0.1)]
    told = {(one.key, one.fixed) for one in find_sweeps(trials)}
    assert told >= {("method.mu", "digits, mlp, lr 0.03"), ("method.mu", "digits, mlp, lr 0.1")}


def test_a_number_of_a_method_goes_by_its_own_name_where_it_has_one_value():
    sam = {"name": "fedsam", "papers": ["x"], "phases": [{"perturb": [{"rule": "Sam", "rho": 0.1}], "gradient": []}]}
    assert simplify({"method": sam, "lr": 0.1})["method.rho"] == 0.1
    two = {
        "name": "x",
        "phases": [{"perturb": [{"rule": "Sam", "rho": 0.1}]}, {"perturb": [{"rule": "Sam", "rho": 0.2}]}],
    }
    flat = simplify({"method": two})
    assert "method.rho" not in flat
    assert flat["method.phases.1.perturb.0.rho"] == 0.2


def test_runs_of_a_ledger_are_compared_as_far_as_they_came_and_as_they_are_judged():
    def entry(lr, seed, rounds, **more):
        known = dict(best=60.0, last=50.0 + seed, personal=None, evaluation="last", superseded="", curve={"1": 10.0})
        settings = {"dataset": "digits", "model": "mlp", "lr": lr, "method": {"name": "fedavg"}}
        return SimpleNamespace(settings=settings, seed=seed, rounds=rounds, **known | more)

    trials = trials_of_ledger([entry(0.1, 0, 5), entry(0.1, 1, 5), entry(0.2, 0, 5), entry(0.3, 0, 2)])
    assert [t.result.mean for t in trials] == [50.5, 50.0, 50.0]
    # the third stopped earlier; on the seed that the others share
    assert shape(find_sweeps(trials)) == [("lr", {"fedavg": [50.0, 50.0]})]
    assert trials_of_ledger([entry(0.1, 0, 5, superseded="a fault")]) == []
    for personal, shown in ((70.0, 70.0), (None, 60.0)):  # what its policy reports, where it has one
        (found,) = trials_of_ledger([entry(0.1, 0, 5, evaluation="best", personal=personal)])
        assert found.result.mean == shown


def test_a_result_and_its_deviation_are_in_percent(tmp_path):
    runs = [Source(tmp_path, {"seed": i}, "", [record(1, accuracy=a)], {}, {}) for i, a in enumerate((0.5, 0.7))]
    found = trial_of(Group("fedavg", "", runs)).result
    assert found.count == 2
    assert (found.mean, found.deviation) == (pytest.approx(60), pytest.approx(100 * stdev([0.5, 0.7])))


def test_charts_say_what_they_show():
    trials = [trial("fedavg", 50 + 10 * a, partition__alpha=a) for a in (0.1, 1.0)]
    results, overlaid = sweep_charts(trials)
    assert results.file == "against-1-alpha"
    assert results.figure.axes[0].get_xlabel().startswith("Dirichlet's α")
    assert results.figure.axes[0].get_ylabel() == "best test accuracy (%)"
    ((_, _, (bars,)),) = results.figure.axes[0].containers
    assert [bar[:, 1].tolist() for bar in bars.get_segments()] == [[50, 52], [59, 61]]  # one deviation
    assert [line.get_label() for line in overlaid.figure.axes[0].lines] == ["fedavg, alpha 0.1", "fedavg, alpha 1"]


def test_runs_of_other_seeds_are_not_compared():
    def made(lr, seeds):
        return replace(trial("fedavg", lr=lr), seeds=frozenset(seeds), on_seeds=lambda kept: made(lr, kept))

    found = on_shared_seeds([made(0.1, {0, 1}), made(0.2, {0}), made(0.3, {0, 1}), made(0.4, {7})])
    assert [(one.settings["lr"], set(one.seeds)) for one in found] == [(0.1, {0}), (0.2, {0}), (0.3, {0})]
