"""Functions that compilers do not look into."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import torch
from torch import Tensor

Given = ParamSpec("Given")

LIBRARY = torch.library.Library("fedkeel", "DEF")


def opaque(schema: str, shaped: Callable[..., Tensor]) -> Callable[[Callable[Given, Tensor]], Callable[Given, Tensor]]:
    """Where rules are compiled, the function is one operator of this schema; `shaped` makes an empty result.

    For functions that keep tables, or reckon with complex numbers: a compiler generates no code for these, looks
    through what remembers, and makes a table anew, on the host, in each step, which no graph can capture. What comes
    out must be new memory. Beware of `z.conj()`, which only sets a flag: called from compiled code, an operator does
    not see it (seen with PyTorch 2.13), and z itself is taken; `torch.conj_physical` is safe.
    """
    name = schema.partition("(")[0]

    def made(f: Callable[Given, Tensor]) -> Callable[Given, Tensor]:
        LIBRARY.define(schema)
        LIBRARY.impl(name, f, "CompositeExplicitAutograd")
        LIBRARY._register_fake(name, shaped)
        operator = getattr(torch.ops.fedkeel, name)

        @wraps(f)
        def called(*args: Given.args, **kwargs: Given.kwargs) -> Tensor:
            result: Tensor = operator(*args, **kwargs) if torch.compiler.is_compiling() else f(*args, **kwargs)
            return result

        return called

    return made


def like_first(first: Tensor, *others: object) -> Tensor:
    return torch.empty_like(first, memory_format=torch.contiguous_format)
