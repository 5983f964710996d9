"""One pass of a user's network for all clients: where gradients go, and what is said of the functions that it calls."""

from __future__ import annotations

import re
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree

from fedkeel.core.trees import Tree
from fedkeel.errors import ModelError
from fedkeel.kernels.network import has_backward_hooks
from fedkeel.kernels.operators import StackedPass
from fedkeel.kernels.shortened import shorten
from fedkeel.problems.calling import without_turns
from fedkeel.problems.module_state import list_constants
from fedkeel.problems.separability import PLAIN
from fedkeel.problems.task import Task


class ModuleCaller(nn.Module):
    """A module that calls a function with another module, whose parameters and buffers it exchanges meanwhile."""

    def __init__(self, model: nn.Module):
        super().__init__()
        check_stackable(model)
        self.model = model
        self.others = list_other_names(model)

    def forward(self, f: Callable[..., Any], *args: Any) -> Any:
        return f(self.model, *args)

    def call(self, named: Mapping[str, Tensor], f: Callable[..., Any]) -> Any:
        """Call the function; `named` are the tensors by their first names."""
        every = {f"model.{other}": t for name, t in named.items() for other in (name, *self.others.get(name, ()))}
        return functional_call(self, every, (f,), tie_weights=False)


def list_other_names(model: nn.Module) -> dict[str, list[str]]:
    """List the further names of shared tensors, one for each further module that holds them.

    A module that stands in two places has one tensor, which PyTorch would exchange twice and not put back.
    """
    first, held, found = dict[int, str](), set[tuple[int, str]](), dict[str, list[str]]()
    for name, tensor in chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    ):
        owner, _, word = name.rpartition(".")
        place = id(model.get_submodule(owner)), word
        if place not in held and first.setdefault(id(tensor), name) != name:
            found.setdefault(first[id(tensor)], []).append(name)
        held.add(place)
    return found


@dataclass
class NetworkReport:
    """Which functions of a network run stacked, which vmap takes one by one, and which run client by client.

    `whole` says that all layers have kernels, `fills_up` that samples do not meet, so that short batches are filled up.
    Shapes and numbers taken one by one cost no more stacked: they are not mentioned. What was counted is that of one
    pass.
    """

    whole: bool = False
    fills_up: bool = True
    tally: Counter[tuple[str, str]] = field(default_factory=Counter)
    looped: list[str] = field(default_factory=list)
    complete: bool = False

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Note in the first pass what PyTorch warns of: functions that it calls once for each client."""
        if self.complete or self.whole:
            before = self.tally.copy()
            yield
            self.tally.clear()
            self.tally.update(before)
            return
        self.tally.clear()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            yield
        self.complete = True
        for warning in seen:
            if found := re.search(r"batching rule for aten::(\w+)", str(warning.message)):
                self.looped.append(found[1])
                warnings.filterwarnings("ignore", "There is a performance drop because")  # it has been said
            else:
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)

    def lines(self) -> dict[str, str]:
        """Return what runs in which way, and what that costs."""
        if self.whole:
            return {"stacked": "every layer, by kernels that also join norms, shortcuts and ReLUs"}
        stacked, vmapped = ({n: c for (k, n), c in self.tally.items() if k == of} for of in ("stacked", "vmapped"))
        vmapped = {name: count for name, count in vmapped.items() if name not in self.looped}
        found = {"stacked": _list(stacked) or "nothing"}
        if vmapped:
            found["vmapped one by one"] = f"{_list(vmapped)} (PyTorch's own operations, often several times slower)"
        if not self.fills_up:
            found["batches"] = (
                "of one size at a time, because samples meet in the network, its dropout, its loss or an objective"
            )
        if self.looped:
            found["client by client"] = f"{_list(Counter(self.looped))} (no faster than the serial engine)"
        return found

    def describe(self) -> str:
        """Say it in one line."""
        return "; ".join(f"{kind}: {what}" for kind, what in self.lines().items())


def _list(counts: dict[str, int]) -> str:
    return ", ".join(name if count == 1 else f"{name} ×{count}" for name, count in counts.items())


def start_pass(task: Task, params: Tree, mask: Tensor | None, multiplied: set[str]) -> StackedPass:
    """Begin a pass: a place for gradients, and a number that ties what writes into it to the graph.

    Where most weights are `multiplied`, all are brought to the precision of the arithmetic at once: one kernel, not one
    for each.
    """
    into = Tree(torch.empty_like(params.buffer, memory_format=torch.contiguous_format), params.layout)
    anchor = torch.zeros((), dtype=task.dtype, device=params.buffer.device, requires_grad=True)
    count = sum(prod(params.layout.shapes[name]) for name in multiplied)
    lower = task.compute != task.dtype and 2 * count > params.layout.size
    shortened = shorten(params, task.compute) if lower else None
    return StackedPass(len(params.buffer), task.compute, anchor, into, mask, shortened)


def lower_frozen(task: Task) -> dict[int, Tensor]:
    """Return what all clients share, by identity, in the precision of the arithmetic; matrices have it already."""
    if task.module is None or task.compute == task.dtype:
        return {}
    return {id(part): part.detach().to(task.compute) for part in list_constants(task.module)}


def join_gradients(at: StackedPass, found: dict[str, Tensor | None]) -> Tree:
    """Add what autograd has found to what operators have written; leaves that were not used have no gradient."""
    assert at.into is not None
    for name, grad in found.items():
        place = at.into[name]
        if grad is None and name not in at.written:
            place.zero_()
        elif grad is not None:
            place.add_(grad) if name in at.written else place.copy_(grad)
    return at.into


def convert_output(output: Any, dtype: torch.dtype) -> Any:
    """Bring the real numbers of a network's output to a precision; refuse objects, whose tensors cannot be found."""

    def convert(part: Any) -> Any:
        if isinstance(part, Tensor):
            return part.to(dtype) if part.is_floating_point() else part
        if isinstance(part, PLAIN):
            return part
        raise ModelError(
            f"this model cannot be stacked: its output holds an object of class {type(part).__name__}.",
            "return tensors, alone or in a tuple, a list or a dict; or use --engine auto or serial",
        )

    return _pytree.tree_map(convert, output)


