"""Who may import whom: read from the source, so that no special case can creep in."""

import ast
import re
from pathlib import Path

import pytest

import fedkeel

ROOT = Path(fedkeel.__file__).parent
FORBIDDEN = {
    # engines know no method
    "engines": {"rules", "methods", "experiment", "setup", "run", "composition", "cli", "papers"},
    # rules know no engine, no task, no file
    "rules": {
        "engines",
        "task",
        "gradients",
        "experiment",
        "setup",
        "run",
        "folder",
        "checkpoint",
        "methods",
        "data",
        "cli",
    },
    "methods": {"engines", "task", "gradients", "experiment", "setup", "run", "folder", "checkpoint", "data", "cli"},
    "models": {"rules", "methods", "engines", "experiment", "run", "cli"},
    "data": {"rules", "methods", "engines", "experiment", "run", "cli", "models"},
    "round.py": {"rules", "methods", "engines", "task", "experiment", "run", "data"},
    "method.py": {"rules", "methods", "engines", "task", "experiment", "run", "data"},
    "rule.py": {"rules", "methods", "engines", "task", "experiment", "run", "data", "method", "round"},
    "trees.py": {"rule", "rules", "methods", "engines", "task", "experiment", "run", "data", "method", "round"},
}


def imported(path):
    """The parts of fedkeel that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] + [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("fedkeel.") or name == "fedkeel."}
    return found


@pytest.mark.parametrize("part", sorted(FORBIDDEN))
def test_forbidden_arrows(part):
    files = [ROOT / part] if part.endswith(".py") else sorted((ROOT / part).rglob("*.py"))
    assert files
    for path in files:
        assert not imported(path) & FORBIDDEN[part], f"{path.relative_to(ROOT)}"


IMPORTERS = {"importing.py", "__init__.py", "trackers.py", "models/external.py", "cli/main.py", "cli/methods.py"}
"""Who imports modules by name: the door for names of users, and five that import modules which they list themselves."""
UNPICKLERS = {"engines/worker.py", "engines/processes.py", "engines/flower/simulation.py", "data/pickles.py"}
"""Who unpickles: parents and the children they started, and the reader of CIFAR's batches."""


def test_names_of_code_come_in_through_one_door():
    for path in ROOT.rglob("*.py"):
        text, name = path.read_text(), path.relative_to(ROOT).as_posix()
        tree = ast.parse(text)
        called = {ast.unparse(node.func).rpartition(".")[2] for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert "import_module" not in called or name in IMPORTERS, name
        assert not called & {"__import__", "eval", "exec", "compile", "run_path", "exec_module"} - (
            {"compile"} if "re.compile" in text or "torch.compile" in text else {"eval"} if ".eval()" in text else set()
        ), name
        assert not re.search(r"\b(?:pickle|cloudpickle|torch|joblib|dill)\.loads?\(", text) or name in UNPICKLERS, name
        assert "allow_pickle=True" not in text, name


def test_only_the_command_line_prints():
    for path in ROOT.rglob("*.py"):
        calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        assert not [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"], path
