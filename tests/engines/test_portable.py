"""Systems that lack what POSIX has: nothing else is lost there."""

import ast
import os
import pathlib
import re
import signal
from functools import cache

import pytest
import torch

import fedkeel as fk
from fedkeel.cli import stopping
from fedkeel.cli.main import call
from fedkeel.core import states
from fedkeel.engines import choose, machine
from problems import small_problem

SETTINGS = {"rounds": 2, "participation": 1.0, "epochs": 1, "batch_size": 4, "lr": 0.1}


@pytest.fixture
def windows(monkeypatch):
    """What is known of Windows: no masks of signals, no counts of pages, no /proc, folders that cannot be opened."""
    for module, names in (
        (signal, ("pthread_sigmask", "pthread_kill")),
        (os, ("sysconf", "sysconf_names", "sched_getaffinity")),
    ):
        for name in names:
            monkeypatch.delattr(module, name, raising=False)
    read, opened = pathlib.Path.read_text, os.open

    def read_text(path, *given, **named):
        if path.parts[:2] == ("/", "proc"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return read(path, *given, **named)

    def open_file(path, flags, *given, **named):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, *given, **named)

    monkeypatch.setattr(pathlib.Path, "read_text", read_text)
    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(states, "WINDOWS", True)


def test_runs_are_made_and_found_again(windows, tmp_path):
    exp = fk.Experiment(problem=small_problem(), method="scaffold", **SETTINGS)
    for engine in ("serial", "stacked", "auto"):
        made = fk.run(exp, out=tmp_path / engine, engine=engine, dtype=torch.float64)
        assert fk.load_run(tmp_path / engine).result == made.result


def test_the_engine_of_processes_is_refused_and_never_chosen(windows, monkeypatch):
    exp = fk.Experiment(problem=small_problem(), **SETTINGS)
    with pytest.raises(fk.RequestError, match="this system has no processes engine"):
        fk.run(exp, engine="processes")
    offered = []

    def decide(self):
        offered.extend(self.names)
        return None, choose.Choice("serial")

    monkeypatch.setattr(choose.Contest, "decide", decide)
    fk.run(exp, workers=2)
    assert offered == ["serial", "stacked"]


def test_memory_and_cores_are_known_enough(windows):
    assert machine.free_memory() > 0
    assert machine.cores() > 0
    assert call(["doctor"]) == 0


def test_a_signal_is_raised_again(windows):
    with pytest.raises(stopping.Stopped), stopping.stopping():
        stopping.raise_in_main_thread(signal.SIGTERM)


# ---- what the source says ------------------------------------------------------------------------------------------
SOURCE = pathlib.Path(fk.__file__).parent
POSIX = {"curses", "fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
GUARDED = {
    ("engines/machine.py", "os.sched_getaffinity"),  # behind hasattr
    ("engines/machine.py", "os.sysconf"),  # behind sysconf_names
    ("engines/processes.py", "signal.pthread_sigmask"),  # behind has_pools
    ("engines/processes.py", "signal.SIG_BLOCK"),
    ("engines/processes.py", "signal.SIG_SETMASK"),
    ("cli/stopping.py", "signal.pthread_kill"),  # behind hasattr
}
ON_WINDOWS = {
    "os": "O_RDONLY O_RDWR O_WRONLY PathLike SEEK_END _exit close cpu_count devnull dup dup2 environ fdopen fsdecode"
    " fsencode fspath fstat fsync getcwd getpid linesep name open path pathsep replace sep set_inheritable truncate"
    " unlink walk",
    "signal": "SIGINT SIGTERM SIG_DFL SIG_IGN getsignal raise_signal signal",
}
"""What both systems have, of what fedkeel uses: a new name is looked up in Python's documentation, then added."""


def each_node(source=None):
    """Every node of the syntax of every module, with the module's place."""
    return nodes_of({"here": source}) if source else nodes_of_fedkeel()


def nodes_of(texts):
    return [(place, node) for place, text in texts.items() for node in ast.walk(ast.parse(text))]


@cache
def nodes_of_fedkeel():
    return nodes_of({path.relative_to(SOURCE).as_posix(): path.read_text() for path in SOURCE.rglob("*.py")})


def posix_only(source=None):
    """Names that only POSIX has, with the places where they are used."""
    for place, node in each_node(source):
        match node:
            case ast.Import(names=names) if POSIX & {alias.name.partition(".")[0] for alias in names}:
                yield place, "import"
            case ast.ImportFrom(module=str(name)) if name.partition(".")[0] in POSIX:
                yield place, "import"
            case ast.ImportFrom(module="os" | "signal" as module, names=names):
                used = {alias.name for alias in names} - set(ON_WINDOWS[module].split())
                yield from ((place, f"{module}.{name}") for name in used)
            case ast.Attribute(value=ast.Name(id="os" | "signal" as module), attr=name):
                if name not in ON_WINDOWS[module].split():
                    yield place, f"{module}.{name}"
            case ast.Constant(value="fork" | "forkserver"):
                yield place, "fork"


def system_endings(source=None):
    """Calls that write text with the line endings of the system, with which no checksum fits."""
    for place, node in each_node(source):
        if not isinstance(node, ast.Call) or any(given.arg == "newline" for given in node.keywords):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        modes = [given.value for given in node.args[:2] if isinstance(given, ast.Constant)]
        written = any(isinstance(mode, str) and mode in ("w", "a", "x", "w+", "a+", "x+", "r+") for mode in modes)
        if (name == "write_text" and isinstance(node.func, ast.Attribute)) or (name == "open" and written):
            yield place, ast.unparse(node)


@pytest.mark.slow
def test_nothing_only_posix_has_is_used_outside_of_guarded_places():
    assert set(posix_only()) == GUARDED
    for bad in ("import fcntl", "from resource import getrlimit", "from os import fork", "os.killpg(1, 9)",
                "signal.SIGKILL", "get_context('fork')"):  # fmt: skip
        assert list(posix_only(bad)), bad


@pytest.mark.slow
def test_text_ends_its_lines_alike_on_every_system():
    assert [call for call in system_endings() if "devnull" not in call[1]] == []
    for bad in ("path.write_text(text, encoding='utf-8')", "open(path, 'a')", "path.open('w', encoding='utf-8')"):
        assert list(system_endings(bad)), bad


def unencoded(source=None):
    """Calls that read or write text in the encoding of the system."""
    for place, node in each_node(source):
        if not isinstance(node, ast.Call):
            continue
        method = node.func.attr if isinstance(node.func, ast.Attribute) else None
        values = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        modes = [value for value in values if isinstance(value, str) and re.fullmatch("[rwaxb+]+", value)]
        opens = getattr(node.func, "id", None) == "open" or (method == "open" and modes)
        text = method in ("read_text", "write_text") or (opens and not any("b" in mode for mode in modes))
        if text and "utf-8" not in [*values, *(getattr(word.value, "value", None) for word in node.keywords)]:
            yield place, ast.unparse(node)


def test_no_file_depends_on_the_locale():
    assert list(unencoded()) == []
    for bad in ("path.write_text(text)", "open(path, 'a')", "path.open('r')", "path.read_text()"):
        assert list(unencoded(bad)), bad
