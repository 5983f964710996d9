"""A learning rate that is matched to another method's step length comes from the ledger, and from nothing else."""

from dataclasses import replace

import pytest

from fedkeel.cli.main import call
from fedkeel.papers import find, tables
from fedkeel.papers.ledger import Entry, read
from fedkeel.papers.matched_rates import matched
from fedkeel.papers.reproduce import done, runs_of, settings_of, varied
from fedkeel.papers.results_page import write_question
from fedkeel.papers.verdicts import judge

ROWS = {c.row: c for c in find("questions:step")}
MATCHED = ROWS["FedAvg, matched lr"]
PAIR = ("SpecGradFilter", "FedAvg")


def entry(row, step, rounds=100, seed=0, **changes):
    one = ROWS[row]
    made = Entry(
        "questions", "step", row, one.column, seed, "accuracy", "best", None, None, 50.0, 50.0, 50.0, 50.0, rounds, 300,
        1.0, "f", "d", settings=settings_of(one) | changes, step=step,
    )  # fmt: skip
    return made


def test_the_rate_is_that_of_the_mean_step_lengths():
    lines = [entry("SpecGradFilter", 0.03), entry("FedAvg", 0.05), entry("FedAvg, lr 0.05", 0.04)]
    (found,) = matched([MATCHED], lines)
    assert found.experiment["lr"] == pytest.approx(0.1 * 0.03 / 0.05)
    assert not found.unmeasured
    assert matched(list(ROWS.values())[:2], lines) == list(ROWS.values())[:2]


def test_it_needs_runs_of_both_that_are_equally_long():
    for lines in ([], [entry("FedAvg", 0.05)], [entry("FedAvg", 0.05), entry("SpecGradFilter", 0.03, rounds=50)]):
        (found,) = matched([MATCHED], lines)
        assert "run those first" in found.unmeasured


def test_it_is_that_of_the_longest_runs_that_both_have():
    lengths = {50: (0.01, 0.05), 100: (0.03, 0.05), 200: (0.04, None)}
    lines = [
        entry(row, step, rounds) for rounds, steps in lengths.items() for row, step in zip(PAIR, steps, strict=True)
    ]
    (found,) = matched([MATCHED], lines)
    assert found.experiment["lr"] == pytest.approx(0.1 * 0.03 / 0.05)


def test_its_own_runs_are_known_by_name_and_not_taken_for_fedavgs():
    lines = [entry("SpecGradFilter", 0.03), entry("FedAvg", 0.05)]
    (judged,) = judge([MATCHED], lines)
    assert not judged.entries
    assert not done(MATCHED, 0, 100, lines)
    own = entry("FedAvg, matched lr", 0.03, lr=0.06)
    (judged,) = judge([MATCHED], [*lines, own])
    assert judged.entries == (own,)
    assert done(MATCHED, 0, 100, [*lines, own])


def test_what_was_tried_for_it_does_not_replace_its_own_runs():
    own, tried = (entry("FedAvg, matched lr", 0.03, lr=0.06, **more) for more in ({}, {"epochs": 1}))
    assert runs_of(MATCHED, [own, tried]) == [own]
    assert not done(MATCHED, 0, 100, [tried])
    (other,) = varied([MATCHED], [(("epochs",), 1)])
    assert runs_of(other, [own, tried]) == [tried]


def test_a_rate_that_was_tried_is_not_taken_for_the_matched_one():
    own, older = (
        replace(entry("FedAvg, matched lr", 0.03, lr=0.06), lr_matches=row) for row in ("SpecGradFilter", None)
    )
    tried = replace(entry("FedAvg, matched lr", 0.03, lr=0.9), lr_matches="")
    assert runs_of(MATCHED, [own, tried]) == [own]
    assert runs_of(MATCHED, [older, tried]) == [older]


def test_the_page_names_every_rate_that_was_matched_and_the_mean_step():
    """Another seed of what it is matched to moves the rate; the earlier run stays."""
    table = next(one for one in tables("questions") if one.name == "step")
    lines = [entry("FedAvg, matched lr", 0.03, rounds=300, lr=0.06)]
    lines += [entry("FedAvg, matched lr", 0.04, rounds=300, seed=1, lr=0.07)]
    assert "| 300 | 2 | 0.0 | 0.06, 0.07 | 0.035 |" in "\n".join(write_question(table, judge(table.cells, lines)))


def test_a_rate_that_is_given_is_the_only_one_that_counts():
    own = entry("FedAvg, matched lr", 0.03, lr=0.06)
    (given,) = varied([MATCHED], [(("lr",), 0.02)])
    assert not done(given, 0, 100, [own])
    assert done(given, 0, 100, [entry("FedAvg, matched lr", 0.03, lr=0.02)])


def test_the_command_keeps_the_length_of_steps(tmp_path):
    book = tmp_path / "ledger.jsonl"
    small = ["--set", "dataset=digits", "--set", "model=logistic", "--set", "augment=none", "--set", "epochs=1"]
    asked = ["reproduce", "questions:step", "--ledger", str(book), "--out", str(tmp_path / "runs"), "--rounds", "2"]
    assert call([*asked, *small, "--engine", "serial", "--no-progress", "--cell", "FedAvg, cifar10, 0.1"]) == 0
    (line,) = read(book)
    assert line.lr_matches == ""
    assert line.step is not None
    assert 0 < line.step < 0.1 * (10 + 1)  # no longer than the rate times the clip and a little decay
