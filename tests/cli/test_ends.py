"""How a command ends: exit codes, one clear line, never a traceback; and what it costs to ask for help."""

import io
import operator
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console
from small_runs import SMALL, environment

from fedkeel.cli import methods, run
from fedkeel.cli.stopping import Stopped, stopping
from fedkeel.core.states import write_text
from fedkeel.errors import RunError


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["rn"], "fedkeel has no command: rn", "did you mean 'run'?"),
        (["run", "--methd", "fedavg"], "fedkeel run has no option: --methd", "did you mean '--method'?"),
        (["run", "--rounds", "x"], "invalid value for '--rounds'", "`fedkeel run --help`"),
        (["resume"], "missing argument 'DIR'", "`fedkeel resume --help`"),
        (["export", "modl", "a", "b"], "fedkeel export has no command: modl", "did you mean 'model'?"),
        (["run", "--method", "fedsm"], "unknown method: fedsm", "did you mean 'fedsam'?"),
        (["run", "--dataset", "digts"], "unknown data set: digts", "did you mean 'digits'?"),
        (["run", "--method", "fedavg", "--model", "smal-cnn"], "smal-cnn", "did you mean 'small-cnn'?"),
        (["run", "--set", "epoch=1"], "an experiment has no key: epoch", "did you mean 'epochs'?"),
        (["run", "--engine", "serail"], "unknown engine: serail", "did you mean 'serial'?"),
        (["run", "--device", "tpu"], "unknown device: tpu", "use auto, cpu, cuda or mps"),
        (["run", "--workers", "0"], "workers must be at least 1 and at most 1024: 0", "leave it out"),
        (["run", "--partition", "dirichlet:alpha=0.1,clients=5000"], "5000 clients", "at most"),
        (["run", "wards:problem"], "no such file", "a problem of your own is chosen with --problem wards:problem"),
        (["resume", "nowhere"], "nowhere does not exist", "the folder that `fedkeel run` printed"),
        (["methods", "fedsm"], "unknown method: fedsm", "did you mean 'fedsam'?"),
        (["models", "resnet"], "unknown model: resnet", "did you mean 'resnet"),
        (["datasets", "cifar"], "unknown data set: cifar", "did you mean 'cifar"),
        (["datasets", "mnist", "--partition", "iid:clients=3"], "mnist is not in", "--from PATH"),
        (["datasets", "mnist", "--from", "nowhere"], "nowhere does not exist", "--from PATH"),
        (["datasets", "--partition", "iid:clients=3"], "needs the name of a data set", "fedkeel datasets digits"),
        (["cite", "fedsm"], "unknown method: fedsm", "did you mean 'fedsam'?"),
        (["export", "model", "nowhere", "a.safetensors"], "nowhere is not a run", "the folder that `fedkeel run`"),
        (["export", "model", "nowhere", "a.pt"], "written as .safetensors or .onnx: a.pt", "call it a.safetensors"),
    ],
)
def test_wrong_requests_end_with_2_and_a_hint(fedkeel, words, message, hint):
    done = fedkeel(*words)
    error, blank, told = done.err.splitlines()
    assert (done.code, done.out, blank) == (2, "", "")
    assert error.startswith("error: ")
    assert message in error
    assert told.startswith("hint: ")
    assert hint in told


def test_a_run_that_cannot_go_on_ends_with_1(fedkeel, monkeypatch):
    def fails(name=None):
        raise RunError("cannot write x: No space left on device", "free some space")

    monkeypatch.setattr(methods, "show_table", fails)
    monkeypatch.setattr("fedkeel.catalogue.cards.cards", fails)
    done = fedkeel("methods")
    assert (done.code, done.err) == (1, "error: cannot write x: No space left on device\n\nhint: free some space\n")


