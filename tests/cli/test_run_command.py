"""`fedkeel run` and `resume`: tables, JSON, folders, and that nothing finished is done twice."""

import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from small_runs import SMALL, environment

import fedkeel as fk
from fedkeel.cli import training
from fedkeel.runs import start
from fedkeel.runs.loop import Loop
from fedkeel.runs.run_folder import RunFolder


def test_a_table_and_the_folders(fedkeel):
    done = fedkeel("run", *SMALL, "--rounds", "2", "--method", "fedavg,fedsam", "--out", "here")
    assert done.code == 0
    assert re.search(r"mean of\n.* last 2 ", done.out)
    for method in ("fedavg", "fedsam"):
        assert re.search(rf"^\s*{method}( +\d+\.\d %){{3}} +2( +[1-9][\d.]* kB){{2}} ", done.out, re.MULTILINE)
        assert f"here/{method}/0" in done.out
        assert Path("here", method, "0", "result.json").exists()
    assert "best on test, as in the papers" in done.out


def test_one_plain_line_per_round_where_stderr_is_no_terminal(fedkeel):
    done = fedkeel("run", *SMALL, "--rounds", "3", "--method", "fedavg")
    lines = [line for line in done.err.splitlines() if " round " in line]
    assert [re.search(r"round (\d)/3  accuracy +[\d.]+ %  loss", line)[1] for line in lines] == ["1", "2", "3"]
    assert "\x1b" not in done.err + done.out
    assert "round" not in done.out.replace("rounds", "")


def test_seeds_are_told_apart_while_they_go_on(fedkeel):
    done = fedkeel("run", *SMALL, "--rounds", "1", "--method", "fedavg", "--seeds", "3,4")
    assert re.findall(r"^fedavg seed (\d)  round 1/1", done.err, re.MULTILINE) == ["3", "4"]


def test_no_progress(fedkeel):
    assert fedkeel("run", *SMALL, "--rounds", "1", "--no-progress").err == ""


def test_json_is_one_document_of_what_the_folders_hold(trained):
    runs = trained("--method", "fedavg,fedprox", "--seeds", "0,1", "--out", "here")
    assert [(run["method"], run["seed"]) for run in runs] == [
        ("fedavg", 0), ("fedavg", 1), ("fedprox", 0), ("fedprox", 1),
    ]  # fmt: skip
    for run in runs:
        assert run["folder"] == f"here/{run['method']}/{run['seed']}"
        assert run["result"] == json.loads(Path(run["folder"], "result.json").read_text())


def test_one_run_goes_into_the_folder_itself(trained):
    (run,) = trained("--method", "fedavg", "--out", "here")
    assert run["folder"] == "here"
    assert Path("here/experiment.toml").exists()


def test_the_default_folder_is_the_name_and_the_fingerprint(trained):
    (run,) = trained("--method", "fedavg", "--set", "lr=0.07")
    assert run["folder"] == f"runs/fedavg-{run['result']['fingerprint']}"


def test_the_command_line_and_python_agree(trained):
    (run,) = trained("--method", "fedsam", "--set", "method.rho=0.2", "--set", "lr=0.07")
    sam = {"name": "fedsam", "rho": 0.2}
    same = fk.Experiment(dataset="digits", model="logistic", method=sam, rounds=2, epochs=1, batch_size=200, lr=0.07)
    assert fk.run(same).result == run["result"]


def test_a_finished_run_is_shown_and_not_repeated(trained, monkeypatch):
    (first,) = trained("--method", "fedavg")
    monkeypatch.setattr(Loop, "run_round", None)  # a further round would fail
    (second,) = trained("--method", "fedavg")
    assert (first["state"], second["state"]) == ("trained", "found")
    assert second["result"] == first["result"]


def test_more_rounds_extend_and_equal_an_unbroken_run(trained, fedkeel):
    trained("--method", "scaffold", "--out", "a")
    assert fedkeel("resume", "a", "--rounds", "4").code == 0
    trained("--method", "scaffold", "--rounds", "4", "--out", "b")
    assert Path("a/result.json").read_bytes() == Path("b/result.json").read_bytes()


def test_resume_takes_the_parent_of_several_runs(trained, fedkeel):
    trained("--method", "fedavg,fedprox", "--out", "here")
    done = fedkeel("resume", "here", "--rounds", "3", "--json")
    assert [run["result"]["rounds"] for run in json.loads(done.out)["runs"]] == [3, 3]


class KilledError(BaseException):
    """A process that ends without another word."""


