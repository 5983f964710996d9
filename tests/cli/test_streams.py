"""Streams that are closed or full, signals at any moment: the run is made, or it can be gone on with."""

import importlib
import io
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from small_runs import SMALL, contents, environment

import fedkeel as fk
from fedkeel.__main__ import main
from fedkeel.cli.console import Trimmed, tolerate
from fedkeel.cli.main import call
from fedkeel.cli.stopping import Stopped, stopping
from fedkeel.papers import ledger
from fedkeel.streams import LastingStream

ROUNDS = ["--rounds", "2", "--method", "fedavg"]


def test_a_stream_that_was_closed_takes_what_is_written_and_flushed():
    closed = io.StringIO()
    stream = LastingStream(closed)
    closed.close()
    assert stream.write("late") == 4
    stream.flush()
    Trimmed(closed).flush()


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_ascii_shows_a_question_mark_for_what_it_lacks(errors, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii", errors))
    tolerate()
    sys.stdout.write("λ \udcc3")
    sys.stdout.flush()
    assert raw.getvalue() == b"? ?"


class Full:
    """A stream whose every flush fails, as on a full disk."""

    encoding, errors = "utf-8", "strict"

    def write(self, text):
        return len(text)

    def flush(self):
        raise OSError(28, "No space left on device")

    def isatty(self):
        return False

    def fileno(self):
        raise OSError(9, "no number")


@pytest.mark.parametrize(("name", "code"), [("stdout", 1), ("stderr", 0)])
def test_a_full_stream_ends_no_run(tmp_path, monkeypatch, capsys, name, code):
    monkeypatch.setattr(sys, name, Full())
    assert call(["run", *SMALL, *ROUNDS, "--out", str(tmp_path / "run")]) == code
    assert (tmp_path / "run" / "result.json").exists()
    told = capsys.readouterr()
    if name == "stdout":
        assert "error: cannot write to stdout: No space left on device" in told.err
    else:
        assert "fedavg" in told.out


def test_a_stream_that_failed_once_goes_on():
    stream = LastingStream(Full())
    for _ in range(3):
        stream.write("x")
        stream.flush()
    assert stream.problem.strerror == "No space left on device"


def started(*words, **how):
    """`python -m fedkeel` in a process of its own."""
    command = [sys.executable, "-m", "fedkeel", *map(str, words)]
    return subprocess.Popen(command, env=environment() | how.pop("env", {}), **how)


def without_streams(words):
    """What a process does that was started with its streams closed."""
    for number in range(3):
        os.close(number)
    sys.stdin = sys.stdout = sys.stderr = None
    sys.argv[1:] = words
    main()


def test_a_process_without_streams_makes_its_run(tmp_path):
    words = ["run", *SMALL, *ROUNDS, "--engine", "serial", "--out", str(tmp_path / "r")]
    process = multiprocessing.get_context("fork").Process(target=without_streams, args=(words,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert json.loads((tmp_path / "r" / "result.json").read_text())["rounds"] == 2
    assert (tmp_path / "r" / "run.lock").read_bytes() == b""  # no stream took its number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_command_is_still_starting(number):
    with started("methods", stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={"PYTHONVERBOSE": "1"}) as process:
        for line in process.stderr:  # what is imported is told: typer comes after the handlers
            if b"import 'typer" in line:
                process.send_signal(number)
                break
        process.communicate()
    assert process.returncode == 128 + number


def test_a_signal_while_python_takes_itself_apart():
    """Modules are cleared last, and what they held with them."""
    late = "import os, signal\nclass Late:\n  def __del__(self, kill=os.kill, me=os.getpid(), stop=15): kill(me, stop)"
    code = f"{late}\nimport sys; sys.late = Late(); sys.argv[1:] = ['--version']"
    code += "\nfrom fedkeel.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_signal_that_python_would_drop_comes_again():
    class Collected:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    def drop():
        Collected()
        time.sleep(20)

    with pytest.raises(Stopped), stopping():
        drop()


def test_stopped_while_a_class_is_made():
    class Named:
        def __set_name__(self, owner, name):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped), stopping():
        type("Made", (), {"field": Named()})
    with pytest.raises(RuntimeError, match="of one's own"), stopping():
        raise RuntimeError("of one's own")


def test_a_signal_waits_until_a_package_is_imported(tmp_path, monkeypatch):
    """Compiled code drops what is raised within its imports, or dies of it; a module of one's own is stopped."""
    body = "import os, signal\ntry:\n  os.kill(os.getpid(), signal.SIGTERM)\nexcept BaseException:\n  heard = True\n"
    for folder, name in (("site-packages", "interrupted_package"), ("mine", "interrupted_module")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.py").write_text(body)
        monkeypatch.syspath_prepend(tmp_path / folder)

    def use():
        assert not hasattr(importlib.import_module("interrupted_package"), "heard")
        time.sleep(20)

    with pytest.raises(Stopped), stopping():
        use()
    with stopping():
        assert importlib.import_module("interrupted_module").heard


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_terminated_at_any_moment(tmp_path, engine):
    """The whole group gets the signal, as a batch system sends it; every end is 143, and the run can go on."""
    words = ["run", *SMALL, "--rounds", "20", "--method", "scaffold", "--engine", engine, "--out"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    began = time.monotonic()

    def finish(out):
        process = started(*words, out, **quiet)
        process.communicate()
        return process.returncode

    assert finish(tmp_path / "whole") == 0
    whole, draw = time.monotonic() - began, random.Random(0)
    for trial in range(15):
        out = tmp_path / str(trial)
        process = started(*words, out, start_new_session=True, **quiet)
        time.sleep(draw.uniform(0.2, 0.9 * whole))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        told = process.communicate()[1].decode()
        assert process.returncode in (0, 143), told
        assert "Traceback" not in told
        if trial % 5 == 0:
            assert finish(out) == 0
            assert (out / "result.json").read_bytes() == (tmp_path / "whole" / "result.json").read_bytes()


# ---- paths and files -----------------------------------------------------------------------------------------------
def test_a_folder_whose_name_is_not_utf8(tmp_path, fedkeel, drawn_only):
    out = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    assert fedkeel("run", *SMALL, *ROUNDS, "--out", out).code == 0
    for words in (["compare", out], ["report", out], ["resume", out], ["export", "model", out, f"{out}.safetensors"]):
        done = fedkeel(*words)
        assert done.code == 0, done.err


@pytest.mark.parametrize("how", ["a folder", "junk", "empty"])
def test_damage_to_any_file_is_one_line(tmp_path, fedkeel, drawn_only, how):
    out = tmp_path / "run"
    assert fedkeel("run", *SMALL, "--rounds", "1", "--method", "scaffold", "--out", out).code == 0
    whole = contents(out)
    for name in whole:
        if name.name in ("run.lock", "sums.txt" if how == "empty" else ""):
            continue
        (out / name).unlink()
        if how == "a folder":
            (out / name).mkdir()
        else:
            (out / name).write_bytes(b"\xff\x00junk\n" if how == "junk" else b"")
        failed = []
        for words in (["compare", out], ["report", out], ["export", "model", out, tmp_path / "m.safetensors"]):
            done = fedkeel(*words)
            assert done.code in (0, 2)
            if done.code:
                assert done.err.startswith("error: ")
                assert "unexpected" not in done.err
                assert len(done.err.splitlines()) == 3
                failed.append(words[0])
        assert "compare" in failed, name
        if how == "a folder":
            (out / name).rmdir()
        (out / name).write_bytes(whole[name])
    assert fedkeel("compare", out).code == 0


# ---- the ledger ----------------------------------------------------------------------------------------------------
def entry(seed):
    return ledger.Entry(
        "fedfft", "1", "FedAvg", "iid", seed, "best", "best", 50.0, None, 51.0, 51.0, 50.0, 50.0, 3, 3, 1.0, "f", "m"
    )


def test_half_a_line_at_the_end_of_a_ledger_is_put_aside_and_told(tmp_path, caplog):
    path = tmp_path / "ledger.jsonl"
    for seed in (0, 1):
        ledger.append(entry(seed), path)
    half = entry(2).dumps().encode()[:200]
    with path.open("ab") as lines:
        lines.write(half)
    before = path.read_bytes()
    assert [one.seed for one in ledger.read(path)] == [0, 1]
    assert "the last line of" in caplog.text
    assert path.read_bytes() == before  # reading changes nothing
    ledger.append(entry(3), path)
    assert (tmp_path / "ledger.jsonl.torn").read_bytes() == half + b"\n"
    caplog.clear()
    assert [one.seed for one in ledger.read(path)] == [0, 1, 3]
    assert not caplog.text
    path.write_bytes(path.read_bytes().replace(b'"seed": 1', b'"seed": x'))
    with pytest.raises(fk.RequestError, match="damaged in line 2"):  # not the last: not torn, but damaged
        ledger.read(path)


def test_a_whole_last_line_without_its_end_is_kept(tmp_path, caplog):
    path = tmp_path / "ledger.jsonl"
    path.write_text(entry(0).dumps(), encoding="utf-8")
    ledger.append(entry(1), path)
    assert [one.seed for one in ledger.read(path)] == [0, 1]
    assert not caplog.text


def test_a_stream_in_ascii_gets_what_it_can_write(tmp_path, monkeypatch):
    """A table, and then the same run as JSON."""
    words = ["run", *SMALL, "--rounds", "1", "--method", "fedavg", "--out", str(tmp_path / "ä")]
    written = []
    for how in ("--no-progress", "--json"):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
        assert call([*words, how]) == 0
        written.append(sys.stdout.buffer.getvalue())
    assert b"fedavg |" in written[0]
    assert b"\\u00e4" in written[1]
