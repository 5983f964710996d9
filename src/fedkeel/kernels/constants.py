"""Functions of numbers alone, which a compiler should call once instead of tracing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def traced_as_constant(f: F) -> F:
    """What torch.compiler.assume_constant_result does, without importing the compiler (a second) to say so."""
    f._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return f
