"""A paper's table, a federation, a failed run, five seeds, a model elsewhere: the guide's own files and commands."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from guide_tasks import PAGE, follow, set_out

import fedkeel as fk


def follow_to_file(words, capsys):
    """Carry out a command whose output may go into a file; return what it printed."""
    where = words[words.index(">") + 1] if ">" in words else None
    capsys.readouterr()
    follow(words[: words.index(">")] if where else words)
    printed = capsys.readouterr().out
    if where:
        Path(where).write_text(printed)
    return printed


@pytest.mark.slow
def test_methods_tuned_alike_as_a_latex_table(folder, capsys):
    for words in set_out(6):
        follow_to_file(words, capsys)
    table = Path("table.tex").read_text()
    rows = [line for line in table.splitlines() if line.startswith("fed")]
    assert [row.split(" & ")[0] for row in rows] == ["fedavg", "feddyn"]
    assert all(row.count(r"\pm") == 3 for row in rows)  # three seeds of each, and nothing that was only tried
    assert r"\mathbf" in table
    assert "over 3 seeds" in table
    assert [line.split(",")[1] for line in Path("table.csv").read_text().splitlines()] == ["seeds", "3", "3"]


# ---- a federation -------------------------------------------------------------------------------------------------
def lines_of_the_guide():
    section = PAGE.read_text(encoding="utf-8").partition("\n## 7. ")[2].partition("\n## ")[0]
    block = section.partition("```text\n")[2].partition("```")[0]
    return [line for line in block.splitlines() if line != "cd app"]


def lines_of_the_app():
    block = Path("app/README.md").read_text().partition("```sh\n")[2].partition("```")[0]
    return [line.partition("  #")[0].rstrip() for line in block.splitlines()]


def test_a_run_is_exported_with_the_commands_of_the_guide(folder):
    for words in set_out(7):
        follow(words)
    assert lines_of_the_app() == lines_of_the_guide()


@pytest.mark.slow
def test_the_commands_of_the_guide_train_a_federation(folder):
    pytest.importorskip("flwr")
    for words in set_out(7):
        follow(words)
    place = {"HOME": str(folder), "FLWR_HOME": str(folder / "flwr")}
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    found = os.pathsep.join([str(Path(fk.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    there = {**os.environ, **place, "PATH": programs, "PYTHONPATH": found}
    script = "cd app\n" + "\n".join(lines_of_the_guide())
    with Path("log").open("w") as log:
        done = subprocess.Popen(["bash", "-c", script], env=there, stdout=log, stderr=log, start_new_session=True)
    try:
        assert done.wait(900) is not None
    finally:
        os.killpg(done.pid, signal.SIGKILL)
    [made] = [path for path in (folder / "fedkeel-runs").iterdir() if path.is_dir()]
    deployed, simulated = fk.load_run(made), fk.load_run("runs/simulated")
    assert deployed.result["model_digest"] == simulated.result["model_digest"], Path("log").read_text()[-3000:]


# ---- a run that failed --------------------------------------------------------------------------------------------
def said(table_row):
    """What the guide says that fedkeel says, in quotes."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## 8. ")[2].partition("\n## ")[0]
    [row] = [line for line in section.splitlines() if line.startswith(f"| {table_row}")]
    return row.split("|")[2].split("`")[1].replace("FOLDER/", "")


@pytest.mark.slow
def test_what_the_guide_says_of_failed_runs_is_what_is_said(fedkeel):
    begin, resume, extend = (words[1:] for words in set_out(8))
    assert fedkeel(*begin, "--no-progress").code == 0
    fresh = [fk.load_run(f"runs/long/{name}/0").result["model_digest"] for name in ("fedavg", "scaffold")]
    assert said("you gave another option") in fedkeel(*begin, "--set", "lr=0.3").err
    assert said("you asked for fewer rounds") in fedkeel(*resume, "--rounds", "5").err
    shutil.move("runs/long", "moved")
    Path("runs").rmdir()
    one = Path("moved/scaffold/0")
    for name in ("result.json", "timing.json"):
        (one / name).unlink()
    assert fedkeel("resume", "moved", "--no-progress").code == 0
    assert [fk.load_run(f"moved/{name}/0").result["model_digest"] for name in ("fedavg", "scaffold")] == fresh
    assert fedkeel("resume", "moved", *extend[2:], "--no-progress").code == 0
    assert len(fk.load_run(one).records) == 15

    (one / "checkpoint" / "00000015.safetensors").write_bytes(b"x")
    assert said("the last checkpoint is damaged") in fedkeel("resume", one, "--no-progress").err
    text = (one / "experiment.toml").read_text()
    (one / "experiment.toml").write_text(text.replace("lr = ", "lr = 1"))
    assert said("`experiment.toml` was edited") in fedkeel("resume", one).err
    (one / "experiment.toml").write_text(text)
    for file in (one / "checkpoint").iterdir():
        file.write_bytes(b"x")
    assert "can be read" in said("both checkpoints")
    assert "can be read" in fedkeel("resume", one).err
    shutil.rmtree(one / "checkpoint")
    assert said("the folder `checkpoint` is lost") in fedkeel("resume", one).err
    assert fedkeel("report", one, "-o", "lost.html").code == 0


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on(fedkeel, folder):
    words = [word if word != "12" else "60" for word in set_out(8)[0][1:]]
    there = {**os.environ, "PYTHONPATH": str(Path(fk.__file__).parents[1])}
    run = subprocess.Popen([sys.executable, "-m", "fedkeel", *words], env=there, stderr=subprocess.DEVNULL)
    rounds = folder / "runs/long/fedavg/0/rounds.jsonl"
    while not (rounds.exists() and rounds.stat().st_size):
        assert run.poll() is None
        time.sleep(0.1)
    run.kill()
    run.wait()
    unfinished = fedkeel("compare", "runs/long")
    assert (unfinished.code, said("killed before") in unfinished.err) == (2, True)
    assert fedkeel("resume", "runs/long", "--no-progress").code == 0
    assert len(fk.load_run("runs/long/fedavg/0").records) == 60


@pytest.mark.slow
def test_five_seeds_are_compared_with_intervals(folder, capsys):
    printed = [follow_to_file(words, capsys) for words in set_out(9)]
    assert "95 % interval" in printed[1]
    page = Path("five.html").read_text()
    assert page.count("<svg") > 2
    assert "prefers-color-scheme: dark" in page
    found = fk.compare([fk.load_run(path.parent) for path in sorted(Path("runs/five").glob("*/*/result.json"))])
    difference = found.document()["methods"][1]["difference"]
    assert (difference["seeds"], difference["low"] < difference["mean"] < difference["high"]) == (5, True)
    assert str(difference["low"]) in printed[-1]


@pytest.mark.slow
def test_a_model_is_used_without_fedkeel(folder, capsys):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    *before, last = set_out(10)
    for words in before:
        follow(words)
    found = follow(last)
    run = fk.load_run("runs/digits")
    import torch

    expected = run.model()(torch.tensor(found["inputs"], dtype=torch.float32)).detach().numpy()
    np.testing.assert_allclose(found["logits"], expected, rtol=1e-4, atol=1e-4)
    from safetensors.numpy import load_file

    assert load_file("model.safetensors").keys() == run.model().state_dict().keys()
    assert json.loads(Path("runs/digits/result.json").read_text())["rounds"] == 2
