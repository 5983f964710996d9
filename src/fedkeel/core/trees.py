"""Arithmetic on named tensors. A Tree is one flat buffer and a layout that says where each tensor lies in it.

`tree + tree`, `number * tree`, `tensor * tree` read like the papers and are one kernel each, on `[D]` for one client
and on `[clients, D]` for many: every operation works along the last axis. Trees are values: nothing writes into one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any, cast

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree

from fedkeel.core.layout import Layout, Shape, layout, segments

BLOCK = 4096
EPSILON = 1e-7  # of `unit`: the direction of a zero vector is zero, not NaN


class Tree:
    """Named tensors in one buffer: `[D]`, or `[clients, D]` when clients are stacked."""

    __slots__ = ("buffer", "layout")

    def __init__(self, buffer: Tensor, layout: Layout):
        self.buffer, self.layout = buffer, layout

    @staticmethod
    def of(leaves: Mapping[str, Tensor], like: Layout | None = None) -> Tree:
        """Copy named tensors into one buffer. With `like`, extra leading axes are client axes."""
        where = like or layout(tuple((name, tuple(leaf.shape)) for name, leaf in leaves.items()))
        if not where.shapes:
            return Tree(torch.zeros(0), where)
        parts = []
        for name in where.spans:
            leaf, shape = leaves[name], where.shapes[name]
            parts.append(leaf.flatten(leaf.dim() - len(shape)) if shape else leaf.unsqueeze(-1))
        if any(part.dtype != parts[0].dtype for part in parts):
            raise TypeError("all leaves of a Tree share one dtype")  # cat would promote silently
        return Tree(torch.cat(parts, -1), where)

    # ---- leaves --------------------------------------------------------------------------------------------------
    def __getitem__(self, name: str) -> Tensor:
        """A view: `[*shape]`, or `[clients, *shape]` of a stacked tree."""
        offset, length = self.layout.spans[name]
        return self.buffer.narrow(-1, offset, length).view(self.buffer.shape[:-1] + self.layout.shapes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.shapes)

    def __len__(self) -> int:
        return len(self.layout.shapes)

    def __contains__(self, name: object) -> bool:
        return name in self.layout.shapes

    def items(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, self[name]) for name in self.layout.shapes)

    def named(self) -> dict[str, Tensor]:
        """Copies, for files and users: saving a view would write the whole buffer."""
        return {name: leaf.clone() for name, leaf in self.items()}

    def map(self, f: Callable[..., Tensor], *others: Tree) -> Tree:
        """Apply f to each leaf of one client; its results may have other shapes."""
        if self.buffer.dim() > 1:
            return cast(Tree, vmap(lambda one, *rest: one.map(f, *rest))(self, *others))
        leaves = {name: f(leaf, *(other[name] for other in others)) for name, leaf in self.items()}
        same = all(leaf.shape == self.layout.shapes[name] for name, leaf in leaves.items())
        return Tree.of(leaves, self.layout if same else None)

    def map_by_length(self, f: Callable[[Tensor], Tensor], *, vectors: bool = True) -> Tree:
        """Apply f to all leaves of one length at once, `[..., leaves, length]`; without `vectors`, not to vectors."""
        axes = self.buffer.shape[:-1]
        parts = []
        for offset, leaves, length, vector in self.layout.groups:
            part = self.buffer.narrow(-1, offset, leaves * length)
            if vectors or not vector:
                part = f(part.view((*axes, leaves, length))).reshape((*axes, leaves * length))
            parts.append(part)
        return Tree(torch.cat(parts, -1), self.layout) if parts else self

    def map_by_shape(self, f: Callable[[Tensor, Shape], Tensor]) -> Tree:
        """Apply f to neighbouring leaves of one shape at once, `[..., leaves, *shape]`, and to their shape."""
        axes = self.buffer.shape[:-1]
        parts = []
        for offset, leaves, shape in self.layout.blocks:
            size = leaves * prod(shape)
            part = self.buffer.narrow(-1, offset, size).view((*axes, leaves, *shape))
            parts.append(f(part, shape).reshape((*axes, size)))
        return Tree(torch.cat(parts, -1), self.layout) if parts else self

    def only(self, keep: Callable[[str], bool] | Layout) -> Tree:
        """The leaves whose name satisfies `keep` (or those of a layout), copied out: the rest can be freed."""
        part = keep if isinstance(keep, Layout) else self.layout.only(keep)
        if part == self.layout:
            return self
        kept = [self.buffer.narrow(-1, s.offset, s.length) for s in segments(self.layout, part) if s.inside]
        # the empty slice gives an empty tree its dtype and device
        return Tree(torch.cat([*kept, self.buffer.narrow(-1, 0, 0)], -1), part)

    def __or__(self, other: Tree) -> Tree:
        """This tree with the leaves of `other` in place of its own."""
        if other.layout == self.layout:
            return other
        axes = max(self.buffer.shape[:-1], other.buffer.shape[:-1], key=len)  # stacked, if one of them is
        parts = [
            other.buffer.narrow(-1, s.part_offset, s.length) if s.inside else self.buffer.narrow(-1, s.offset, s.length)
            for s in segments(self.layout, other.layout)
        ]
        return Tree(torch.cat([part.expand(*axes, -1) for part in parts], -1), self.layout)

    # ---- the algebra ---------------------------------------------------------------------------------------------
    def elementwise(self, f: Callable[..., Tensor], *others: Tree) -> Tree:
        """Apply f to the whole buffer; f must not depend on where one leaf ends."""
        return Tree(f(self.buffer, *(self.matching_buffer(other) for other in others)), self.layout)

    def matching_buffer(self, other: Tree) -> Tensor:
        """Return the buffer of `other`; refuse a tree of another layout, which would add up silently at equal size."""
        if other.layout is not self.layout and other.layout != self.layout:
            raise ValueError(f"{self.layout} and {other.layout} differ")
        return other.buffer

    def __add__(self, other: Tree) -> Tree:
        return Tree(self.buffer + self.matching_buffer(other), self.layout)

    def __sub__(self, other: Tree) -> Tree:
        return Tree(self.buffer - self.matching_buffer(other), self.layout)

    def __neg__(self) -> Tree:
        return Tree(-self.buffer, self.layout)

    def __rsub__(self, number: float) -> Tree:
        return Tree(number - self.buffer, self.layout)

    def __mul__(self, other: Tree | Tensor | float) -> Tree:
        if isinstance(other, Tree):
            return Tree(self.buffer * self.matching_buffer(other), self.layout)
        return Tree(self.buffer * as_column(other, self.buffer), self.layout)

    def __rmul__(self, number: Tensor | float) -> Tree:
        return self * number

    def __truediv__(self, number: Tensor | float) -> Tree:
        return Tree(self.buffer / as_column(number, self.buffer), self.layout)

    @classmethod
    def __torch_function__(
        cls, f: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Called for `tensor * tree`. Without it Python takes 20 µs to reach __rmul__, and Dynamo never does."""
        if f is Tensor.mul:
            # the method, not the operator, which Dynamo would bring back here
            return args[1].__mul__(args[0]) if isinstance(args[1], Tree) else args[0].__mul__(args[1])
        if f is Tensor.__rtruediv__:  # Dynamo's spelling of tree / tensor
            return args[1].__truediv__(args[0])
        return NotImplemented

    def moved(self, direction: Tree, by: Tensor | float) -> Tree:
        """self + by · direction, in one kernel."""
        if not isinstance(by, Tensor):
            return Tree(torch.add(self.buffer, self.matching_buffer(direction), alpha=by), self.layout)
        return Tree(
            torch.addcmul(self.buffer, cast(Tensor, as_column(by, self.buffer)), self.matching_buffer(direction)),
            self.layout,
        )

    def stepped(self, direction: Tree, lr: Tensor) -> Tree:
        """self − lr · direction, in one kernel."""
        rate = cast(Tensor, as_column(lr, self.buffer))
        return Tree(torch.addcmul(self.buffer, rate, self.matching_buffer(direction), value=-1), self.layout)

    def dot(self, other: Tree) -> Tensor:
        return (self.buffer * self.matching_buffer(other)).sum(-1)

    def norm(self) -> Tensor:
        # in blocks: one float32 vector_norm of 1e7 numbers on a CPU is wrong by 4e-4
        v, whole = self.buffer, self.layout.size // BLOCK * BLOCK
        if whole > 16 * BLOCK:
            blocks = torch.linalg.vector_norm(v.narrow(-1, 0, whole).view((*v.shape[:-1], -1, BLOCK)), dim=-1)
            v = torch.cat([blocks, v.narrow(-1, whole, self.layout.size - whole)], -1)
        return torch.linalg.vector_norm(v, dim=-1)

    def unit(self, epsilon: float = EPSILON) -> Tree:
        """The direction: v / (‖v‖ + ε); zero for a zero tree."""
        return self / (self.norm() + epsilon)

    def zeros(self) -> Tree:
        return Tree(torch.zeros_like(self.buffer), self.layout)

    def ones(self) -> Tree:
        return Tree(torch.ones_like(self.buffer), self.layout)

    def clamp(self, low: float | None, high: float | None) -> Tree:
        return Tree(self.buffer.clamp(low, high), self.layout)

    def scalar(self, value: float = 0.0) -> Tensor:
        """A 0-d tensor of this tree's dtype and device."""
        return self.buffer.new_full((), value)

    def to(self, *device_or_dtype: Any) -> Tree:
        return Tree(self.buffer.to(*device_or_dtype), self.layout)

    # ---- over the client axis ------------------------------------------------------------------------------------
    def expand(self, clients: int) -> Tree:
        return Tree(self.buffer.expand(clients, -1), self.layout)

    def sum(self) -> Tree:
        return Tree(self.buffer.sum(0), self.layout)

    def mean(self) -> Tree:
        return Tree(self.buffer.mean(0), self.layout)

    def average(self, weights: Tensor) -> Tree:
        """Σ_i weights_i · row_i."""
        return Tree(torch.tensordot(weights.to(self.buffer.dtype), self.buffer, 1), self.layout)

    def __repr__(self) -> str:
        return f"Tree({tuple(self.buffer.shape)}, {self.layout})"


