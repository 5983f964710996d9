"""fedkeel: federated learning under client drift.

import fedkeel as fk
run = fk.run(fk.Experiment(dataset="digits", method="fedfft-d"))
"""

import ast
import pkgutil
import sys
from importlib import import_module

__version__ = "1.2.0"

HOME = {
    name.name: node.module
    for node in ast.parse(pkgutil.get_data(__name__, "__init__.pyi")).body
    if isinstance(node, ast.ImportFrom) and node.module != __name__
    for name in node.names
    if name.name != "*"
}
"""Where the public names live, but for rules: read from what type checkers read. They are imported when they are first
used: `fedkeel --help` needs no PyTorch."""


def __getattr__(name):
    if name == "optim":
        return import_module("fedkeel.optim")
    if name == "__all__":
        return sorted({*HOME, *__getattr__("RULES")})
    # rules are capitalised; a module is asked for here when it is first imported from this package
    home = HOME.get(name) or ("fedkeel.rules" if name[:1].isupper() else None)
    if home is None or not hasattr(import_module(home), name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    return globals().setdefault(name, getattr(import_module(home), name))


def __dir__():
    return sorted({name for name in globals() if name.startswith("__")} | {"optim", *__getattr__("__all__")})