def test_what_nobody_expected_is_one_line(fedkeel, monkeypatch):
    monkeypatch.setattr("fedkeel.catalogue.cards.cards", partial(operator.truediv, 1, 0))
    done = fedkeel("methods")
    line = "error: unexpected error: ZeroDivisionError: division by zero (set FEDKEEL_TRACEBACK=1 to see it)\n"
    assert (done.code, done.out, done.err) == (1, "", line)
    monkeypatch.setenv("FEDKEEL_TRACEBACK", "1")
    assert "Traceback (most recent call last)" in fedkeel("methods").err


def test_a_current_folder_that_was_removed_is_told(fedkeel, monkeypatch, tmp_path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr("fedkeel.catalogue.cards.cards", os.getcwd)  # as PyTorch does when it is imported
    done = fedkeel("methods")
    assert (done.code, done.err) == (2, "error: the current folder is gone.\n\nhint: change to one that exists: cd ~\n")


OWN = """
import torch
import fedkeel as fk

def loss(output, target):
    return output.square().mean() / len(SHARES)

def problem():
    return fk.Problem(model=torch.nn.Linear(2, 2), loss=loss, clients=[(torch.ones(4, 2), torch.zeros(4).long())])
"""


@pytest.mark.parametrize("engine", ["serial", pytest.param("processes", marks=pytest.mark.slow)])
def test_an_error_in_the_user_s_code_is_told_with_its_line(fedkeel, engine):
    later = "1 if torch.is_grad_enabled() else 0"  # the loss passes the trial before training
    file = Path(f"fails_{engine}.py").resolve()  # a module is imported once
    file.write_text(OWN.replace("SHARES", f"[1][{later}:] or NAMED"))
    words = "--method", "fedavg", "--rounds", "1", "--engine", engine
    done = fedkeel("run", "--problem", f"{file.stem}:problem", *words)
    assert (done.code, done.out) == (1, "")
    *_, error, _, hint = done.err.splitlines()
    assert error == f"error: {file}, line 6, in loss: NameError: name 'NAMED' is not defined"
    assert hint == "hint: this line is yours, not fedkeel's; FEDKEEL_TRACEBACK=1 shows the way to it"


def test_a_package_that_is_missing_or_broken_is_named(fedkeel, monkeypatch):
    assert fedkeel("run", *SMALL, "--rounds", "1", "--method", "fedavg", "--out", "here").code == 0
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = fedkeel("report", "here")
    line = "error: a package that is needed is not installed: matplotlib.figure\n\nhint: pip install matplotlib\n"
    assert (done.code, done.out, done.err) == (2, "", line)

    def breaks():
        raise ImportError("libpng.so:\nno such file", name="PIL._imaging")

    monkeypatch.setattr("fedkeel.catalogue.cards.cards", breaks)
    line = "error: a package that is needed cannot be imported: PIL._imaging\n\nhint: libpng.so: no such file\n"
    assert (fedkeel("methods").code, fedkeel("methods").err) == (2, line)


def test_the_help_names_every_exit_code(fedkeel):
    told = " ".join(fedkeel("--help").out.split())
    assert "Exit codes: 0 done; 1 the run failed; 2 the request was wrong; 130 interrupted" in told
    assert "143 terminated" in told


@pytest.mark.parametrize(("number", "code", "word"), [(2, 130, "interrupted"), (15, 143, "terminated")])
def test_a_signal_while_nothing_trains(fedkeel, monkeypatch, number, code, word):
    def stop():
        os.kill(os.getpid(), number)

    monkeypatch.setattr("fedkeel.catalogue.cards.cards", stop)
    done = fedkeel("methods")
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith(f"{word}: ")


def test_a_signal_before_the_first_round(fedkeel, monkeypatch):
    monkeypatch.setattr("fedkeel.cli.training.run", lambda *_, **__: os.kill(os.getpid(), 2))
    done = fedkeel("run", *SMALL, "--rounds", "2", "--method", "fedavg")
    assert (done.code, done.err) == (130, "interrupted: fedavg had not begun. The same command again goes on.\n")


def test_handlers_are_put_back():
    import signal

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Stopped), stopping():
        os.kill(os.getpid(), signal.SIGTERM)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_no_color_is_honoured(fedkeel, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    assert "\x1b[1;31merror:" in fedkeel("methods", "fedsm").err
    monkeypatch.setenv("NO_COLOR", "1")
    plain = fedkeel("methods", "fedsm").err
    assert "error:" in plain
    assert "31m" not in plain


def test_long_messages_stay_on_one_line(monkeypatch):
    written = io.StringIO()
    run.say(Console(file=written, width=20), "error", "red", "a message of more than twenty characters")
    assert written.getvalue() == "error: a message of more than twenty characters\n"


# ---- help ----
COMMANDS = ["run", "resume", "methods", "datasets", "models", "cite", "doctor", "export model", "export flower",
            "site check", "site rollback", "site audit", "site status"]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_page_has_an_example_that_begins_with_the_command(fedkeel, command):
    done = fedkeel(*command.split(), "--help")
    assert done.code == 0
    assert f"$ fedkeel {command}" in done.out


def test_the_name_alone_shows_every_command(fedkeel):
    alone, asked = fedkeel(), fedkeel("--help")
    assert alone.code == asked.code == 0
    assert alone.out.strip() == asked.out.strip().replace("Usage: fedkeel", "Usage: fedkeel")
    assert all(f" {command.split()[0]} " in asked.out for command in COMMANDS)


def fresh(code, stdout=subprocess.PIPE):
    """Run Python code in a process of its own."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment(), check=False)


def test_help_and_wrong_words_need_no_pytorch():
    code = "import sys; from fedkeel.cli.main import call; call(['run', '--help']); call(['rn']); call(['--version'])"
    done = fresh(f"{code}; sys.exit('torch' in sys.modules)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("fedkeel ")


@pytest.mark.slow
def test_the_package_runs_as_a_module():
    done = fresh("import runpy, sys; sys.argv = ['x', 'rn']; runpy.run_module('fedkeel', run_name='__main__')")
    assert done.returncode == 2
    assert done.stderr.startswith("error: fedkeel has no command: rn")


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_told_nothing():
    read, write = os.pipe()
    os.close(read)
    done = fresh("import sys; from fedkeel.cli.main import call; sys.exit(call(['--help']))", stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


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


def test_a_folder_is_no_file_to_write(fedkeel, trained):
    trained("--method", "fedavg", "--out", "here")
    for words in (["report", "here", "-o", "."], ["report", "--ledger", "."], ["export", "model", "here", "."]):
        done = fedkeel(*words)
        assert done.code == 2
        assert "unexpected" not in done.err
    for words in (["methods", "--pages", "/proc/x"], ["methods", "fedavg", "--pages", "/proc/x"]):
        assert fedkeel(*words).err.startswith("error: cannot write /proc/x: ")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with a name")
def test_a_pipe_or_device_is_not_replaced_by_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in (pipe, Path("/dev/stdout"), Path("/dev/none")):
        with pytest.raises(RunError, match="it is a device or a pipe, not a file"):
            write_text(place, "a page")
    assert pipe.is_fifo()


def test_a_word_that_is_no_text_is_refused(fedkeel):
    done = fedkeel("sweep", "\ud800")
    assert done.code == 2
    assert done.err.splitlines()[0] == r"error: a word of the command line is no text: '\ud800'"


def test_options_are_small_letters_whatever_their_value_is_called():
    """A typer of 0.27 reads a metavar that spells the parameter's name as the option's own name."""
    from typing import get_args, get_type_hints

    from fedkeel.cli.main import app

    for command in app.registered_commands:
        for name, kind in get_type_hints(command.callback, include_extras=True).items():
            for extra in get_args(kind)[1:]:
                assert getattr(extra, "metavar", None) != name.upper() or extra.param_decls, (command.callback, name)
