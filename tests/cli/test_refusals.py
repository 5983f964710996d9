"""What a second look at the command line found: things said too late, not at all, or as a traceback."""

import json
import os
import pickle
import shlex
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import SMALL

import fedkeel as fk
from fedkeel.cli import training
from fedkeel.cli.settings import Request, experiments, meant
from fedkeel.errors import RequestError
from fedkeel.papers import ledger
from fedkeel.runs.finished_run import load_run
from fedkeel.studies.diagnose import Extent, landscape_of
from fedkeel.studies.subject import Subject

SWEEP = """
dataset = "digits"
model = "logistic"
partition = "iid:clients=4"
epochs = 1
rounds = 1
validation = 0.2
[methods.fedavg]
[methods.fedprox]
"""
CELL = [
    "reproduce", "fedfft:1", "--cell", "FedAvg, cifar10, 0.1", "--rounds", "1", "--set", "dataset=digits",
    "--set", "model=logistic", "--set", "augment=none", "--set", "epochs=1", "--engine", "serial", "--no-progress",
]  # fmt: skip


def tables_of(text):
    """Rows by their first word."""
    return {line.split()[0]: line for line in reversed(text.splitlines()) if line.strip()}


@pytest.fixture
def untrained(monkeypatch):
    """Nothing may be trained from here on."""
    monkeypatch.setattr(training, "run", None)


def environment(**more):
    paths = [str(Path(fk.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | more


# ---- compare -------------------------------------------------------------------------------------------------------
@pytest.fixture
def two(trained):
    """A run of two rounds, and one that broke off after the second of five."""
    trained("--method", "fedavg,fedsam", "--out", "here")
    file = Path("here/fedsam/0/experiment.toml")
    file.write_text(file.read_text().replace("rounds = 2", "rounds = 5"))
    return Path("here")


def test_an_unfinished_run_is_named(fedkeel, two):
    done = fedkeel("compare", two)
    assert done.code == 0
    assert "note: fedsam is not finished: it stands at round 2 of 5" in done.err
    assert "fedavg is not finished" not in done.err


def test_a_run_whose_rounds_are_damaged_is_named(fedkeel, two):
    file = two / "fedavg" / "0" / "rounds.jsonl"
    file.write_text(file.read_text().splitlines()[0] + "\nnot JSON\n")
    done = fedkeel("compare", two)
    assert (done.code, done.out) == (2, "")
    assert f"error: {file.resolve()} is damaged in line 2" in done.err


def test_a_failed_run_does_not_change_the_unit_of_the_others(fedkeel, trained):
    trained("--method", "fedavg", "--out", "here/fedavg/0")
    before = tables_of(fedkeel("compare", "here").out)["fedavg"]
    words = ["--method", "fedprox", "--set", "lr=1e30", "--out", "here/fedprox/0"]
    assert fedkeel("run", *SMALL, "--rounds", "2", *words).code == 1
    after = tables_of(fedkeel("compare", "here").out)
    assert after["fedavg"].split() == before.split()
    assert after["fedavg"].count("%") == 3
    assert "–" in after["fedprox"]


# ---- folders and words ---------------------------------------------------------------------------------------------
def test_several_runs_do_not_go_below_a_run(fedkeel, trained, untrained):
    Path("here").mkdir()
    Path("here/experiment.toml").touch()
    done = fedkeel("run", *SMALL, "--method", "fedavg,fedsam", "--out", "here")
    assert (done.code, done.err.splitlines()[0]) == (
        2,
        "error: here is a run itself, so several runs cannot stand in it.",
    )
    assert not Path("here/fedavg").exists()


def test_a_folder_inside_a_command_is_quoted(tmp_path):
    folder = tmp_path / "my runs"
    folder.mkdir()
    (folder / "experiment.toml").touch()
    command = meant(str(folder)).split("`")[1]
    assert shlex.split(command) == ["fedkeel", "resume", str(folder)]


@pytest.mark.parametrize(
    "request_",
    [Request(methods=("fedavg",), assignments=("method=fedsam",)), Request(seeds=(0,), assignments=("seed=1",))],
)
def test_a_method_or_seed_given_twice_is_refused(request_):
    with pytest.raises(RequestError, match="given twice: --"):
        experiments(request_)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["sweep", "x.toml"], "[methods.NAME]"),
        (["doctor", "x.toml"], "an experiment's .toml file"),
        (["export", "flower", "x.toml", "app"], "a run's folder"),
    ],
)
def test_a_missing_file_has_a_hint_that_is_true_there(fedkeel, words, hint):
    done = fedkeel(*words)
    assert (done.code, done.err.splitlines()[0]) == (2, "error: no such file: x.toml")
    assert hint in done.err
    assert "quick start" not in done.err


