"""The command line, called in this process: exit code, stdout, stderr."""

import json
from types import SimpleNamespace

import pytest
from small_runs import SMALL

from fedkeel.cli.main import call


@pytest.fixture
def fedkeel(tmp_path, monkeypatch, capsys):
    """`fedkeel("run", …)` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path / "data"))
    for name in ("NO_COLOR", "FORCE_COLOR", "FEDKEEL_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments):
        capsys.readouterr()
        code = call([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return run


@pytest.fixture
def trained(fedkeel):
    """A small run as JSON: `trained("--method", "fedavg")`."""

    def run(*arguments):
        done = fedkeel("run", *SMALL, "--rounds", "2", "--json", *arguments)
        assert done.code == 0, done.err
        return json.loads(done.out)["runs"]

    return run
