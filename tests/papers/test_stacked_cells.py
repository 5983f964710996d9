"""Cells that differ only in seed, split or rate are trained as one stack, and each is kept as a run of its own cell."""

from collections.abc import Sequence

import pytest

import fedkeel as fk
from fedkeel.cli import training
from fedkeel.cli.main import call
from fedkeel.papers import Cell, ledger
from fedkeel.papers.reproduce import experiment_of

TINY = {
    "dataset": "digits", "model": "logistic", "method": {"name": "fedavg"}, "rounds": 4, "epochs": 1, "lr": 0.1,
    "batch_size": 50, "participation": 0.5, "partition": {"kind": "dirichlet", "alpha": 0.1, "clients": 4},
}  # fmt: skip


def table(*cells):
    """An invented table: rows and columns with what each changes."""
    return [
        Cell("fedfft", "1", row, column, TINY | changes, reported=50.0, spread=None) for row, column, changes in cells
    ]


CELLS = table(
    ("FedAvg", "0.1", {}),
    ("FedAvg", "0.6", {"partition": TINY["partition"] | {"alpha": 0.6}}),
    ("FedAvg", "fast", {"lr": 0.2}),
    ("FedAvg, elsewhere", "0.1", {}),  # the same experiment as the first
    ("FedProx", "0.1", {"method": {"name": "fedprox"}}),
    ("FedAvg", "longer steps", {"epochs": 2}),
)


@pytest.fixture
def reproduce(tmp_path, monkeypatch):
    """The command on the invented table, and the groups that it trained."""
    groups: list[Sequence[training.Target]] = []
    monkeypatch.setattr("fedkeel.papers.reproduce.chosen", lambda spec, pattern: list(CELLS))
    make = training.run_group

    def counted(plans, machine, progress):
        groups.append(plans)
        return make(plans, machine, progress)

    monkeypatch.setattr(training, "run_group", counted)

    def command(*words, engine="stacked"):
        groups.clear()
        asked = ["reproduce", "fedfft:1", "--engine", engine, "--device", "cpu", "--no-progress", *words]
        return call([*asked, "--ledger", str(tmp_path / "book.jsonl"), "--out", str(tmp_path / "runs")])

    return command, groups, tmp_path / "book.jsonl"


@pytest.mark.slow
def test_one_stack_for_what_differs_in_seed_split_and_rate(reproduce):
    command, groups, book = reproduce
    assert command("--seeds", "0,1", "--rounds", "2") == 0
    # three experiments of FedAvg with two seeds each; the row that is one of them again is not run again
    assert [len(group) for group in groups] == [6, 2, 2]
    kept = ledger.read(book)
    assert [(e.row, e.column, e.seed) for e in kept] == [
        (row, column, seed)
        for row, column in (
            ("FedAvg", "0.1"), ("FedAvg", "0.6"), ("FedAvg", "fast"), ("FedProx", "0.1"), ("FedAvg", "longer steps"),
        )
        for seed in (0, 1)
    ]  # fmt: skip
    assert all(entry.environment["shared"] and not entry.timed for entry in kept)


@pytest.mark.slow
def test_a_cell_of_a_stack_measures_what_it_measures_alone(reproduce):
    command, groups, book = reproduce
    assert command("--rounds", "3") == 0
    assert [len(group) for group in groups] == [3, 1, 1]
    by_cell = {(entry.row, entry.column): entry for entry in ledger.read(book)}
    for one in CELLS[:3]:
        alone = fk.run(experiment_of(one, 0, 3), engine="stacked", device="cpu")
        kept = by_cell[one.row, one.column]
        assert kept.settings == {name: value for name, value in one.experiment.items() if name != "rounds"}
        assert [kept.at_round(r) for r in (1, 2, 3)] == pytest.approx(
            [100 * a for a in alone.curve("accuracy")], abs=1e-4
        )
    assert by_cell["FedProx", "0.1"].timed  # it had its stack to itself


@pytest.mark.slow
def test_what_is_in_the_ledger_or_finished_leaves_the_stack(reproduce):
    command, groups, book = reproduce
    assert command("--rounds", "2") == 0
    before = book.read_text()
    assert command("--rounds", "2") == 0  # found finished
    assert (groups, book.read_text()) == ([], before)
    assert command("--rounds", "2", "--seeds", "0,1", "--skip-done") == 0
    assert [[plan.experiment.seed for plan in group] for group in groups] == [[1, 1, 1], [1], [1]]


def test_an_engine_that_does_not_stack_makes_one_run_at_a_time(reproduce):
    command, groups, book = reproduce
    assert command("--rounds", "1", engine="serial") == 0
    assert [len(group) for group in groups] == [1] * 5
    assert all(entry.timed for entry in ledger.read(book))


def test_an_interrupted_stack_keeps_what_each_of_its_runs_has_reached(reproduce, monkeypatch):
    command, _, book = reproduce

    class Impatient:
        """Ctrl-C when a run of the stack ends its second round."""

        def started(self, experiment, done, engine):
            pass

        def round(self, record):
            if record.round == 2:
                raise KeyboardInterrupt

        def finished(self, run):
            pass

    monkeypatch.setattr("fedkeel.cli.progress.Display.watch", lambda self, label: Impatient())
    assert command() == 130
    reached = {(entry.column, entry.rounds) for entry in ledger.read(book)}
    assert {column for column, _ in reached} == {"0.1", "0.6", "fast"}
    assert {rounds for _, rounds in reached} <= {1, 2}
    monkeypatch.undo()
    monkeypatch.setattr("fedkeel.papers.reproduce.chosen", lambda spec, pattern: list(CELLS[:3]))
    assert command() == 0  # goes on from there
    assert [entry.rounds for entry in ledger.read(book) if not entry.shortened] == [4, 4, 4]


def test_a_cell_that_cannot_be_run_is_told_and_the_others_go_on(reproduce, monkeypatch, capsys):
    command, _, book = reproduce
    wrong = {"partition": {"kind": "pathological", "classes": 20, "clients": 4}}  # there are ten
    cells = [*CELLS[:2], *table(("FedAvg", "Pat 20", wrong), ("FedProx", "Pat 20", wrong | {"method": "fedprox"}))]
    monkeypatch.setattr("fedkeel.papers.reproduce.chosen", lambda spec, pattern: list(cells))
    assert command("--rounds", "2") == 1
    told = capsys.readouterr().err
    assert "FedAvg, Pat 20: clients cannot hold 20 classes" in told
    assert "FedProx, Pat 20: clients cannot hold 20 classes" in told
    assert [entry.column for entry in ledger.read(book)] == ["0.1", "0.6"]
    monkeypatch.setattr("fedkeel.papers.reproduce.chosen", lambda spec, pattern: cells[-1:])
    assert command("--rounds", "2") == 2
