"""Who may import whom: read from the source, so that no special case can creep in."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import fedkeel

ROOT = Path(fedkeel.__file__).parent
PLAIN = "errors importing randomness ranges streams text typed_values"
ARROWS = {
    "errors": "text",
    "ranges": "",
    "text": "",
    "streams": "",
    "randomness": "",
    "typed_values": "errors ranges",
    "importing": "errors typed_values",
    "core": PLAIN,
    "data": PLAIN,
    "models": PLAIN,
    "kernels": f"core models {PLAIN}",
    # what a method is
    "rules": f"core kernels {PLAIN}",
    "methods": f"rules core models {PLAIN}",
    "optim": f"rules core {PLAIN}",
    "analysis": f"core {PLAIN}",
    # how it is carried out
    "problems": f"core data {PLAIN}",
    "engines": f"problems kernels core data {PLAIN}",
    # where both meet
    "runs": f"methods rules analysis engines problems core data models {PLAIN}",
    "papers": f"runs methods engines core data {PLAIN}",
    "federation": f"runs methods engines problems data models {PLAIN}",
    "studies": f"runs methods rules analysis engines problems core data {PLAIN}",
    "catalogue": f"papers runs methods problems core models {PLAIN}",
    "report": f"studies papers runs methods rules problems core data {PLAIN}",
    "cli": f"report studies catalogue papers federation runs methods engines problems core data models {PLAIN}",
    "__main__": "cli streams",
}
"""Each room and the rooms it may import, on its own or inside a function. Another arrow is a line here, on purpose."""
WINGS = ({"rules", "methods", "optim", "analysis"}, {"engines", "problems"})
"""What a method is, and how it is carried out: neither reaches the other, also not through a third room."""
LATE = {
    ("kernels.band", "kernels.triton_band"),  # Triton is there on some machines only
    ("data.dataset", "data.storage.loading"),  # a data set that reached a worker opens its files there
    ("papers.reproduce", "papers.verdicts"),
}
"""Imports inside functions that would close a circle."""


@cache
def modules():
    """Every module of the package by its name in it: its path, and all nodes of its syntax tree."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path, list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return found


def imported(nodes):
    """The modules of fedkeel that are imported, anywhere but for type checkers."""
    branches = [n for n in nodes if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
    typing = {inner for branch in branches for statement in branch.body for inner in ast.walk(statement)}
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node not in typing:
            assert node.level == 0, "imports are absolute"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    found = set()
    for name in (name.removeprefix("fedkeel.") for name in names if name.startswith("fedkeel.")):
        while name not in modules():
            name = name.rpartition(".")[0]
        found.add(name)
    return found - {""}


@cache
def arrows():
    return {name: imported(nodes) - {name} for name, (_, nodes) in modules().items() if name}


def reach(start, arrows):
    """Everything that can be reached."""
    seen, ahead = set(), [start]
    while ahead:
        fresh = arrows[ahead.pop()] - seen
        seen |= fresh
        ahead += fresh
    return seen


def test_rooms_import_the_rooms_that_they_may():
    for name, found in arrows().items():
        room = name.split(".")[0]
        other = {module.split(".")[0] for module in found} - {room}
        assert other <= set(ARROWS[room].split()), name


def test_arrows_point_one_way_and_the_wings_stay_apart():
    allowed = {room: set(names.split()) for room, names in ARROWS.items()}
    for room in allowed:
        assert room not in reach(room, allowed), f"a circle of rooms: {room}"
    for one, other in (WINGS, WINGS[::-1]):
        assert all(not reach(room, allowed) & other for room in one)


def test_no_module_imports_itself_through_others():
    early = {name: {other for other in found if (name, other) not in LATE} for name, found in arrows().items()}
    assert [name for name in early if name in reach(name, early)] == []


def test_an_import_inside_a_function_is_seen():
    sly = "def f():\n from fedkeel import rules\n import fedkeel.methods.spectral\n from fedkeel.data import load\n"
    assert imported(list(ast.walk(ast.parse(sly)))) == {"rules", "methods.spectral", "data"}


def test_the_house_has_few_doors_and_says_what_each_room_is_for():
    assert len([path for path in ROOT.glob("*.py") if not path.name.startswith("__")]) <= 12
    rooms = {name: nodes[0] for name, (path, nodes) in modules().items() if path.name == "__init__.py"}
    assert rooms.keys() >= ARROWS.keys() - {path.stem for path in ROOT.glob("*.py")}
    assert [name for name, tree in rooms.items() if not ast.get_docstring(tree)] == []


IMPORTERS = {"importing.py", "__init__.py", "runs/trackers.py", "models/external.py", "cli/main.py", "cli/methods.py"}
"""Who imports modules by name: the door for names of users, and five that import modules which they list themselves."""
UNPICKLERS = {"engines/worker.py", "engines/processes.py", "engines/flower/simulation.py", "data/storage/pickles.py"}
"""Who unpickles: parents and the children they started, and the reader of CIFAR's batches."""


def test_names_of_code_come_in_through_one_door():
    for path, nodes in modules().values():
        text, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
        functions = [node.func for node in nodes if isinstance(node, ast.Call)]
        called = {getattr(function, "attr", getattr(function, "id", "")) for function in functions}
        assert "import_module" not in called or name in IMPORTERS, name
        assert not called & {"__import__", "eval", "exec", "compile", "run_path", "exec_module"} - (
            {"compile"} if "re.compile" in text or "torch.compile" in text else {"eval"} if ".eval()" in text else set()
        ), name
        assert not re.search(r"\b(?:pickle|cloudpickle|torch|joblib|dill)\.loads?\(", text) or name in UNPICKLERS, name
        assert "allow_pickle=True" not in text, name


def test_only_the_command_line_prints():
    for path, nodes in modules().values():
        calls = [node.func for node in nodes if isinstance(node, ast.Call)]
        assert not [function for function in calls if getattr(function, "id", "") == "print"], path
