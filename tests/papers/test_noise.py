"""The noise of verdicts: measured by repeated runs of full length, assumed only where nothing was repeated."""

from dataclasses import replace
from math import sqrt

import pytest

from fedkeel.papers import find
from fedkeel.papers.ledger import Entry, append, keep_newest, read, read_lines
from fedkeel.papers.noise import ASSUMED, SHARE, TWINS, NoiseOfLedger
from fedkeel.papers.reproduce import settings_of
from fedkeel.papers.results_page import page
from fedkeel.papers.verdicts import judge

CELLS = {cell.row: cell for cell in find("fedfft:1") if cell.column == "cifar10, 0.1"}
FEDAVG, FEDDYN = CELLS["FedAvg"], CELLS["FedDyn"]


def entry(cell, value, seed=0, rounds=800, **changes):
    made = Entry(
        cell.paper, cell.table, cell.row, cell.column, seed, cell.kind, cell.evaluation, None, None, value, value,
        value - 5, value, rounds, 800, 60.0, "f", "d", settings=settings_of(cell), bests=[[10, 50.0], [rounds, value]],
    )  # fmt: skip
    return replace(made, **changes)


def test_seeds_of_all_cells_of_a_data_set_and_network_are_pooled():
    lines = [entry(FEDAVG, 70.0), entry(FEDAVG, 72.0, 1), entry(FEDDYN, 75.0), entry(FEDDYN, 76.0, 1)]
    found = NoiseOfLedger(lines).of(CELLS["FedFFT"])  # which was not run at all
    assert found.std == pytest.approx(sqrt((2.0 + 0.5) / 2))
    assert (found.seeds.values, found.seeds.groups, found.assumed) == (4, 2, False)
    assert found.source == "4 runs of 2 cells with several seeds"


def test_other_networks_shortened_and_superseded_runs_say_nothing():
    lines = [entry(FEDAVG, 70.0), entry(FEDAVG, 72.0, 1)]
    for changes in ({"rounds": 400}, {"superseded": "computed otherwise"}, {"settings": {}}):
        found = NoiseOfLedger([lines[0], replace(lines[1], **changes)]).of(FEDAVG)
        assert (found.std, found.assumed) == (ASSUMED, True)
    other = next(cell for cell in find("specgradfilter:I") if cell.column == "cifar10, 0.1")
    assert NoiseOfLedger(lines).of(other).std == ASSUMED
    assert NoiseOfLedger(lines).of(replace(other, kind="rounds", target=40.0)).std == SHARE


def test_a_run_that_was_made_again_is_an_identical_one(tmp_path):
    book = tmp_path / "ledger.jsonl"
    for value in (70.0, 71.0):
        append(entry(FEDAVG, value), book)
    found = NoiseOfLedger(read_lines(book)).of(FEDAVG)
    assert (found.std, found.seeds) == (pytest.approx(sqrt(0.5)), None)
    assert found.source == "2 runs of 1 identical experiments"
    assert [line.best for line in read(book)] == [71.0]  # and the newest counts
    assert keep_newest(read_lines(book)) == read(book)
    assert "| 0.71 | 2 runs of 1 identical experiments |" in page(read_lines(book))


def test_twins_are_identical_runs():
    (first, row), (second, other) = TWINS[0]
    mine, its = (
        next(c for c in find(table) if (c.row, c.column) == (name, "cifar10, 0.1"))
        for table, name in ((first, row), (second, other))
    )
    lines = [entry(one, value, rounds_paper=300, rounds=300) for one, value in ((mine, 48.0), (its, 47.0))]
    assert NoiseOfLedger(lines).of(mine).identical.values == 2
    lines[1] = replace(lines[1], settings=lines[1].settings | {"lr": 0.5})  # tried otherwise
    assert NoiseOfLedger(lines).of(mine).identical is None


def test_every_twin_is_two_rows_of_tables():
    for pair in TWINS:
        assert all(any(cell.row == row for cell in find(table)) for table, row in pair)


def test_rounds_to_a_target_vary_by_a_share_of_themselves():
    lines = [entry(FEDAVG, 70.0, bests=[[90, 60.0]]), entry(FEDAVG, 70.0, 1, bests=[[110, 60.0]])]
    rounds = replace(FEDAVG, kind="rounds", target=60.0)
    assert NoiseOfLedger(lines).of(rounds).std == pytest.approx(sqrt(0.02))
    assert NoiseOfLedger(lines).of(replace(rounds, kind="seconds")).assumed  # of one machine: never measured


def test_verdicts_take_the_noise_of_repeated_runs_until_a_cell_has_seeds_enough():
    noisy = [entry(FEDDYN, 70.0), entry(FEDDYN, 76.0, 1)]
    pair = [entry(FEDAVG, FEDAVG.reported - 3, seed) for seed in (0, 1)]
    assert judge([FEDAVG], pair)[0].verdict == "differs"
    assert judge([FEDAVG], [*pair, *noisy])[0].verdict == "within seed noise"
    third = entry(FEDAVG, FEDAVG.reported - 3, 2)
    assert judge([FEDAVG], [*pair, third, *noisy])[0].verdict == "differs"  # three seeds say themselves that they agree
    assert judge([replace(FEDAVG, spread=2.0)], [*pair, third])[0].verdict == "within seed noise"


def test_runs_of_another_length_are_not_identical():
    """A seed that was run for 800 and for 900 rounds ended at other accuracies: that is no noise."""
    longer = entry(FEDAVG, 79.0, rounds=900)
    assert NoiseOfLedger([entry(FEDAVG, 70.0), longer]).of(FEDAVG).identical is None
    again = NoiseOfLedger([entry(FEDAVG, 70.0), entry(FEDAVG, 71.0), longer]).of(FEDAVG).identical
    assert (again.values, again.groups, again.std) == (2, 1, pytest.approx(sqrt(0.5)))


def test_every_target_has_noise_of_its_own():
    """The noise of rounds to one target says nothing of those to another, in whatever order both are asked for."""
    lines = [
        entry(FEDAVG, 70.0, bests=[[90, 60.0], [400, 70.0]]), entry(FEDAVG, 70.0, 1, bests=[[110, 60.0], [400, 70.0]])
    ]  # fmt: skip
    early, late = (replace(FEDAVG, kind="rounds", target=target) for target in (60.0, 70.0))
    for first, second in ((early, late), (late, early)):
        noise = NoiseOfLedger(lines)
        found = {cell.target: noise.of(cell).std for cell in (first, second)}
        assert found == {60.0: pytest.approx(sqrt(0.02)), 70.0: pytest.approx(0.0)}
