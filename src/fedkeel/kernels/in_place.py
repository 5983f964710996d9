"""What functions that a network calls are named, and their arguments; whether they write into what they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def name_of(func: Callable[..., Any]) -> str:
    name = str(getattr(func, "__name__", func))
    return {"scan_lstm": "lstm", "step_gru": "gru", "adapt_linear": "linear with adapter"}.get(name, name)


def rename(options: dict[str, Any]) -> dict[str, Any]:
    """Give arguments that a network names as PyTorch does the names that operators have for them."""
    return {ALIASES.get(name, name): given for name, given in options.items()}


def changes_in_place(func: Callable[..., Any], kwargs: dict[str, Any]) -> bool:
    """Whether a function writes into its argument, by its name."""
    name = name_of(func)
    marked = name.endswith("_") and not name.endswith("__")
    return marked or kwargs.get("inplace") is True or name in IN_PLACE or "out" in kwargs


IN_PLACE = {f"__{kind}__" for kind in "iadd isub imul itruediv ifloordiv ipow iand ior ixor setitem".split()}

ALIASES = {"input": "x", "axis": "dim", "normalized_shape": "shape", "train": "training"}
"""PyTorch's functions have the first of each pair, or take it too."""
