"""Checks of the trees and numbers that rules return: they must fit the model."""

from __future__ import annotations

from math import isfinite
from typing import Any

import torch
from torch import Tensor

from fedkeel.core.contract import name_of
from fedkeel.core.layout import segments
from fedkeel.core.rule import Rule, State
from fedkeel.core.trees import Tree
from fedkeel.errors import MethodError


def check_whole_trees(rule: Rule, stage: str, results: tuple[Any, ...]) -> None:
    """Refuse a tree whose buffer is not as long as its layout: it would be stretched, or fail where nobody sees why."""
    slots = (one.values() if isinstance(one, dict) else (one,) for one in results)
    for tree in (one for part in slots for one in part if isinstance(one, Tree)):
        if not isinstance(tree.buffer, Tensor) or tree.buffer.shape[-1:] != (tree.layout.size,):
            shape = list(tree.buffer.shape) if isinstance(tree.buffer, Tensor) else type(tree.buffer).__name__
            raise MethodError(
                f"{name_of(rule)}.{stage} gives a tree of {tree.layout.size} numbers whose buffer is {shape}.",
                "f of elementwise(f) returns as many numbers as it is given; number * tree.ones() has one everywhere",
            )


def check_same_layout(rule: Rule, stage: str, what: str, before: Tree, after: object, *, exact: bool = False) -> None:
    """Refuse a tree that is laid out unlike the one that the rule was given, or of a type that would change its own."""
    same = isinstance(after, Tree) and after.layout == before.layout and after.buffer.shape == before.buffer.shape
    if not isinstance(after, Tree) or not same:
        line = f"{name_of(rule)}.{stage} must return a tree laid out like the one it was given."
        raise MethodError(line, f"return {what} itself, or what arithmetic makes of it: 0.5 * {what}")
    check_type(rule, stage, what, before, after, exact)


def check_part(rule: Rule, stage: str, what: str, whole: Tree, part: object) -> None:
    """Refuse what is no tree of some of the parameters that the rule was given, or one of another type."""
    fits = isinstance(part, Tree)
    if isinstance(part, Tree):
        try:
            segments(whole.layout, part.layout)
        except ValueError:
            fits = False
    if not isinstance(part, Tree) or not fits:
        line = f"{name_of(rule)}.{stage} must return {what} as a tree of parameters, all or some, as they are laid out."
        raise MethodError(line, f"return {what}, or {what}.only(lambda name: …)")
    check_type(rule, stage, what, whole, part)


def check_type(rule: Rule, stage: str, what: str, before: Tree, after: Tree, exact: bool = False) -> None:
    """Refuse a tree that would turn the model into another type of number; `exact`: it is the model itself."""
    old, new = before.buffer.dtype, after.buffer.dtype
    if new != old if exact else torch.promote_types(old, new) != old:
        raise MethodError(
            f"{name_of(rule)}.{stage} makes {new} of a tree of {old}, and the model would become that.",
            "take the real part: f(x).real" if new.is_complex else f"return it as it was: .to({what}.buffer.dtype)",
        )


def check_model(rule: Rule, stage: str, what: str, before: State, after: State) -> None:
    """Refuse a message or state whose model is not laid out as it was, or is of another type."""
    for slot in ("params", "buffers"):
        if slot in before and after[slot] is not before[slot]:
            exact = stage != "deploy"  # nothing is trained from that one
            check_same_layout(rule, stage, f'{what}["{slot}"]', before[slot], after[slot], exact=exact)


def check_scale(rule: Rule, given: Any) -> None:
    """Refuse a factor on the rate that is no finite number."""
    try:
        fits = isfinite(given)
    except (TypeError, ValueError, RuntimeError):
        fits = False
    if not fits:
        line = f"{name_of(rule)}.scale_rate must return a number, not {given!r}."
        raise MethodError(line, "return 1.0 where the rate stays as it is")