def as_column(s: Tensor | float, beside: Tensor) -> Tensor | float:
    """Return a number or 0-d tensor unchanged; turn one scalar per client into a column beside `[clients, D]`."""
    return s if not isinstance(s, Tensor) or s.dim() == 0 else s.unsqueeze(-1).to(beside.dtype)


# torch's pytree: vmap, compile and stacking see through a Tree
_pytree.register_pytree_node(
    Tree,
    lambda tree: ([tree.buffer], tree.layout),
    lambda values, where: Tree(next(iter(values)), where),
    serialized_type_name="fedkeel.Tree",
)


def cosine(a: Tree, b: Tree) -> Tensor:
    """The cosine of the angle between two trees; 0 when one of them is zero."""
    return a.dot(b) / (a.norm() * b.norm()).clamp(min=1e-30)


def stack(states: list[Any]) -> Any:
    """Join client states slot by slot on a new leading client axis."""
    first = states[0]
    if type(first) is dict and all(state.keys() == first.keys() for state in states):
        return {name: stack([state[name] for state in states]) for name in first}
    if type(first) is Tree and all(state.layout is first.layout for state in states):
        return Tree(_stack_leaves(*(state.buffer for state in states)), first.layout)
    # PyTorch's own walk takes ten times as long
    return _stack_leaves(*states) if isinstance(first, Tensor) else _pytree.tree_map(_stack_leaves, *states)