# ---- sweep ---------------------------------------------------------------------------------------------------------
def swept(fedkeel, text, *words):
    Path("s.toml").write_text(text)
    return fedkeel("sweep", "s.toml", "--out", "runs", "--engine", "serial", "--no-progress", *words)


def test_a_baseline_that_is_not_swept_is_refused_before_training(fedkeel, untrained):
    done = swept(fedkeel, SWEEP, "--baseline", "fedpro")
    assert (done.code, done.err) == (2, "error: this sweep has no method: fedpro\n\nhint: did you mean 'fedprox'?\n")
    assert not Path("runs").exists()


def test_a_method_whose_settings_all_failed_is_an_error_with_its_reason(fedkeel):
    done = swept(fedkeel, SWEEP + "lr = [1e30]\n", "--json", "--baseline", "fedprox")
    assert done.code == 1
    assert "every setting of fedprox failed: the loss or the model of client" in done.err
    assert "fedprox has no run, so differences are to fedavg" in done.err
    assert [one["label"] for one in json.loads(done.out)["methods"]] == ["fedavg"]


def test_a_sweep_without_a_validation_sample_says_so(fedkeel):
    done = swept(fedkeel, SWEEP.replace("0.2", "0.0001"))
    assert done.code == 1
    assert "every setting of fedavg failed: no client has a validation sample" in done.err


# ---- reproduce -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("place", ["/proc/x", "/proc/x/ledger.jsonl", "."])
def test_a_ledger_that_cannot_be_written_is_refused_before_training(fedkeel, untrained, place):
    done = fedkeel(*CELL, "--ledger", place)
    assert done.code == 2
    assert done.err.startswith("error: cannot ")
    assert f"the ledger {place}: " in done.err


def test_the_check_leaves_no_ledger_behind(tmp_path):
    ledger.check_writable(tmp_path / "new" / "ledger.jsonl")
    assert not list((tmp_path / "new").iterdir())


@pytest.mark.parametrize(("option", "what"), [("--engine", "engine"), ("--device", "device")])
def test_a_dry_run_checks_names(fedkeel, option, what):
    done = fedkeel(*CELL, "--dry-run", option, "foo")
    assert (done.code, done.out) == (2, "")
    assert f"unknown {what}: foo" in done.err


def test_what_is_tried_is_named_but_not_filed(fedkeel):
    asked = [*CELL, "--ledger", "ledger.jsonl", "--out", "runs", "--try", "lr=0.01,0.05"]
    for words in (["--dry-run"], []):
        done = fedkeel(*asked, *words)
        assert done.code == 0
        assert all(done.out.count(f"FedAvg, cifar10, 0.1 (lr={lr})") == 1 for lr in (0.01, 0.05))
    assert {entry.cell for entry in ledger.read(Path("ledger.jsonl"))} == {("fedfft", "1", "FedAvg", "cifar10, 0.1")}


