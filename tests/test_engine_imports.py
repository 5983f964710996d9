"""Engines cannot know a method: they import none."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fedkeel

PACKAGE = Path(fedkeel.__file__).parent
BLIND = [*sorted((PACKAGE / "engines").glob("*.py")), *sorted((PACKAGE / "kernels").glob("*.py"))]
BLIND += [PACKAGE / name for name in ("round.py", "gradients.py", "gradients_stacked.py", "task.py")]


def imported(path: Path) -> set[str]:
    """Every module a file imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("path", BLIND, ids=lambda path: path.name)
def test_imports_neither_rules_nor_methods_nor_experiments(path: Path) -> None:
    names = {name.removeprefix("fedkeel.").split(".")[0] for name in imported(path) if name.startswith("fedkeel.")}
    assert not names & {"rules", "methods", "experiment", "composition", "run", "setup"}


def test_would_notice(tmp_path: Path) -> None:
    sly = tmp_path / "sly.py"
    sly.write_text("def f():\n    from fedkeel import rules\n    import fedkeel.methods\n")
    assert {"fedkeel.rules", "fedkeel.methods"} <= imported(sly)
