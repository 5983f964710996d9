"""How a function of one client becomes one of all stacked clients."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree

from fedkeel.core.local_step import Lift
from fedkeel.core.method import Method
from fedkeel.core.rule import LOCAL_STAGES, State, is_stackable
from fedkeel.core.trees import Tree, tensors
from fedkeel.errors import MethodError
from fedkeel.text import first_line

log = logging.getLogger("fedkeel")


def lift_by_vmap(f: Callable[..., Any], dims: tuple[Any, ...]) -> Callable[..., Any]:
    """Lift by vmap, which is right for every rule: the reference."""
    each: Callable[..., Any] = vmap(f, in_dims=dims)

    def lifted(*args: Any) -> Any:
        try:
            return each(*args)
        except RuntimeError as error:
            if "vmap" not in str(error):
                raise
            reason = first_line(error)
            raise MethodError(f"a rule of this method cannot be stacked: {reason}", "use --engine serial") from error

    return lifted


def lift_by_broadcast(f: Callable[..., Any], dims: tuple[Any, ...]) -> Callable[..., Any]:
    """Call the same function on `[clients, D]`: shared states get a client axis that takes no memory.

    For rules whose every operation works along the last axis. One that writes `tree["fc"].mean()` is right under vmap
    and silently wrong here.
    """
    if dims == (0,):  # slots made of a model: nothing else tells a constant vector from one number for each client
        return lift_by_vmap(f, dims)

    def lifted(*args: Any) -> Any:
        pairs = list(zip(args, dims, strict=True))
        # not from a state, which may begin with a constant
        clients = next(len(tensors(arg)[0]) for arg, dim in pairs if dim == 0 and isinstance(arg, Tree | Tensor))
        shared = [dim is None and isinstance(arg, dict) for arg, dim in pairs]
        return f(*(share(arg, clients) if one else arg for arg, one in zip(args, shared, strict=True)))

    return lifted


def share(state: State, clients: int) -> State:
    """Give a state that is the same for all clients a client axis: a view."""
    return {
        name: slot.expand(clients) if isinstance(slot, Tree) else slot.expand(clients, *slot.shape)
        for name, slot in state.items()
    }


def share_constants(report: State, one: State, clients: int) -> State:
    """Give what all clients report alike a client axis; `one` is a report of one client."""
    alike = {name: slot for name, slot in report.items() if tensors(slot)[0].dim() == tensors(one[name])[0].dim()}
    return report | share(alike, clients)


def add_client_axis(state: Any, clients: int) -> Any:
    """Give every slot a client axis: a view, where it has none."""

    def expand(slot: Any) -> Any:
        if isinstance(slot, Tree):
            return slot.expand(clients) if slot.buffer.dim() == 1 else slot
        return slot.expand(clients) if isinstance(slot, Tensor) and slot.dim() == 0 else slot

    return _pytree.tree_map(expand, state, is_leaf=lambda slot: isinstance(slot, Tree))


def unstack(state: State, clients: int, *, copy: bool) -> list[State]:
    """Return each client's state: copies, or rows that keep the whole stack alive and are stacked again for nothing."""

    def split(slot: Any) -> list[Any]:
        if isinstance(slot, Tree):
            return [Tree(row, slot.layout) for row in split(slot.buffer)]
        return [row.clone() if copy else row for row in slot.unbind()]

    columns = {name: split(slot) for name, slot in state.items()}
    return [{name: column[i] for name, column in columns.items()} for i in range(clients)]


def choose_lift(method: Method, device: torch.device) -> Lift:
    """Choose broadcasting where every rule that works on clients declares it safe, else vmap."""
    if not all(is_stackable(rule) for rule in method.local_rules if rule.stages & LOCAL_STAGES):
        return lift_by_vmap
    return lift_compiled if device.type == "cuda" else lift_by_broadcast


STEP_FUNCTIONS = ("climb", "move")  # the two functions of a step; the others run once in a round


def lift_compiled(f: Callable[..., Any], dims: tuple[Any, ...]) -> Callable[..., Any]:
    """Lift by broadcasting and compile the chains of a step: a few passes over the buffer, not one per operation.

    What cannot be compiled runs as it is.
    """
    plain = lift_by_broadcast(f, dims)
    if getattr(f, "__name__", "") not in STEP_FUNCTIONS:
        return plain
    compiled: Callable[..., Any] | None = None
    refused = False

    def lifted(*args: Any) -> Any:
        nonlocal compiled, refused
        if refused:
            return plain(*args)
        try:
            compiled = compiled or compile_rules(plain)  # not before: captured steps never come here again
            return compiled(*args)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            log.warning("the rules are not compiled and run slower: %s", first_line(error))
            refused = True
            return plain(*args)

    return lifted


def compile_rules(f: Callable[..., Any]) -> Callable[..., Any]:
    from fedkeel.kernels.fuse_filter_pass import FuseFilter  # importing the compiler takes a second

    torch._dynamo.config.recompile_limit = 64  # a few sizes of stack for each chain of each phase
    for harmless in ("Dynamo detected a call to a `functools.lru_cache`", "Torchinductor does not support code gen"):
        warnings.filterwarnings("ignore", harmless)  # what remembers is pure; the rest is left to PyTorch's kernels
    return torch.compile(f, dynamic=False, options={"post_grad_custom_pre_pass": FuseFilter()})