AS_IT_CAN = "use --engine auto or serial, which then trains one client after another, and not in bfloat16"
COMPUTED_AGAIN = "it computes something again for the gradient, as torch.utils.checkpoint does"
GRADIENTS_INSIDE = "it takes gradients of its own, for which torch.func.grad can be stacked"
MEMORY_FORMAT = "it asks for an order in memory (memory_format), which can be left out: a stack has its own"
REASONS = {
    "data-dependent control flow": "a turn that it takes depends on data",
    ".item()": "it reads a number out of a tensor",
    "Cannot access data pointer": "it takes numbers out of tensors, as numpy() and tolist() do",
    "dynamic shape": "a shape depends on data, as it does with a mask as index, nonzero or unique",
    "_NoopSaveInputs": COMPUTED_AGAIN,
    "escaped from inside": COMPUTED_AGAIN,
    "setup_context": "its own autograd.Function has neither setup_context nor a rule for vmap",
    "does not have vmap support": "its own autograd.Function has no rule for vmap (generate_vmap_rule = True may do)",
    "random operation": "it draws random numbers, but not by plain dropout",
    "accessing `data`": "it uses the data of a tensor (.data), in place of which .detach() can be stacked",
    "inplace arithmetic": "it writes into a tensor that it has made itself",
    "doesn't match the broadcast shape": "it writes into a tensor that it has made itself",
    "modified by an inplace operation": "it writes into a tensor of which a gradient needs the old values, in a stack",
    "has more elements than `self`": "it writes into a tensor that it has made itself",
    "refers to a single memory location": "it writes into a tensor that it has made itself",  # torch 2.11
    "marked as dirty": "its own autograd.Function writes into what it is given",
    "channels_last": MEMORY_FORMAT,
    "is_contiguous inside of vmap": MEMORY_FORMAT,
    "retain_grad": "it keeps the gradient of a tensor (retain_grad)",
    "register a hook": "it has hooks on gradients",
    "as parameter": "it assigns parameters when it is called",
    "requires_grad_()": GRADIENTS_INSIDE,
    "does not require grad": GRADIENTS_INSIDE,
    "inside a functorch transform": GRADIENTS_INSIDE,
    "must only return Tensors": "its output holds something else than tensors, which this method does not take",
}
"""What PyTorch says of what vmap cannot do, and what that is in plain words."""


@contextmanager
def explain_unstackable(*, turns: bool = False) -> Iterator[None]:
    """Turn vmap's refusal of a module into an error that says what to do; ask it to take no turn by data."""
    try:
        with nullcontext() if turns else without_turns():
            yield
    except (RuntimeError, ValueError, TypeError) as error:
        first = str(error).split("\n", 1)[0]
        reason = next((words for part, words in REASONS.items() if part in first), first)
        if unknown := re.search(r"Batching rule not implemented for aten::(\w+)", first):
            reason = f"vmap does not know a function that it calls, {unknown[1]}"
        elif not re.search("vmap|functorch", first) and (reason is first or isinstance(error, ValueError)):
            raise
        raise ModelError(
            f"this model cannot be stacked: {reason}{find_place(error)}",
            AS_IT_CAN,
        ) from error


def check_stackable(model: nn.Module) -> None:
    """Refuse what vmap would leave out without a word, or cannot take at all."""
    hooked = [name for name, part in model.named_modules() if has_backward_hooks(part)]
    sparse = [name for name, buffer in model.named_buffers() if buffer.layout is not torch.strided]
    if hooked or sparse:
        what = f"its part {hooked[0] or 'itself'} has hooks on gradients" if hooked else f"its {sparse[0]} is sparse"
        raise ModelError(f"this model cannot be stacked: {what}", AS_IT_CAN)


def find_place(error: BaseException) -> str:
    """Say where in a user's own code an error has come from."""
    others = (Path(torch.__file__).parent, Path(__file__).parents[2])
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not any(Path(frame.filename).is_relative_to(folder) for folder in others):
            return f" ({Path(frame.filename).name}, line {frame.lineno})"
    return ""
