"""Bars and lines: what a person sees while runs go on."""

import io
import logging
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from fedkeel.cli.console import table
from fedkeel.cli.progress import Bars, Display, Lines, describe_round, display, gpu_memory
from fedkeel.cli.results import NUMBERS, find_leader, write_numbers
from fedkeel.cli.telling import show_log
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.record import RoundRecord
from fedkeel.text import byte_size, byte_unit

EXPERIMENT = Experiment(dataset="digits", rounds=3)


def record(number, **measures):
    plain = {"loss": 0.5, "drift": 1.25, "accuracy": 0.875}
    return RoundRecord(number, [0], backward_passes=1, bytes_down=1, bytes_up=1, seconds=0.1, **plain | measures)


def terminal(height=25):
    return Console(file=io.StringIO(), force_terminal=True, width=100, height=height)


def follow(shown, labels):
    with shown:
        for label in labels:
            watcher = shown.watch(label)
            watcher.started(EXPERIMENT, 0, "serial")
            for number in (1, 2, 3):
                watcher.round(record(number))


@pytest.mark.parametrize("width", [100, 80, 60, 40, 24])
def test_a_narrow_window_cuts_no_cell_of_a_table(width):
    names, row = ["method!", "best>", "last>", "95 % interval>"], ["scaffold", "91.69 ± 0.61", "90.14", "-5.79 … +4.95"]
    made = table([*names, "what it is"])
    made.add_row(*row, "control variates of clients")
    console = Console(file=io.StringIO(), width=width)
    console.print(made)
    shown = console.file.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    assert all(cell in shown for cell in (*row, "variates"))


def test_a_cell_wider_than_the_window_is_broken_and_not_cut():
    made = table(["method!", "digest>"])
    made.add_row("fedavg", "0123456789" * 3)
    console = Console(file=io.StringIO(), width=24)
    console.print(made)
    shown = console.file.getvalue()
    assert sum(shown.count(digit) for digit in "0123456789") == 30
    assert "…" not in shown


@pytest.mark.parametrize("width", [100, 80, 60, 40])
def test_a_narrow_window_keeps_the_name_and_the_round(width):
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=25, no_color=True)
    follow(Bars(console, 12), ["fedavg seed 0", "fedavg seed 1"])
    shown = console.file.getvalue()
    assert "…" not in shown
    assert "fedavg seed 1" in shown
    assert "3/3" in shown.rpartition("fedavg seed 1")[2]
    assert ("drift" in shown, "accuracy" in shown) == (width > 76, width > 40)


def test_a_bar_per_run_with_its_last_round():
    console = terminal()
    follow(Bars(console, 6), ["fedavg", "fedsam"])
    last = console.file.getvalue().rpartition("fedavg")[2]
    assert "3/3" in last
    assert "accuracy  87.5 %  loss 0.5" in last
    assert "fedsam" in last


def test_old_bars_vanish_when_there_is_no_room():
    console = terminal(height=6)
    follow(Bars(console, 1), list("abcde"))
    shown = Bars(console, 1)
    follow(shown, list("abcde"))
    assert [task.description for task in shown.bars.tasks if task.visible] == ["d", "e"]


def test_warnings_are_told_above_everything():
    for make in (lambda console: Bars(console, 1), lambda console: Lines(console, 1), Display):
        console = terminal()
        with make(console):
            logging.getLogger("fedkeel").warning("left out client %d", 3)
        logging.getLogger("fedkeel").warning("not told")
        assert "left out client 3" in console.file.getvalue()
        assert "not told" not in console.file.getvalue()


def test_what_is_shown_within_a_block_is_not_let_through_after_it():
    log = logging.getLogger("fedkeel.of_a_block")
    log.setLevel(logging.WARNING)
    with show_log(log, logging.INFO, Console(file=io.StringIO())):
        assert log.isEnabledFor(logging.INFO)
    assert not log.isEnabledFor(logging.INFO)


def test_measures_that_a_round_lacks_are_left_out():
    assert describe_round(record(1, accuracy=None, drift=None)) == "loss 0.5    "
    chosen = describe_round(record(1, extra={"validation_accuracy": 0.25}))  # nobody chooses by the test set
    assert chosen.startswith("validation  25.0 %")
    assert "accuracy" not in chosen


@pytest.mark.parametrize("make", [Bars, Lines])
def test_the_memory_of_a_gpu_is_told_where_there_is_one(make, monkeypatch):
    for held, expected in (((12_340_000_000, 150_000_000_000), True), (None, False)):
        console = Console(file=io.StringIO(), force_terminal=True, width=140, highlight=False)
        monkeypatch.setattr("fedkeel.cli.progress.gpu_memory", lambda held=held: held)
        follow(make(console, 6), ["fedavg"])
        assert ("GPU 12.3 GB of 150 GB" in console.file.getvalue()) == expected
        assert ("GPU" in console.file.getvalue()) == expected


def test_memory_is_what_torch_holds_and_nothing_on_a_cpu(monkeypatch):
    assert gpu_memory() is None  # tests run without a GPU, or before one is used
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    assert gpu_memory() is None  # a GPU that the run is not on
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 5)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    sizes = [7, 80]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: SimpleNamespace(total_memory=sizes[i]))
    assert gpu_memory() == (5, 80)


def test_the_leader_is_the_one_who_reports_the_most_if_all_report():
    def outcome(last, **reported):
        return SimpleNamespace(
            run=SimpleNamespace(last=last, result={"judged_on": "accuracy", "last": last} | reported)
        )

    high, low, silent = outcome(0.9, reported=0.5), outcome(0.6, reported=0.8), outcome(0.7)
    assert find_leader([high, low]) is low
    assert find_leader([low, silent, high]) is high
    assert find_leader([high]) is None


def test_a_row_of_the_table_at_the_end_has_its_numbers_in_order():
    numbers = {"best": 0.9, "last": 0.7, "mean_last": 0.6, "rounds": 3, "bytes_up": 1_000, "bytes_down": 2_000}
    run = SimpleNamespace(result=numbers | {"judged_on": "accuracy"})
    told = write_numbers(SimpleNamespace(run=run, seconds=1.5), NUMBERS)
    assert told == ["90.0 %", "70.0 %", "60.0 %", "3", "1 kB", "2 kB", "1.5"]
    assert write_numbers(SimpleNamespace(run=None), NUMBERS) == ["failed", *["–"] * 6]


def test_a_file_gets_lines_and_silence_gets_none():
    assert isinstance(display(True, ["a"]), Lines)
    assert display(False, ["a"]).watch("a") is None


@pytest.mark.parametrize("digits", [1, 1.5, 4.26, 9.994])
def test_a_size_has_the_unit_in_which_it_has_one_to_three_digits(digits):
    """No size but 0 is shown as 0, and what is shown is within half a per cent of it."""
    for power in range(15):
        size = digits * 10**power
        number, unit = byte_size(size).split()
        assert 1 <= float(number) < 1000
        one = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit]
        assert byte_unit(size) == (one, unit)
        assert abs(float(number) * one - size) <= 0.005 * size
    assert byte_size(0) == "0 B"
