"""Who may import whom: read from the source, so that no special case can creep in."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from for_each import for_each

import fedkeel

ROOT = Path(fedkeel.__file__).parent

GROUND = "errors importing plugins randomness ranges streams text typed_values written_values"
MATERIAL = f"kernels core data models {GROUND}"
WINGS = f"analysis optim methods rules engines problems {MATERIAL}"
ALLOWED = {
    # the ground
    **dict.fromkeys(["randomness", "ranges", "streams", "text"], ""),
    "errors": "text",
    "typed_values": "errors ranges text",
    "written_values": "errors ranges text typed_values",
    "importing": "errors ranges text typed_values",
    "plugins": "errors importing ranges text typed_values",
    # what everything is made of
    **dict.fromkeys(["core", "data", "models"], GROUND),
    "kernels": f"core data models {GROUND}",
    # what a method is
    "rules": MATERIAL,
    **dict.fromkeys(["analysis", "optim", "methods"], f"rules {MATERIAL}"),
    # how it is carried out
    "problems": MATERIAL,
    "engines": f"problems {MATERIAL}",
    # where both meet, and what is made of runs
    "runs": WINGS,
    **dict.fromkeys(["papers", "federation"], f"runs {WINGS}"),
    **dict.fromkeys(["studies", "catalogue"], f"papers federation runs {WINGS}"),
    "testing": f"catalogue papers federation runs {WINGS}",
    "report": f"studies catalogue papers federation runs {WINGS}",
    "cli": f"report studies catalogue papers federation runs {WINGS}",
    "__main__": f"cli report studies catalogue papers federation runs {WINGS}",
}
"""Each part of the package, and all that it may reach: what it imports, what that imports, and so on."""


# ---- what is imported ----------------------------------------------------------------------------------------------
def sources() -> dict[str, str]:
    """Every module's text, by its name without `fedkeel.`; the package's own is empty."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return found


@cache
def nodes_of(text: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text)))


def called(node: ast.Call) -> str:
    """The last word of a function's name."""
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


