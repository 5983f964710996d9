"""Systems that lack what POSIX has: nothing else is lost there."""

import os
import pathlib
import signal

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
