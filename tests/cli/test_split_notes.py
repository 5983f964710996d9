"""What the command line says of the way data are divided."""

import json
from pathlib import Path

import pytest
from small_runs import SMALL

from fedkeel.runs.plan import Plan

LEAK = "here was begun when copies of validation or test samples were trained on"
FILE = 'dataset = "digits"\nmodel = "logistic"\nrounds = 1\n'


@pytest.mark.parametrize(
    ("partition", "was"),
    [
        ("", "client-prior-refill"),
        ('partition = "dirichlet:alpha=0.1,clients=5"', "client-prior-refill"),
        ("partition = {alpha = 0.1, clients = 5}", "client-prior-refill"),
        ('partition = {kind = "pathological", classes = 2, clients = 5}', "shuffled"),
        ('partition = "long-tail:imbalance=2,base=dirichlet:alpha=0.1,clients=5"', "client-prior-refill"),
        ('partition = "dirichlet:alpha=0.1,clients=5,form=hsu"', None),
        ('partition = "iid:clients=5"', None),
    ],
)
def test_a_file_without_a_form_is_told_what_changed(fedkeel, partition, was):
    Path("old.toml").write_text(FILE + partition)
    done = fedkeel("run", "old.toml", "--method", "fedavg,fedprox", "--no-progress", "--engine", "serial")
    assert done.code == 0, done.err
    lines = done.err.splitlines()
    assert len(lines) == (was is not None)
    assert was is None or f'up to version 0.1.0 it was "{was}"' in lines[0]


def test_a_sweep_without_a_form_is_told_too(fedkeel):
    Path("sweep.toml").write_text(FILE + "validation = 0.2\n[methods.fedavg]\n[grid]\nlr = [0.1]\n")
    done = fedkeel("sweep", "sweep.toml", "--no-progress")
    assert done.code == 0, done.err
    assert done.err.count("no form is given for the dirichlet partition") == 1


def test_the_first_line_says_who_holds_how_much_once_for_all_methods(fedkeel):
    refill = ("--partition", "dirichlet:alpha=0.1,clients=20,form=client-prior-refill")
    done = fedkeel("run", *SMALL, *refill, "--rounds", "1", "--method", "fedavg,fedprox", "--engine", "serial")
    first, *rest = done.err.splitlines()
    assert first.startswith("note: 20 clients hold ")
    assert " unused, " in first
    assert " 0 duplicated" not in first
    assert not any("duplicated" in line for line in rest)


def test_an_old_run_that_leaks_is_neither_shown_as_found_nor_resumed(fedkeel):
    asked = ("run", *SMALL, "--partition", "dirichlet:alpha=0.1,clients=20,form=client-prior-refill", "--set",
             "validation=0.2", "--rounds", "1", "--method", "fedavg", "--out", "here")  # fmt: skip
    assert fedkeel(*asked).code == 0
    assert "found finished" in fedkeel(*asked).out
    file = Path("here/environment.json")
    file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "held_out"}))
    for command in (asked, ("resume", "here", "--rounds", "2")):
        refused = fedkeel(*command)
        assert refused.code != 0
        assert refused.err.startswith(f"error: {LEAK}")


@pytest.mark.slow
def test_an_old_run_that_leaks_is_told_where_its_numbers_are_shown(fedkeel, monkeypatch):
    asked = ("run", *SMALL, "--partition", "dirichlet:alpha=0.1,clients=20,form=client-prior-refill", "--set",
             "validation=0.2", "--rounds", "1", "--method", "fedavg", "--out", "here")  # fmt: skip
    with monkeypatch.context() as then:  # its fingerprint did not tell how shares were cut
        then.setattr(Plan, "sets_copies_aside", False)
        assert fedkeel(*asked).code == 0
    file = Path("here/environment.json")
    file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "held_out"}))
    shown = fedkeel("compare", "here")
    assert (shown.code, shown.err.count(LEAK)) == (0, 1)
    assert fedkeel("report", "here").code == 0
    assert Path("report.html").read_text().count(f'<p class="soft">{LEAK}') == 1