def test_resume_makes_what_a_killed_command_had_not_begun(trained, fedkeel, monkeypatch):
    whole = trained("--method", "fedavg,fedsam", "--engine", "serial", "--out", "whole")
    run_group, made = training.run_group, []

    def die(targets, *more):
        made.append(targets)
        if len(made) == 2:
            raise KilledError
        return run_group(targets, *more)

    monkeypatch.setattr(training, "run_group", die)
    with pytest.raises(KilledError):
        trained("--method", "fedavg,fedsam", "--engine", "serial", "--out", "cut", "--track", "drift")
    assert [path.parent.as_posix() for path in Path("cut").glob("**/experiment.toml")] == ["cut/fedavg/0"]
    seen = json.loads(fedkeel("compare", "cut", "--json").out)
    assert [(one["label"], one["seeds"]) for one in seen["methods"]] == [("fedavg", [0])]
    runs = json.loads(fedkeel("resume", "cut", "--engine", "serial", "--json").out)["runs"]
    assert [run["result"] for run in runs] == [run["result"] for run in whole]
    assert [json.loads(Path(run["folder"], "environment.json").read_text())["track"] for run in runs] == [["drift"]] * 2
    assert not list(Path("cut").glob(".*"))
    assert not list(Path("whole").glob(".*"))


def test_resume_goes_on_as_asked_of_a_run_killed_before_its_first_round(trained, fedkeel, monkeypatch):
    """At no moment a folder says what is trained and not how: here while the engine is chosen, and once more when the
    experiment alone has been written."""
    asked = ["--method", "fedavg,fedsam", "--engine", "serial", "--precision", "float64", "--track", "drift"]
    asked += ["--keep", "best", "--metrics", "f1"]
    whole = trained(*asked, "--out", "whole")

    def die(*arguments):
        raise KilledError

    for module, name in ((start, "choose_engine"), (RunFolder, "begin")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, die)
            with pytest.raises(KilledError):
                trained(*asked, "--out", "cut")
        if list(Path("cut").glob("**/experiment.toml")):
            Path("cut").rename("resumed")
        else:
            assert fedkeel("resume", "cut").code == 2
    runs = json.loads(fedkeel("resume", "resumed", "--engine", "serial", "--json").out)["runs"]
    assert [run["result"] for run in runs] == [run["result"] for run in whole]


def test_a_finished_run_that_cannot_be_extended_stays_as_it_is(trained, monkeypatch):
    (whole,) = trained("--method", "fedavg", "--engine", "serial", "--out", "here")

    def die(*arguments):
        raise KilledError

    monkeypatch.setattr(start, "choose_engine", die)
    with pytest.raises(KilledError):
        trained("--method", "fedavg", "--rounds", "9", "--out", "here")
    assert json.loads(Path("here/result.json").read_text()) == whole["result"]


def test_planned_runs_lie_below_their_folder(trained, fedkeel):
    """Somebody else's file leads nowhere else, and the folder of several may still become a run's own."""
    trained("--method", "fedavg,fedsam", "--out", "here")
    for name in ("../there", "/there"):
        Path("here/.planned.json").write_text(json.dumps({name: {"method": "fedavg"}}))
        done = fedkeel("resume", "here")
        assert (done.code, "here/.planned.json is damaged" in done.err) == (2, True)
    Path("alone").mkdir()
    Path("here/.planned.json").rename("alone/.planned.json")
    assert trained("--method", "fedavg", "--out", "alone")[0]["folder"] == "alone"


def test_fewer_rounds_than_done_are_refused(trained, fedkeel):
    trained("--method", "fedavg", "--out", "here")
    before = Path("here/result.json").read_bytes()
    done = fedkeel("resume", "here", "--rounds", "1")
    assert done.code == 2
    assert "is at round 2 already" in done.err
    assert Path("here/result.json").read_bytes() == before


def test_a_foreign_folder_is_refused(trained, fedkeel):
    trained("--method", "fedavg", "--out", "here")
    done = fedkeel("run", *SMALL, "--rounds", "2", "--method", "fedprox", "--out", "here")
    assert done.code == 2
    assert "error: here holds another experiment" in done.err


def test_a_run_that_fails_does_not_end_the_others(fedkeel):
    file = Path("e.toml")
    file.write_text(
        'dataset = "digits"\nmodel = "logistic"\nrounds = 2\nepochs = 1\non_nonfinite = "stop"\n'
        'method = [{name = "fedprox", mu = 1e300}, "fedavg"]\n'
    )
    done = fedkeel("run", file, "--engine", "serial", "--json")
    assert done.code == 1
    assert re.search(r"^error: fedprox: .*not finite", done.err, re.MULTILINE)
    assert [run["state"] for run in json.loads(done.out)["runs"]] == ["failed", "trained"]


