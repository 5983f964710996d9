"""The form of a run folder: older ones are read, newer ones are refused and left as they are."""

import json
import os
import stat

import pytest

import fedkeel as fk
from fedkeel.errors import FolderError
from fedkeel.runs.folder import FORMAT
from problems import small_problem

EXPERIMENT = fk.Experiment(problem=small_problem(), rounds=1, participation=1.0, epochs=1, batch_size=4, lr=0.1)


@pytest.fixture
def folder(tmp_path):
    fk.run(EXPERIMENT, out=tmp_path / "run", engine="serial")
    return tmp_path / "run"


def say(folder, **changes):
    file = folder / "environment.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_run_says_its_format_and_one_without_is_read(folder):
    file = folder / "environment.json"
    data = json.loads(file.read_text())
    assert data.pop("format") == FORMAT
    file.write_text(json.dumps(data))
    assert fk.load_run(folder).result["rounds"] == 1


def test_a_newer_folder_is_refused_in_a_line_and_a_hint_by_every_command(folder, fedkeel):
    say(folder, format=FORMAT + 1, unknown={"of": "a later version"})
    (folder / "experiment.toml").write_text('something = "of a later version"\n')
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "run.lock"}
    for words in (["resume", folder], ["compare", folder], ["report", folder], ["cite", folder], ["analyse", folder]):
        done = fedkeel(*words)
        assert done.code != 0, words
        line = f"{folder} is of format {FORMAT + 1}, which a newer fedkeel writes; this one reads up to {FORMAT}."
        assert line in " ".join(done.err.split()), (words, done.err)
        assert "pip install --upgrade fedkeel" in done.err, words
        assert "Traceback" not in done.err, words
    with pytest.raises(FolderError, match="which a newer fedkeel writes"):
        fk.run(EXPERIMENT, out=folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path in before} == before


@pytest.mark.parametrize("number", ["2", 1.5, True, None, 0, -1])
def test_a_format_that_is_no_number_is_damage(folder, number):
    say(folder, format=number)
    with pytest.raises(FolderError, match=r"environment\.json is damaged: format"):
        fk.load_run(folder)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
def test_files_may_be_read_by_those_whom_the_umask_allows(tmp_path):
    before = os.umask(0o027)
    try:
        fk.run(fk.Experiment(dataset="digits", model="logistic", rounds=1, epochs=1), out=tmp_path / "run")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert {name for name, mode in modes.items() if mode & 0o777 != 0o640} <= {"run.lock"}
    assert any(name.endswith(".safetensors") for name in modes)
