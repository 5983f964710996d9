"""Memory that stacked clients share between tensors where one client alone does not, or the other way round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree

from fedkeel.errors import ModelError
from fedkeel.kernels.client_axis import outside, put_back, take_off
from fedkeel.kernels.in_place import MOVES, RESHAPES

STRIDED = {Tensor.as_strided, torch.as_strided}
LOOKS = MOVES | STRIDED


class Image(NamedTuple):
    """What has its channels last in a stack, as operators leave it, and first for one client."""

    channels: int
    pixels: int

    def alone(self, step: int) -> int:
        """The stride of one client where a stack has this one."""
        samples, rest = divmod(step, self.channels * self.pixels)
        pixels, channels = divmod(rest, self.channels)
        return samples * self.channels * self.pixels + channels * self.pixels + pixels


class Copies:
    """Stacked tensors that share memory, or are copies, where those of one client alone do not, or are none.

    What is written into one is not seen in the other, or is seen there too: that is refused where the other is read
    afterwards.
    """

    def __init__(self, level: int) -> None:
        self.level = level
        self.groups: dict[int, list[StorageWeakRef]] = {}
        self.stale: dict[int, StorageWeakRef] = {}  # a weak reference also keeps the identity from being given again
        self.images: dict[int, tuple[StorageWeakRef, Image | None]] = {}  # None: it lies as that of one client does
        self.sides: dict[int, dict[int, tuple[ref[Tensor], int]]] = {}  # of storages, tensors that one client copies
        self.written: dict[int, set[int]] = {}
        self.apart = 0

    @property
    def known(self) -> bool:
        """Whether it matters what is written into."""
        return bool(self.groups or self.sides)

    @property
    def changed(self) -> bool:
        """Whether anything was written that may be seen elsewhere, or not seen."""
        return bool(self.stale or self.written)

    def note(self, func: Callable[..., Any], source: Tensor, made: Tensor) -> Tensor:
        """Note where one is a copy of the other, or is not, other than for one client; return what was made.

        How something lies is known from its first shape.
        """
        (x, stacked), (y, _) = take_off(source, self.level), take_off(made, self.level)
        if not stacked:
            return made
        shares = x.untyped_storage()._cdata == y.untyped_storage()._cdata
        apart = bool(self.side(source, x))
        if func is Tensor.view:
            alike = shares
        else:
            image = None if apart else self.image(x)
            unknown = image is None and has_clients_inside(x)
            alike = func not in RESHAPES or (
                shares or not unknown if image is None else shares == is_view(func, x, image, y.shape[1:])
            )
        if not alike and not shares:
            self.pair(x, y)
        elif not alike and not apart:
            made = put_back(y, self.level) if made is source else made
            self.set_apart(made, y)
        return made

    def pair(self, x: Tensor, y: Tensor) -> None:
        """Note that one may be a copy of the other, in whose place it stands."""
        one, other = (StorageWeakRef(tensor.untyped_storage()) for tensor in (x, y))
        if one.cdata != other.cdata:
            group = self.groups.setdefault(one.cdata, [one])
            group.append(other)
            self.groups[other.cdata] = group

    def image(self, x: Tensor) -> Image | None:
        """How a stacked tensor lies; None if as that of one client does, or as nothing that is known."""
        own = StorageWeakRef(x.untyped_storage())
        if own.cdata not in self.images:
            image = find_image(x)
            if image is None and not x.is_contiguous():
                return None
            self.images[own.cdata] = own, image
        return self.images[own.cdata][1]

    def see(self, func: Callable[..., Any], given: Sequence[Any]) -> None:
        """Note how an image lies, before it is given a shape from which that is not seen; refuse steps in memory."""
        if func not in LOOKS or not given:
            return
        x, stacked = take_off(given[0], self.level)
        if stacked and func in STRIDED and not x.is_contiguous():
            raise ModelError(
                "this model cannot be stacked: it takes steps in memory (as_strided) where a stack has another order.",
                "call .contiguous() before, or use --engine auto or serial",
            )
        if stacked and find_image(x) is not None:
            self.image(x)

    def follow(self, given: Iterable[Any], made: Any) -> None:
        """Note that a function's results lie, or share memory, as what it was given does."""
        tensors = [one for one in given if isinstance(one, Tensor)]
        if isinstance(made, Tensor) and not any(one is made for one in tensors):
            y = take_off(made, self.level)[0]
            alike = (take_off(one, self.level)[0] for one in tensors if one.shape == made.shape)
            keys = [x.untyped_storage()._cdata for x in alike if x.stride() == y.stride()]
            known = [self.images[key][1] for key in keys if key in self.images]
            if known:
                own = StorageWeakRef(y.untyped_storage())
                self.images.setdefault(own.cdata, (own, next(filter(None, known), None)))
        if self.sides and tensors and (side := self.side(tensors[0], take_off(tensors[0], self.level)[0])):
            for part in _pytree.tree_leaves(made):
                if isinstance(part, Tensor):
                    self.set_apart(part, take_off(part, self.level)[0], side)

    def set_apart(self, made: Tensor, y: Tensor, side: int | None = None) -> None:
        """Note that a tensor would have memory of its own, for one client."""
        own = y.untyped_storage()._cdata
        self.apart += side is None
        if side is None or own in self.sides:
            self.sides.setdefault(own, {})[id(made)] = ref(made), self.apart if side is None else side

    def side(self, value: Tensor, x: Tensor) -> int:
        """Which of those that one client copies a tensor is, or is a view of; 0 if none."""
        known, side = self.sides.get(x.untyped_storage()._cdata, {}).get(id(value), (None, 0))
        return side if known is not None and known() is value else 0

    def write(self, value: Tensor) -> Tensor:
        """Note that something is written into a tensor; return it, or a copy of what one client copies too.

        What it was made of is then as it was where gradients need it.
        """
        x = take_off(value, self.level)[0]
        own = x.untyped_storage()._cdata
        self.stale.update((one.cdata, one) for one in self.groups.get(own, ()) if one.cdata != own)
        if own not in self.sides:
            return value
        side = self.side(value, x)
        self.written.setdefault(own, set()).add(side)
        if side == 0 or any(
            (part := known()) is not None and part is not value for known, of in self.sides[own].values() if of == side
        ):
            return value
        with torch.enable_grad():
            return value.clone()

    def replace(self, value: Tensor) -> None:
        """Note that a tensor's values are replaced, and not written to its memory, which others may share."""
        x = take_off(value, self.level)[0]
        own = StorageWeakRef(x.untyped_storage())
        self.stale[own.cdata] = own

    def read(self, value: Tensor) -> None:
        """Refuse a tensor that would have been changed, or would not, where another was."""
        x = take_off(value, self.level)[0]
        own = x.untyped_storage()._cdata
        if own in self.stale or self.written.get(own, set()) - {self.side(value, x)}:
            raise ModelError(
                "this model cannot be stacked: it changes a reshaped tensor in place, and then reads what it was "
                "reshaped from, or the other way round.",
                "write into a new tensor (x = x * 2), or use --engine auto or serial",
            )


def find_image(x: Tensor) -> Image | None:
    """Tell by strides `[clients, batch, channels, …]` whether channels lie last."""
    steps = x.stride()
    if x.dim() < 4 or x.shape[2] == 1 or steps[2] != 1 or not 1 < steps[-1] < steps[1] or steps[1] % steps[-1]:
        return None
    return Image(steps[-1], steps[1] // steps[-1])


def has_clients_inside(x: Tensor) -> bool:
    """Tell whether the client axis lies within another, as vmap leaves what one call computes for all clients."""
    return any(size > 1 and step > x.stride(0) for size, step in zip(x.shape[1:], x.stride()[1:], strict=True))


def is_view(func: Callable[..., Any], x: Tensor, image: Image, shape: torch.Size) -> bool:
    """Whether one client alone gets a view of an image, or of a view of it."""
    with outside():
        alone = torch.empty_strided(x.shape[1:], [image.alone(step) for step in x.stride()[1:]], device="meta")
        if func is Tensor.contiguous:
            return alone.is_contiguous()
        try:
            return alone.view(shape).shape == shape
        except RuntimeError:
            return False
