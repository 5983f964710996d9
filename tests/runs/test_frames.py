"""Runs as tables, as one line, and held against each other in Python."""

import sys
from dataclasses import replace

import pytest
import torch

import fedkeel as fk
from fedkeel.errors import RequestError
from problems import small_problem


def run_of(**changes):
    settings = dict(method="fedavg", participation=0.5, epochs=1, batch_size=4, lr=0.05, rounds=3)
    out = changes.pop("out", None)
    return fk.run(fk.Experiment(**{"problem": small_problem()} | settings | changes), out=out, engine="serial")


def test_a_table_of_rounds(tmp_path):
    run = run_of(out=tmp_path, evaluate_every=2)
    assert run.result["mean_last_over"] == 2  # rounds 2 and 3: the last one counts
    for one in (run, fk.load_run(tmp_path)):
        frame = one.to_pandas()
        assert frame["round"].tolist() == [1, 2, 3]
        assert frame["accuracy"].dropna().tolist() == run.curve("accuracy")
        assert frame["test_loss"].dropna().tolist() == run.curve("test_loss")
        assert set(frame["method"]) == {"fedavg"}


def test_a_table_of_clients(tmp_path):
    tests = [(torch.randn(n, 6), torch.arange(n) % 3) for n in (3, 0, 8, 5, 1, 6)]
    run_of(out=tmp_path, problem=replace(small_problem(), tests=tests, name="six"), evaluation={"model": "local"})
    read = fk.load_run(tmp_path)
    frame = read.to_pandas("clients")
    assert frame["client"].tolist() == [0, 2, 3, 4, 5] * 3
    assert frame["size"].tolist() == [7, 5, 1, 9, 16] * 3
    assert frame["accuracy"].tolist()[-5:] == [v for v in read.records[-1].clients["accuracy"] if v is not None]
    assert "on six" in repr(read)
    with pytest.raises(RequestError, match="rounds or clients, not: client"):
        read.to_pandas("client")


def test_a_run_is_one_line():
    text = repr(run_of())
    assert "\n" not in text
    assert text.startswith("Run(fedavg on a problem of its own, seed 0: 3 of 3 rounds, accuracy ")


def test_runs_are_compared_in_python():
    problem = small_problem()
    runs = [run_of(problem=problem, method=m, seed=s) for m in ("fedavg", "scaffold") for s in (0, 1)]
    found = fk.compare(runs, baseline="scaffold", target=0.2)
    frame = found.to_pandas()
    assert frame["label"].tolist() == ["fedavg", "scaffold"]
    assert frame["best_mean"][0] == pytest.approx((runs[0].best + runs[1].best) / 2)
    assert frame["difference_mean"][0] == pytest.approx(frame["best_mean"][0] - frame["best_mean"][1])
    assert frame["cost_rounds"].notna().all()
    assert "\n" not in repr(found)
    with pytest.raises(RequestError, match="no run is of: scafold"):
        fk.compare(runs, baseline="scafold")
    with pytest.raises(RequestError, match="nothing to compare"):
        fk.compare([])


def test_without_pandas_there_is_a_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(RequestError, match="needs pandas"):
        run_of(rounds=1).to_pandas()


def test_a_problem_given_again_brings_back_model_and_data(tmp_path):
    problem = replace(small_problem(), name="six")
    run = run_of(out=tmp_path, problem=problem)
    with pytest.raises(fk.ExperimentError, match="given from Python"):
        fk.load_run(tmp_path).model()
    read = fk.load_run(tmp_path, problem=replace(small_problem(), name="renamed"))
    for one, other in zip(read.model().parameters(), run.model().parameters(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(RequestError, match="was trained on another problem"):
        fk.load_run(tmp_path, problem=small_problem(classes=4))
