"""Where each named tensor lies in one flat buffer."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from itertools import groupby
from math import prod
from typing import NamedTuple

Shape = tuple[int, ...]


class LengthGroup(NamedTuple):
    """Neighbouring leaves of one length: a matrix `[leaves, length]` inside the buffer."""

    offset: int
    leaves: int
    length: int
    vector: bool  # fewer than two dimensions


class ShapeBlock(NamedTuple):
    """Neighbouring leaves of one shape: `[leaves, *shape]` inside the buffer."""

    offset: int
    leaves: int
    shape: Shape


class Segment(NamedTuple):
    """A piece of a whole buffer that lies entirely inside, or entirely outside, a part of it."""

    inside: bool
    offset: int
    part_offset: int
    length: int


class Layout:
    """Names and shapes in the order of the model; offsets in the order of the buffer. Immutable, equal by value.

    The two orders differ: in the buffer, leaves of equal length are neighbours (weights first, then vectors and
    scalars), so that a filter sees all leaves of one length as a matrix without copying.
    """

    __slots__ = ("_key", "blocks", "groups", "shapes", "size", "spans")

    def __init__(self, shapes: dict[str, Shape]):
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self._key = tuple(self.shapes.items())
        self.spans: dict[str, tuple[int, int]] = {}  # name -> (offset, length), in buffer order
        offsets: dict[tuple[bool, int], list[int]] = {}
        offset = 0
        for name in sorted(self.shapes, key=lambda n: (len(self.shapes[n]) < 2, prod(self.shapes[n]))):
            length = prod(self.shapes[name])
            offsets.setdefault((len(self.shapes[name]) < 2, length), []).append(offset)
            self.spans[name] = (offset, length)
            offset += length
        self.size = offset
        self.groups = tuple(LengthGroup(at[0], len(at), length, vector) for (vector, length), at in offsets.items())
        neighbours = groupby(self.spans, key=lambda n: self.shapes[n])
        alike = [(shape, list(names)) for shape, names in neighbours]
        self.blocks = tuple(ShapeBlock(self.spans[names[0]][0], len(names), shape) for shape, names in alike)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Layout) and self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"Layout({len(self.shapes)} leaves, {self.size} numbers)"

    def __reduce__(self) -> tuple[Callable[..., Layout], tuple[object, ...]]:
        return layout, (self._key,)

    def only(self, keep: Callable[[str], bool]) -> Layout:
        """The layout of the leaves whose name satisfies `keep`."""
        return layout(tuple((name, shape) for name, shape in self._key if keep(name)))

    def dumps(self) -> str:
        return json.dumps(self._key)

    @staticmethod
    def loads(text: str) -> Layout:
        return layout(tuple((str(name), tuple(int(n) for n in shape)) for name, shape in json.loads(text)))


@cache
def layout(shapes: tuple[tuple[str, Shape], ...]) -> Layout:
    """Return the one object of this layout in the process, so that comparing two is almost always `is`."""
    return Layout(dict(shapes))


@cache
def segments(whole: Layout, part: Layout) -> tuple[Segment, ...]:
    """Cut `whole` into the longest segments inside and outside `part`. Both keep the same relative order."""
    if [n for n in whole.spans if n in part.spans] != [*part.spans] or any(
        whole.shapes[n] != shape for n, shape in part.shapes.items()
    ):
        raise ValueError(f"{part} is not part of {whole}")
    parts: list[Segment] = []
    part_offset = 0
    for name, (offset, length) in whole.spans.items():
        inside = name in part.spans
        if parts and parts[-1].inside == inside:
            parts[-1] = parts[-1]._replace(length=parts[-1].length + length)
        else:
            parts.append(Segment(inside, offset, part_offset, length))
        part_offset += length if inside else 0
    return tuple(parts)