# ---- signals: a real process ----
def started(folder, rounds, arguments=()):
    command = [sys.executable, "-m", "fedkeel", "run", *SMALL, "--method", "scaffold", "--rounds", str(rounds)]
    return subprocess.Popen(
        [*command, "--out", str(folder), *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(),
        text=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "term")]
)
def test_signals_leave_a_checkpoint_that_resumes_to_the_same_bytes(tmp_path, fedkeel, number, code, word):
    process = started(tmp_path / "a", rounds=100_000)
    seen = ""
    while " round " not in seen or "/100000" not in seen:
        seen = process.stderr.readline()
        assert seen, "ended before its first round"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert out == ""
    last = err.splitlines()[-1]
    done = int(re.match(rf"{word}\w*: scaffold stands at round (\d+) of 100000, checkpoint written", last)[1])
    assert f"fedkeel resume {tmp_path / 'a'}" in last
    assert "Traceback" not in err
    assert fedkeel("resume", tmp_path / "a", "--rounds", done + 2).code == 0
    assert fedkeel("run", *SMALL, "--method", "scaffold", "--rounds", done + 2, "--out", tmp_path / "b").code == 0
    for name in ("result.json", f"checkpoint/{done + 2:08d}.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_signal_while_a_round_is_put_away_waits_until_it_is(tmp_path, monkeypatch):
    """With a second thread, as a progress display has one: the system may hand the signal to that."""
    restore, over = Loop.restore, threading.Event()

    class Records(list):
        def append(self, record):
            super().append(record)
            if record.round == 2:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.01)

    def watched(self, *given):
        restore(self, *given)
        self.records = Records(self.records)

    experiment = fk.Experiment(dataset="digits", model="logistic", method="scaffold", rounds=3, epochs=1)
    monkeypatch.setattr(Loop, "restore", watched)
    threading.Thread(target=over.wait, daemon=True).start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let their background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            fk.run(experiment, out=tmp_path / "a", engine="serial")
    finally:
        signal.signal(signal.SIGINT, before)
    over.set()
    monkeypatch.setattr(Loop, "restore", restore)
    assert fk.load_run(tmp_path / "a").result["rounds"] == 2
    whole = fk.run(experiment, engine="serial").result
    assert fk.run(experiment, out=tmp_path / "a", engine="serial").result == whole


def test_resume_tracks_what_the_run_tracked(fedkeel):
    small = ["run", *SMALL, "--track", "drift,state"]
    assert fedkeel(*small, "--rounds", "1", "--out", "tracked").code == 0
    assert fedkeel("resume", "tracked", "--rounds", "2").code == 0
    first, second = (json.loads(line)["extra"] for line in Path("tracked", "rounds.jsonl").read_text().splitlines())
    assert first.keys() == second.keys()
    assert "update/cosine" in second


def test_resume_goes_on_in_the_arithmetic_of_the_run(fedkeel):
    small = ["run", *SMALL, "--method", "scaffold", "--precision", "float64"]
    assert fedkeel(*small, "--rounds", "2", "--out", "cut").code == 0
    assert fedkeel("resume", "cut", "--rounds", "4").code == 0
    assert fedkeel(*small, "--rounds", "4", "--out", "whole").code == 0
    cut, whole = (json.loads(Path(name, "result.json").read_text())["model_digest"] for name in ("cut", "whole"))
    assert cut == whole
    assert json.loads(Path("cut", "environment.json").read_text())["precision"] == "float64"
    done = fedkeel("resume", "cut", "--rounds", "5", "--precision", "float32")
    assert "started in float64 and goes on in float32" in done.err
    assert fedkeel("run", *SMALL, "--rounds", "1", "--out", "more/b").code == 0
    Path("whole").rename("more/a")
    assert fedkeel("resume", "more").code == 2


RULE = """from dataclasses import dataclass
import fedkeel as fk

@dataclass(frozen=True)
class Shorter(fk.Rule):
    def step(self, tree, client, at):
        return FACTOR * tree, client

def shorter():
    return fk.method("shorter", gradient=[Shorter()], weights=fk.Uniform())
"""


def test_a_rule_that_was_edited_is_told_where_an_old_run_is_found(fedkeel, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))

    def ran(rounds, factor):
        Path("shorter.py").write_text(RULE.replace("FACTOR", factor))
        monkeypatch.delitem(sys.modules, "shorter", raising=False)  # a process imports a module once
        importlib.invalidate_caches()
        done = fedkeel("run", *SMALL, "--method", "shorter:shorter", "--out", "here", "--rounds", rounds)
        assert done.code == 0, done.err
        return " ".join(done.err.split())

    assert "has been edited" not in ran("1", "0.5")
    assert "has been edited" not in ran("1", "0.5")
    assert "module shorter has been edited since here was made" in ran("1", "0.25")
    assert "module shorter has been edited since this run started" in ran("2", "0.25")
    sys.modules.pop("shorter", None)


def test_several_runs_do_not_go_below_a_run(fedkeel, trained, untrained):
    Path("here").mkdir()
    Path("here/experiment.toml").touch()
    done = fedkeel("run", *SMALL, "--method", "fedavg,fedsam", "--out", "here")
    assert (done.code, done.err.splitlines()[0]) == (
        2,
        "error: here is a run itself, so several runs cannot stand in it.",
    )
    assert not Path("here/fedavg").exists()


def test_a_finished_run_without_its_checkpoint_says_what_is_left(fedkeel):
    assert fedkeel("run", *SMALL, "--rounds", "1", "--out", "a b").code == 0
    shutil.rmtree(Path("a b", "checkpoint"))
    done = fedkeel("resume", "a b")
    assert done.code == 2
    assert "has lost its checkpoint" in done.err
    assert "report" in done.err