# ---- analyse -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--radius", "nan"], "radius of an analysis must be finite: nan"),
        (["--radius", "0"], "above 0: 0"),
        (["--rho", "nan"], "rho of an analysis must be finite: nan"),
        (["--points", "0"], "at least 1: 0"),
        (["--points", "4"], "at least 3: 4"),
    ],
)
def test_an_extent_that_makes_no_sense_is_refused_as_it_was_asked_for(fedkeel, words, told):
    done = fedkeel("analyse", "nowhere", *words)
    assert done.code == 2
    assert told in done.err.splitlines()[0]


def test_the_radius_is_the_one_asked_for(trained):
    (run,) = trained("--method", "fedavg", "--out", "here")
    subject = Subject(load_run(run["folder"]), clients=2, samples=20)
    for radius, far in ((0.25, 0.25), (None, 1.0)):
        found = landscape_of(subject, Extent(radius=radius, points=3))["line"]["x"]
        assert (found[0], found[-1]) == (-far, far)


# ---- files to write ------------------------------------------------------------------------------------------------
def test_a_folder_is_no_file_to_write(fedkeel, trained):
    trained("--method", "fedavg", "--out", "here")
    for words in (["report", "here", "-o", "."], ["report", "--ledger", "."], ["export", "model", "here", "."]):
        done = fedkeel(*words)
        assert done.code == 2
        assert "unexpected" not in done.err
    for words in (["methods", "--pages", "/proc/x"], ["methods", "fedavg", "--pages", "/proc/x"]):
        assert fedkeel(*words).err.startswith("error: cannot write /proc/x: ")


def test_the_page_of_one_method(fedkeel):
    assert fedkeel("methods", "fedavg", "--pages", "here").code == 0
    assert [path.name for path in Path("here").iterdir()] == ["fedavg.md"]
    assert "# fedavg" in Path("here/fedavg.md").read_text()


def test_clients_of_an_app_need_data_of_their_own(fedkeel):
    Path("e.toml").write_text('dataset = "digits"\n')
    done = fedkeel("export", "flower", "e.toml", "app", "--clients", "12")
    assert done.code == 2
    assert "--data folder" in done.err
    assert not Path("app").exists()


# ---- streams -------------------------------------------------------------------------------------------------------
def test_a_worker_whose_parent_is_gone_ends_without_a_word():
    command = [sys.executable, "-c", "from fedkeel.engines.worker import main; main()"]
    pipe = subprocess.PIPE
    worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment())
    worker.stdout.close()
    body = pickle.dumps(("train", (None,)))
    worker.stdin.write(struct.pack("<Q", len(body)) + body)
    worker.stdin.flush()
    assert worker.stderr.read() == b""
    assert worker.wait() == 0
    worker.stdin.close()
    worker.stderr.close()


def test_a_stream_in_ascii_gets_what_it_can_write(tmp_path):
    command = [sys.executable, "-m", "fedkeel", "run", *SMALL, "--rounds", "1", "--method", "fedavg"]
    for words, expected in ((["--no-progress"], b"fedavg |"), (["--json"], b"\\u00e4")):
        done = subprocess.run(
            [*command, "--out", str(tmp_path / "ä"), *words], capture_output=True, check=False,
            env=environment(PYTHONIOENCODING="ascii", FEDKEEL_DATA=str(tmp_path)),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout


def test_a_finished_run_without_its_checkpoint_says_what_is_left(fedkeel):
    assert fedkeel("run", *SMALL, "--rounds", "1", "--out", "a b").code == 0
    shutil.rmtree(Path("a b", "checkpoint"))
    done = fedkeel("resume", "a b")
    assert done.code == 2
    assert "has lost its checkpoint" in done.err
    assert "report" in done.err


@pytest.mark.parametrize("word", ["method", "seed"])
def test_a_list_of_nothing_is_refused(fedkeel, word):
    Path("e.toml").write_text(f'dataset = "digits"\n{word} = []\n')
    done = fedkeel("run", "e.toml")
    assert done.code == 2
    assert f"{word} is an empty list" in done.err
