"""Whether two networks differ in nothing but their weights, and two objects in nothing at all."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import chain
from types import FunctionType, MethodType
from typing import Any
from weakref import ReferenceType

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

DEPTH = 60  # of objects within objects: what lies deeper counts as different
OF_EVERY_MODULE = frozenset(vars(nn.Module()))
HOOKS = ("_forward_pre_hooks", "_forward_hooks")
WHOLE = (bool, int, str, bytes, type(None), torch.dtype, torch.device, set, frozenset)
"""What is compared by `==`."""


def are_networks_alike(one: nn.Module | None, other: nn.Module | None) -> bool:
    """Whether two networks compute the same where they have the same parameters and buffers: their modules keep the
    same plain attributes, such as numbers, texts, lists, tensors and settings."""
    if one is None or other is None or one is other:
        return one is other
    (names, mine), (others, theirs) = (zip(*list_parts(network), strict=True) for network in (one, other))
    if names != others:
        return False
    likeness = Likeness(zip(mine, theirs, strict=True))
    modules = {id(a): (a, b) for a, b in zip(mine, theirs, strict=True) if isinstance(a, nn.Module)}
    return all(
        class_of(a) is class_of(b) and likeness.holds(list_attributes(a), list_attributes(b))
        for a, b in modules.values()
    )


def are_alike(one: Any, other: Any) -> bool:
    """Whether two objects have the same values; those whose values cannot be seen are alike only to themselves."""
    return Likeness().holds(one, other)


def list_parts(network: nn.Module) -> list[tuple[str, Any]]:
    """The modules, parameters and buffers of a network, by each of their names."""
    tensors = chain(network.named_parameters(remove_duplicate=False), network.named_buffers(remove_duplicate=False))
    return [*network.named_modules(remove_duplicate=False), *tensors]


def list_attributes(module: nn.Module) -> list[Any]:
    """What a module keeps besides its parameters, buffers and modules; hooks are numbered anew in every network."""
    kept = {name: value for name, value in vars(module).items() if name not in OF_EVERY_MODULE}
    return [kept, *([*getattr(module, name).values()] for name in HOOKS)]


def class_of(module: nn.Module) -> type:
    """The class of a module; PyTorch makes a class of its own for each that is parametrized."""
    return type(module).__bases__[0] if parametrize.is_parametrized(module) else type(module)


class Likeness:
    """Compares objects part by part; of `pairs`, which are compared elsewhere, one stands for the other."""

    def __init__(self, pairs: Iterable[tuple[Any, Any]] = ()):
        self.partners = {id(one): other for one, other in pairs}
        self.taken = {id(other) for other in self.partners.values()}
        self.seen: dict[tuple[int, int], tuple[Any, Any]] = {}  # and kept: a number may be another object's later

    def holds(self, one: Any, other: Any, depth: int = 0) -> bool:
        if id(one) in self.partners or id(other) in self.taken:
            return self.partners.get(id(one)) is other
        if one is other or (id(one), id(other)) in self.seen:
            return True
        if type(one) is not type(other) or depth > DEPTH:
            return False
        self.seen[id(one), id(other)] = one, other
        if isinstance(one, WHOLE):
            return bool(one == other)
        if isinstance(one, float | complex):
            return repr(one) == repr(other)  # not a number is itself, and 0 is not -0
        try:
            if isinstance(one, Tensor):
                return have_same_values(one, other)
            mine, theirs = take_apart(one), take_apart(other)
        except Exception:  # nothing shows its values
            return False
        pairs = zip(mine, theirs, strict=False)
        return len(mine) == len(theirs) and all(self.holds(a, b, depth + 1) for a, b in pairs)


def have_same_values(one: Tensor, other: Tensor) -> bool:
    if (one.dtype, one.device, one.layout, one.shape) != (other.dtype, other.device, other.layout, other.shape):
        return False
    return one.layout is torch.strided and torch.equal(one, other)


def take_apart(one: Any) -> list[Any]:
    """The values that an object is made of, as copying or pickling it would show them; fails where they are hidden."""
    if type(one) in (list, tuple):
        return list(one)
    if type(one) is dict:
        return [*one.keys(), *one.values()]
    if isinstance(one, MethodType):
        return [one.__func__, one.__self__]
    if isinstance(one, FunctionType):
        held = [cell.cell_contents for cell in one.__closure__ or ()]
        return [one.__code__, id(one.__globals__), one.__defaults__, one.__kwdefaults__, vars(one), *held]
    if isinstance(one, partial):
        return [one.func, one.args, one.keywords]
    if isinstance(one, ReferenceType):
        return [one()]
    made = one.__reduce_ex__(4)
    return [made] if isinstance(made, str) else [*made[:3], *([*part] for part in made[3:5] if part is not None)]
