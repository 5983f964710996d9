"""Rules for some layers only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, cast

from fedkeel.core.layout import Layout
from fedkeel.core.rule import Local, Rule, Setting, State, require
from fedkeel.core.trees import Tree
from fedkeel.errors import MethodError, nearest

__all__ = ["On", "OnlyLayers"]

HEAD = "@head"
"""Stands for the parameters of the model's classifier."""

Patterns = tuple[str, ...]


def matcher(patterns: Patterns) -> Callable[[str], bool]:
    """Whether a name matches one of the patterns."""
    exact, wild = frozenset(patterns), tuple(pattern for pattern in patterns if any(c in pattern for c in "*?["))
    return lambda name: name in exact or any(fnmatchcase(name, pattern) for pattern in wild)


def names_of(patterns: Patterns, setting: Setting, rule: Rule) -> Patterns:
    """The names that match, HEAD those of the head; each pattern must match something."""
    if HEAD in patterns and not setting.head:
        raise MethodError(
            f"{type(rule).__name__} is about the model's head, but this problem does not say what that is.",
            'name its parameters: Problem(…, head=("fc.*",))',
        )
    names = {name: name for name in setting.layout.shapes} | dict(setting.names)
    found: set[str] = set()
    for pattern in (name for p in patterns for name in (setting.head if p == HEAD else (p,))):
        fits = matcher((pattern,))
        here = {first for name, first in names.items() if fits(name)}
        if not here:
            raise MethodError(
                f"{type(rule).__name__} names parameters {pattern!r}, but the model has none.",
                nearest(pattern, names, "parameters"),
            )
        found |= here
    return tuple(name for name in setting.layout.shapes if name in found)


class NamesLayers(Rule):
    """A rule about the parameters that match its patterns, which become their names when the method meets its model."""

    patterns: Patterns

    def settled(self, setting: Setting) -> Rule:
        return replace(cast(Any, self), patterns=names_of(self.patterns, setting, self))


@dataclass(frozen=True)
class On(Rule, stackable=True):
    """A filter, clip or other rule without memory, applied to the parameters that match; the others pass unchanged.

    `On("patch_embed.*", HighPass(0.05))`; `HEAD` stands for the classifier.
    """

    patterns: str | Patterns
    inner: Rule

    def __post_init__(self) -> None:
        require(self.inner.stages == {"step"}, self, "On takes rules without memory, which act in a step alone")
        if isinstance(self.patterns, str):
            object.__setattr__(self, "patterns", (self.patterns,))
        for trait in ("needs_gradient", "filters", "random", "asks", "reads"):
            object.__setattr__(self, trait, getattr(self.inner, trait))

    def settled(self, setting: Setting) -> Rule:
        return replace(self, patterns=names_of(tuple(self.patterns), setting, self), inner=self.inner.settled(setting))

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        part = tree.layout.only(matcher(tuple(self.patterns)))

        def narrow(state: State) -> State:
            """What the inner rule may read of the whole model, of the parameters that match."""
            read = {name: slot for name, slot in state.items() if name == "params" or name in self.reads}
            whole = {name: slot for name, slot in read.items() if isinstance(slot, Tree) and slot.layout == tree.layout}
            return {name: slot.only(part) for name, slot in whole.items()}

        gradient = None if at.gradient is None else at.gradient.only(part)
        message = at.message | narrow(at.message)
        there = at._replace(params=at.params.only(part), start=at.start.only(part), gradient=gradient, message=message)
        inside = narrow(client)
        seen = client | inside
        changed, after = self.inner.step(tree.only(part), seen, there)
        if after is not seen:
            client = after | {name: client[name] | after[name] for name in inside if name in after}
        # a perturbation of the others would be their gradient
        rest = tree.zeros() if self.needs_gradient is not None else tree
        return rest | changed, client


@dataclass(frozen=True)
class OnlyLayers(NamesLayers, stackable=True):
    """Move the parameters that match and no others."""

    patterns: Patterns = (HEAD,)
    filters = True

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        return tree.zeros() | tree.only(matcher(self.patterns)), client


NO_WEIGHTS = ("bn", "downsample", "shortcut", "norm", "bias")
"""Words in the names of parameters that are no weights of layers."""


def weight_layers(layout: Layout) -> Layout:
    """The weights of layers in whose name, in lower case, none of these words occurs.

    A vector is none, also one written as [1, 1, n]; nor is what has a bias of its own shape, as norms do: in a
    Sequential they are known by number only.
    """

    def weight(name: str) -> bool:
        shape, bias = layout.shapes[name], layout.shapes.get(f"{name.rpartition('.')[0]}.bias")
        vector = len(shape) < 2 or (len(shape) > 2 and set(shape[:-1]) == {1})
        return not (vector or shape == bias or any(word in name.lower() for word in NO_WEIGHTS))

    return layout.only(weight)
