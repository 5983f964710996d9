"""The notebooks run from top to bottom, cell by cell, as they stand."""

import ast
import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebook_runs(file, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed").use("Agg")
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(file.read_text())
    assert notebook["nbformat"] == 4
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] != "code":
            continue
        source = "".join(cell["source"])
        assert not source.lstrip().startswith(("%", "!")), "plain Python only, so that it runs anywhere"
        exec(compile(ast.parse(source), f"{file.name}[{number}]", "exec"), names)
        assert not any(output["output_type"] == "error" for output in cell["outputs"])
    if any("report.html" in line for cell in notebook["cells"] for line in cell["source"]):
        assert (tmp_path / "report.html").stat().st_size > 50_000
