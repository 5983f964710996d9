"""Functions that PyTorch's compiler calls as one operator and does not look into."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import torch
from torch import Tensor

Args = ParamSpec("Args")

LIBRARY = torch.library.Library("fedkeel", "DEF")


def as_custom_op(
    schema: str, make_empty: Callable[..., Tensor], stack: Callable[..., tuple[Any, Any]] | None = None
) -> Callable[[Callable[Args, Tensor]], Callable[Args, Tensor]]:
    """Register a function as one operator of this schema for compiled rules; `make_empty` makes an empty result.

    For functions that cache tables or compute with complex numbers: the compiler generates no code for complex
    numbers, and ignores caches, so that it makes a table again on the host in each step, which no graph can capture.
    The result must be new memory. vmap cannot look into a function that writes into parts of it: such a function has a
    rule that lets its arguments `stack`, and is one operator everywhere. Avoid `z.conj()`, which only sets a flag: an
    operator called from compiled code does not see the flag (PyTorch 2.13) and takes z itself; `torch.conj_physical` is
    safe.
    """
    name = schema.partition("(")[0]

    def register(f: Callable[Args, Tensor]) -> Callable[Args, Tensor]:
        LIBRARY.define(schema)
        LIBRARY.impl(name, f, "CompositeExplicitAutograd")
        LIBRARY._register_fake(name, make_empty)
        operator = getattr(torch.ops.fedkeel, name)
        if stack is not None:
            torch.library.register_vmap(f"fedkeel::{name}", stack, lib=LIBRARY)

        @wraps(f)
        def call(*args: Args.args, **kwargs: Args.kwargs) -> Tensor:
            return operator(*args, **kwargs) if stack or torch.compiler.is_compiling() else f(*args, **kwargs)

        return call

    return register


def empty_like(first: Tensor, *others: object) -> Tensor:
    return torch.empty_like(first, memory_format=torch.contiguous_format)
