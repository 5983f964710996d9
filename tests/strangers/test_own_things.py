"""Own tables, an own method in a package, an own partition, a figure: the guide's own files and commands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from guide_tasks import follow, set_out

import fedkeel as fk


@pytest.mark.slow
def test_own_tables_with_auc_and_early_stopping(folder, capsys):
    for words in set_out(1):
        made = follow(words)
        if words[1] == "hospitals.py":
            run, scores = made["run"], made["last"]
    assert run.result["stopped"]["reason"].startswith("validation_auc was best")
    assert run.result["rounds"] < run.experiment.rounds
    assert run.curve("auc")[-1] > 0.8
    assert (len(scores), scores["auc"].isna().sum()) == (4, 0)
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("berlin", "lyon", "oslo", "turin"))
    assert len(json.loads(Path("runs/two/scaffold/0/result.json").read_text())) > 3


def test_tables_as_they_come_are_refused_by_column(folder):
    """What stopped a stranger: words, then columns that differ, then empty cells; each line names the column."""
    pandas = pytest.importorskip("pandas")
    set_out(1)
    follow(["python", "write_tables.py"])
    common = dict(model=torch.nn.Linear(4, 2), loss=torch.nn.functional.cross_entropy, label="ill")
    with pytest.raises(fk.DataError, match=r"column smoking of hospitals/berlin\.csv holds no real numbers") as refused:
        fk.Problem(clients="hospitals", **common)
    assert "for all clients together" in refused.value.hint
    tables = [pandas.read_csv(file) for file in sorted(Path("hospitals").glob("*.csv"))]
    full, lacks = (tables[1].dropna(), tables[0][tables[0]["smoking"] != "current"])
    with pytest.raises(fk.DataError, match="are not those of the first table: smoking_current") as refused:
        fk.Problem(clients=[*map(pandas.get_dummies, (full, lacks))], **common)
    assert "in one table of all clients" in refused.value.hint
    with pytest.raises(fk.DataError, match=r"column pressure of client 0 is empty in \d+ of 150 rows") as refused:
        fk.Problem(clients=[*map(pandas.get_dummies, tables)], **common)
    assert "fillna" in refused.value.hint


@pytest.mark.slow
def test_a_method_in_a_package(folder):
    installed, *commands = set_out(3)
    assert installed == ["pip", "install", "./fedkeel-signprox"]
    site = folder / "user" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(site), installed[-1]], check=True)
    path = os.pathsep.join([str(Path(fk.__file__).parents[1]), str(site)])
    there = {**os.environ, "PYTHONUSERBASE": str(folder / "user"), "PYTHONPATH": path, "COLUMNS": "200"}
    printed = [
        subprocess.run([sys.executable, "-m", *words], env=there, check=True, capture_output=True, text=True).stdout
        for words in commands
    ]
    assert "2 passed" in printed[0]
    assert "package fedkeel-signprox" in printed[1]
    assert "SignPull(mu=0.01)" in printed[2]
    assert "Papers" not in printed[2]  # it names none
    assert json.loads((folder / "runs/prox/signprox/0/result.json").read_text())["rounds"] == 5


def test_an_own_partition_is_checked(folder):
    tests, *_ = set_out(4)
    follow(tests)
    from parts import Specialists

    whole = fk.Experiment(dataset="digits", model="logistic", partition=Specialists(share=1.0), rounds=1, lr=0.05)
    run = fk.run(whole, engine="serial")
    assert sum(run.sizes) == 1442
    named = whole.with_(partition="parts:Specialists,share=1.0")
    assert fk.run(named, engine="serial").sizes == run.sizes


@pytest.mark.slow
def test_an_own_partition_is_drawn_and_used(folder):
    for words in set_out(4):
        follow(words)
    assert Path("specialists.png").read_bytes().startswith(b"\x89PNG")
    for method in ("fedavg", "scaffold"):
        assert json.loads(Path(f"runs/specialists/{method}/0/result.json").read_text())["rounds"] == 8


@pytest.mark.slow
def test_a_figure_of_a_paper(folder, capsys):
    for words in set_out(5):
        follow(words)
    printed = capsys.readouterr().out
    assert "not judged" in printed.splitlines()[-1]
    assert "one seed of a cell decides nothing" in printed
    assert {file.suffix for file in Path("figures").iterdir()} == {".png", ".svg", ".html"}