@cache
def mentioned(text: str) -> tuple[str, ...]:
    """What a module imports of fedkeel, also inside functions; not what type checkers alone see."""
    nodes, found = nodes_of(text), []
    hidden = {
        id(inner)
        for node in nodes
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in nodes:
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and called(node) == "import_module":
            found += [one.value for one in node.args if isinstance(one, ast.Constant)]
    return tuple(name for name in found if name.split(".")[0] == "fedkeel")


def imports(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Each module's modules. The package itself, which has every name, is imported for its version alone."""
    graph: dict[str, set[str]] = {}
    for module, text in texts.items():
        graph[module] = set()
        for name in mentioned(text) if module else ():
            inner = name.removeprefix("fedkeel").removeprefix(".")
            if inner != "__version__":
                graph[module].add(inner if inner in texts else inner.rpartition(".")[0])
    return graph


def above(module: str) -> Iterator[str]:
    """The packages that a module lies in: importing it imports them."""
    while module := module.rpartition(".")[0]:
        yield module


def reached(graph: Mapping[str, set[str]], module: str) -> set[str]:
    found: set[str] = set()
    waiting = [module]
    while waiting:
        for one in graph[waiting.pop()]:
            new = {one, *above(one)} - found
            found |= new
            waiting += new
    return found


def forbidden(texts: Mapping[str, str], modules: Iterable[str]) -> list[str]:
    """What these modules reach and their part of the package may not."""
    graph = imports(texts)
    return [
        f"{module} reaches {other}"
        for module in modules
        for other in reached(graph, module)
        if (part := module.split(".")[0]) != (there := other.split(".")[0]) and there not in ALLOWED[part].split()
    ]


def circles(texts: Mapping[str, str]) -> set[str]:
    """Modules on a circle or between two: what is left when those that import nothing, or that nobody imports, go."""
    graph = imports(texts)
    while ends := {module for module, others in graph.items() if not others}:
        graph = {module: others - ends for module, others in graph.items() if module not in ends}
    while starts := graph.keys() - set().union(*graph.values()):
        graph = {module: others for module, others in graph.items() if module not in starts}
    return set(graph)


# ---- the laws ------------------------------------------------------------------------------------------------------
TEXTS = sources()


def test_imports_point_one_way():
    assert {module.split(".")[0] for module in TEXTS if module} == set(ALLOWED)
    assert not forbidden(TEXTS, filter(None, TEXTS))


def test_nothing_imports_itself():
    assert not circles(TEXTS)


SLY = {
    "in a function": "def f():\n    from fedkeel.rules import Sam\n",
    "from the package": "def f():\n    from fedkeel import rules\n",
    "a public name": "def f():\n    from fedkeel import Sam\n",
    "by another word": "class A:\n    def f(self):\n        import fedkeel.rules.filters as other\n",
    "by name": "def f():\n    return importlib.import_module('fedkeel.rules')\n",
    "beside type checkers": "if TYPE_CHECKING:\n    pass\nelse:\n    from fedkeel.rules import Sam\n",
}


@for_each("how", SLY)
def test_a_sly_import_is_seen(how):
    for sly in ("engines.cost", "engines.stacked.graphs", "problems.task", "core.trees"):
        assert forbidden(TEXTS | {sly: TEXTS[sly] + SLY[how]}, [sly])


def test_a_wing_does_not_reach_the_other_through_a_third():
    third = TEXTS | {"kernels.band": TEXTS["kernels.band"] + SLY["in a function"]}
    assert "engines.stacked.engine reaches rules.filters" in forbidden(third, ["engines.stacked.engine"])
    package = TEXTS | {"core": TEXTS["core"] + "\nfrom fedkeel.engines.serial import SerialEngine\n"}
    assert "rules.filters reaches engines.serial" in forbidden(package, ["rules.filters"])


def test_a_circle_is_seen_and_what_type_checkers_see_is_none():
    back = "def f():\n    from fedkeel.core.round import broadcast\n"
    assert {"core.trees", "core.round"} <= circles(TEXTS | {"core.trees": TEXTS["core.trees"] + back})
    hidden = "if TYPE_CHECKING:\n    from fedkeel.core.round import broadcast\n"
    assert not circles(TEXTS | {"core.trees": TEXTS["core.trees"] + hidden})


def test_the_house_is_seen_at_a_glance():
    assert len(list(ROOT.glob("*.py"))) <= 12
    for path in ROOT.rglob("*/__init__.py"):
        about = ast.get_docstring(ast.parse(path.read_text()))
        assert about, f"{path} says what is in its package"
        assert "\n" not in about, f"{path} says it in a line"


IMPORTERS = {"importing.py", "__init__.py", "runs/trackers.py", "models/external.py", "cli/main.py"}
"""Who imports modules by name: the door for names of users, and four that import modules which they list themselves."""
UNPICKLERS = {"engines/worker.py", "engines/processes.py", "engines/flower/simulation.py", "data/storage/pickles.py"}
"""Who unpickles: parents and the children they started, and the reader of CIFAR's batches."""


def test_names_of_code_come_in_through_one_door():
    for path in ROOT.rglob("*.py"):
        text, name = path.read_text(), path.relative_to(ROOT).as_posix()
        names = {called(node) for node in nodes_of(text) if isinstance(node, ast.Call)}
        assert "import_module" not in names or name in IMPORTERS, name
        assert not names & {"__import__", "eval", "exec", "compile", "run_path", "exec_module"} - (
            {"compile"} if "re.compile" in text or "torch.compile" in text else {"eval"} if ".eval()" in text else set()
        ), name
        assert not re.search(r"\b(?:pickle|cloudpickle|torch|joblib|dill)\.loads?\(", text) or name in UNPICKLERS, name
        assert "allow_pickle=True" not in text, name


def test_only_the_command_line_prints():
    for path in ROOT.rglob("*.py"):
        calls = [node for node in nodes_of(path.read_text()) if isinstance(node, ast.Call)]
        assert not [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"], path
