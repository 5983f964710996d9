"""Every file of plain data is read by one function: what could be read without end is refused in one line."""

import os
import subprocess
from pathlib import Path

import pytest

from fedkeel.cli.settings import read_file
from fedkeel.errors import RequestError
from fedkeel.federation.site_check import FAILED, check_work
from fedkeel.papers import find
from fedkeel.runs.folder import read_settings
from fedkeel.written_values import LARGEST, read_toml_file

FILES = {"app": "pyproject.toml", "experiment": "e.toml", "paper": "mine.toml", "run": "experiment.toml"}


def read_as(kind, file):
    """What the reader of that kind of file says of one that it refuses."""
    if kind == "app":
        pytest.importorskip("flwr")
        (found,) = check_work(file.parent, 0, {}, trust=False)
        assert found.state == FAILED
        return found.line
    readers = {"experiment": read_file, "paper": lambda f: find(f"{f}:1"), "run": lambda f: read_settings(f.parent)}
    with pytest.raises(RequestError) as refused:
        readers[kind](file)
    assert refused.value.hint
    return refused.value.message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with a name")
@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("what", ["device", "pipe", "link to a pipe"])
def test_a_device_or_a_pipe_is_refused(kind, what, tmp_path):
    file, pipe = tmp_path / FILES[kind], tmp_path / "pipe"
    os.mkfifo(file if what == "pipe" else pipe)
    if what != "pipe":
        file.symlink_to("/dev/null" if what == "device" else pipe)
    assert "it is a device or a pipe, not a file" in read_as(kind, file)


@pytest.mark.parametrize("kind", FILES)
def test_what_is_larger_than_anyone_writes_is_refused(kind, tmp_path):
    file = tmp_path / FILES[kind]
    with file.open("wb") as made:
        made.truncate(LARGEST + 1)
    assert "it is larger than 4 MiB" in read_as(kind, file)
    file.write_bytes(b"\xff")
    assert "it is not text" in read_as(kind, file)


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="the system gives pipes no path")
def test_what_a_shell_pipes_is_read():
    """`fedkeel run <(command)` names a pipe such as /dev/fd/63."""
    reading, writing = os.pipe()
    with subprocess.Popen(["sh", "-c", "sleep 0.2; echo lr = 0.1"], stdout=writing):
        os.close(writing)
        assert read_toml_file(Path(f"/dev/fd/{reading}")) == {"lr": 0.1}
    os.close(reading)


def test_a_file_of_the_largest_size_is_read(tmp_path):
    (tmp_path / "a.toml").write_bytes(b"\n" * LARGEST)
    assert read_toml_file(tmp_path / "a.toml") == {}
