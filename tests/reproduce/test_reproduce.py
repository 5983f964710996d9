"""Reported against measured: which cells, what is measured, and what the verdict says."""

from dataclasses import replace
from pathlib import Path

import pytest

import fedkeel as fk
from fedkeel import ledger
from fedkeel.ledger import Entry
from fedkeel.papers import Cell
from fedkeel.reproduce import chosen, entry_of, experiment_of, judge, measured
from fedkeel.results_page import page

ROOT = Path(__file__).parents[2]
TINY = {"dataset": "digits", "model": "logistic", "method": "fedavg", "rounds": 3, "epochs": 1, "lr": 0.1}


def cell(row, reported, **changes):
    return replace(Cell("fedfft", "1", row, "cifar10, 0.1", dict(TINY), reported), **changes)


def entry(row, value, seed=0, rounds=3, paper_rounds=3):
    fixed = dict(
        kind="accuracy", evaluation="best", reported=None, spread=None, best=value, last=value, mean_last=value
    )
    return Entry(
        "fedfft", "1", row, "cifar10, 0.1", seed, **fixed, measured=value, rounds=rounds, rounds_paper=paper_rounds,
        seconds=1.0, fingerprint="f", model_digest="d",
    )  # fmt: skip


def verdicts(cells, entries):
    return [judged.verdict for judged in judge(cells, entries)]


def test_cells_are_chosen_by_their_words_in_any_order():
    found = chosen("fedfft:1", "0.1, cifar10, fedfft-d")
    assert [c.label for c in found] == ["FedFFT-D, cifar10, 0.1"]
    assert chosen("fedfft:1", "FedFFT-D, cifar10, 0.1") == found
    assert len(chosen("fedfft:1", "*cifar10*")) > 10
    with pytest.raises(fk.RequestError, match="no cell"):
        chosen("fedfft:1", "FedFFT-Q")
    with pytest.raises(fk.RequestError, match="unknown paper"):
        chosen("fedfft2:1", None)


def test_verdicts():
    cells = [cell("A", 80.0), cell("B", 70.0), cell("C", 60.0)]
    assert verdicts(cells, []) == ["not run"] * 3
    assert verdicts(cells, [entry("A", 80.9), entry("B", 69.1)])[:2] == ["within seed noise"] * 2
    assert verdicts(cells, [entry("A", 75.0), entry("B", 65.0), entry("C", 55.0)]) == ["ordering holds"] * 3
    assert verdicts(cells, [entry("A", 65.0), entry("B", 75.0), entry("C", 55.0)]) == [
        "differs",
        "differs",
        "ordering holds",
    ]
    assert verdicts(cells, [entry("A", 75.0)])[0] == "differs"


def test_seeds_widen_the_noise():
    one = [cell("A", 80.0)]
    assert verdicts(one, [entry("A", 77.0, seed=s) for s in range(3)]) == ["differs"]
    assert verdicts(one, [entry("A", v, seed=i) for i, v in enumerate((74.0, 77.0, 80.0))]) == ["within seed noise"]
    assert verdicts([cell("A", 80.0, spread=2.0)], [entry("A", 77.0)]) == ["within seed noise"]


def test_a_shortened_run_is_never_within_noise():
    cells = [cell("A", 80.0), cell("B", 70.0)]
    short = [entry("A", 80.0, rounds=1), entry("B", 60.0, rounds=1)]
    assert verdicts(cells, short) == ["ordering holds"] * 2
    assert verdicts(cells, short[:1]) == ["shortened", "not run"]
    assert verdicts(cells, [short[0], entry("B", 60.0)])[0] == "shortened"  # unequal lengths are not compared


def test_damaged_numbers_are_not_judged():
    assert verdicts([cell("A", 80.0, uncertain=True)], [entry("A", 80.0)]) == ["not judged"]


def test_a_cell_is_run_measured_and_kept(tmp_path):
    one = cell("A", 50.0)
    run = fk.run(experiment_of(one, seed=1, rounds=2), engine="serial")
    assert run.experiment.seed == 1
    assert run.experiment.rounds == 2
    assert measured(one, run) == pytest.approx(100 * run.best)
    assert measured(replace(one, evaluation="last"), run) == pytest.approx(100 * run.last)
    target = 100 * run.curve("accuracy")[0]
    assert measured(replace(one, kind="rounds", target=target), run) == 1
    assert measured(replace(one, kind="rounds", target=101.0), run) is None
    kept = entry_of(one, run, {"device": "cpu"})
    assert kept.shortened
    path = tmp_path / "results" / "ledger.jsonl"
    ledger.append(kept, path)
    ledger.append(kept, path)
    assert ledger.read(path) == [kept]


def test_a_damaged_ledger_is_said(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_text("{not json}\n")
    with pytest.raises(fk.RequestError, match="line 1"):
        ledger.read(path)


def test_the_results_page_is_made_from_the_ledger():
    entries = ledger.read(ROOT / "results" / "ledger.jsonl")
    written = ROOT / "docs" / "results.md"
    assert not entries or written.read_text(encoding="utf-8") == page(entries)
