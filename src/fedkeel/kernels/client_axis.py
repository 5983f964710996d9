"""The client axis of tensors inside vmap: taken off to be worked on by hand, and put back.

A public way exists, an autograd function with a rule for vmap; it takes ten times as long for each operation
(`benchmarks/stacked_gpu.md`). These few private functions of PyTorch stand here alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch._functorch import pyfunctorch

_functorch: Any = torch._C._functorch


def current_level() -> int:
    """Return how many transformations are nested at this point; 0 outside of all."""
    stack = torch._C._functorch.peek_interpreter_stack()
    return 0 if stack is None else int(stack.level())


def take_off(value: Tensor, level: int) -> tuple[Tensor, bool]:
    """Return a tensor with its client axis first, and whether it has one."""
    raw, axis = _functorch._unwrap_batched(value, level)
    if axis is None:
        return raw, False
    return raw if axis == 0 else raw.movedim(axis, 0), True


def put_back(value: Tensor, level: int) -> Tensor:
    """Hide the first axis again."""
    return _functorch._add_batch_dim(value, 0, level)


def outside() -> AbstractContextManager[Any]:
    """Work as if no transformation were active."""
    return pyfunctorch.temporarily_clear_interpreter_stack()


def map_tensors(f: Callable[[Tensor], Any], given: Any) -> Any:
    """Apply f to the tensors in arguments; PyTorch's own walk through containers takes several times as long."""
    if isinstance(given, Tensor):
        return f(given)
    if type(given) in (tuple, list):
        return type(given)(map_tensors(f, part) for part in given)
    if isinstance(given, tuple) and hasattr(given, "_fields"):
        return tuple(map_tensors(f, part) for part in given)
    if type(given) is dict:
        return {name: map_tensors(f, part) for name, part in given.items()}
    return given