def _stack_leaves(*leaves: Tensor) -> Tensor:
    """Stack leaves; rows that already lie side by side, as those of one stack do, are not copied."""
    whole = leaves[0]._base
    if whole is not None and whole.shape == (len(leaves), *leaves[0].shape):
        start, step = whole.data_ptr(), whole.stride(0) * whole.element_size()
        if all(leaf._base is whole and leaf.data_ptr() == start + i * step for i, leaf in enumerate(leaves)):
            return whole
    return torch.stack(leaves)


def where(mask: Tensor, new: Any, old: Any) -> Any:
    """`new` where the mask holds, else `old`, slot by slot; the mask is 0-d or one value per client."""

    def choose(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(mask.reshape(mask.shape + (1,) * (a.dim() - mask.dim())), a, b)

    return _pytree.tree_map(choose, new, old)


def tensors(state: Any) -> list[Tensor]:
    """Every tensor in a state, trees as their buffers."""
    return cast(list[Tensor], _pytree.tree_leaves(state))


def state_bytes(state: Any) -> int:
    """Count the bytes of every tensor in a state."""
    return sum(slot.nbytes for slot in tensors(state))


def all_finite(state: Any) -> bool:
    """Whether every number in a state is finite."""
    return all(bool(torch.isfinite(slot).all()) for slot in tensors(state) if slot.is_floating_point())
