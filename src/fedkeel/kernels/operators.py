"""What PyTorch's functions do for all clients at once: each takes the arguments of the function that it stands for.

An operator gets an `Operand` in place of each tensor, and returns a tensor whose first axis is that of the clients, or
None for what it leaves to vmap. Images are channels first, as modules see them; in memory channels lie last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedkeel.core.trees import Tree
from fedkeel.errors import ModelError
from fedkeel.kernels.geometry import Geometry
from fedkeel.kernels.gradient_slots import Slot
from fedkeel.kernels.layers import GPU_TYPES, AddBias, Convolve, Embed, Multiply
from fedkeel.kernels.pools import AveragePool, MaxPool
from fedkeel.kernels.shortened import Leaves

Operator = Callable[..., Tensor | None]


class Operand(NamedTuple):
    """A tensor that is stacked, `[clients, …]`, or shared by all clients; a weight of the model has its name."""

    value: Tensor
    stacked: bool
    name: str | None = None

    @property
    def axes(self) -> int:
        """How many axes the module sees."""
        return self.value.dim() - self.stacked


@dataclass
class StackedPass:
    """One pass of a network: how many clients, the precision, and where gradients of its leaves are written.

    `mask` is 0 for samples that only fill a batch up `[clients, batch]`, and None where there are none. `shortened` are
    all weights in that precision, where most of them are used so; `multiplied` the leaves that are.
    """

    clients: int
    compute: torch.dtype
    anchor: Tensor
    into: Tree | None = None
    mask: Tensor | None = None
    shortened: Leaves | None = None
    claimed: set[str] = field(default_factory=set)
    multiplied: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)

    def claim(self, weight: Operand | None) -> Slot | None:
        """Return the place of a leaf's gradient to the first operator that asks; autograd adds what others find."""
        name = None if weight is None else weight.name
        if name is None or self.into is None or name in self.claimed:
            return None
        self.claimed.add(name)
        return Slot(name, self.into[name], self.written)

    def low(self, given: Operand) -> Tensor:
        """Return a value in the precision of the arithmetic."""
        value = given.value
        return value.to(self.compute) if value.is_floating_point() else value

    def stack(self, given: Operand) -> Tensor:
        """Return a value in that precision, with a client axis."""
        value = self.low(given)
        return value if given.stacked else value.expand(self.clients, *value.shape)

    def dense(self, weight: Operand) -> Tensor:
        """Return a stacked weight, each client's in one piece, as a leaf's lies anyway."""
        return weight.value if weight.name is not None else weight.value.contiguous()

    def add_bias(self, y: Tensor, bias: Operand | None) -> Tensor:
        """Add a bias along the last axis."""
        if bias is None:
            return y
        if not bias.stacked:
            return y + self.low(bias)
        slot = self.claim(bias)
        return AddBias.apply(y, self.anchor, self.short(bias, slot), slot)

    def multiply(self, x: Tensor, weight: Operand) -> Tensor:
        """x weightᵀ for x `[clients, rows, inner]`, with a stacked weight `[clients, outer, …]` whose rest is flat."""
        slot = self.claim(weight)
        if slot is not None:
            self.multiplied.add(slot.name)
        value = self.short(weight, slot).flatten(2)
        return Multiply.apply(x, self.anchor, value, None if slot is None else slot.flatten(2))

    def short(self, weight: Operand, slot: Slot | None) -> Tensor:
        """Return a weight from those that were shortened all at once; autograd need not see one that has its place."""
        if slot is None or self.shortened is None:
            return weight.value
        return self.shortened[slot.name]


# ---- products ------------------------------------------------------------------------------------------------------
def linear(at: StackedPass, x: Operand, weight: Operand, bias: Operand | None = None) -> Tensor | None:
    if weight.axes != 2:
        return None
    if not weight.stacked:
        if not x.stacked:
            return None
        inside = bias is not None and not bias.stacked
        y = F.linear(at.low(x), at.low(weight), at.low(bias) if inside and bias is not None else None)
        return y if inside else at.add_bias(y, bias)
    value = at.stack(x)
    y = at.multiply(value.reshape(at.clients, -1, value.shape[-1]), weight)
    return at.add_bias(y, bias).view(*value.shape[:-1], -1)


def conv2d(
    at: StackedPass, x: Operand, weight: Operand, bias: Operand | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Tensor | None:  # fmt: skip
    if x.axes != 4:
        return None
    if not weight.stacked:
        if not x.stacked:
            return None
        y = F.conv2d(at.low(x).flatten(0, 1), at.low(weight), None, stride, padding, dilation, groups)
        y = y.unflatten(0, (at.clients, -1)).movedim(2, -1)
        return at.add_bias(y, bias).movedim(-1, 2)
    (down, right), (over, across) = weight.value.shape[-2:], _pair(stride)
    margins = _margins(padding, (down, right), (over, across))
    if groups != 1 or _pair(dilation) != (1, 1) or margins is None or over != across:
        return None
    images = at.stack(x).movedim(2, -1)  # [clients, batch, height, width, channels]
    height, width = images.shape[2:4]
    if margins == (0, 0) and (over, across) == (down, right) and height % down == 0 and width % right == 0:
        shape = (*images.shape[:2], height // down, width // right)
        if (down, right) != (1, 1):  # patches that do not overlap: one product
            cut = images.unflatten(3, (-1, right)).unflatten(2, (-1, down))
            images = cut.permute(0, 1, 2, 4, 6, 3, 5)
        y = at.multiply(images.reshape(at.clients, shape[1] * shape[2] * shape[3], -1), weight)
        return at.add_bias(y, bias).view(*shape, -1).movedim(-1, 2)
    where = Geometry.of(height, width, (down, right), over, margins)
    y = Convolve.apply(images.contiguous(), at.anchor, at.dense(weight), at.claim(weight), where)
    return at.add_bias(y, bias).movedim(-1, 2)


def conv1d(
    at: StackedPass, x: Operand, weight: Operand, bias: Operand | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Tensor | None:  # fmt: skip
    step, margin, gap = (given[0] if isinstance(given, Sequence) and not isinstance(given, str) else given
                         for given in (stride, padding, dilation))  # fmt: skip
    if x.axes != 3 or not weight.stacked or isinstance(margin, str) or groups != 1 or gap != 1:
        return None
    images, reach = at.stack(x).movedim(2, -1).unsqueeze(2), weight.value.shape[-1]  # [clients, batch, 1, length, …]
    where = Geometry.of(1, images.shape[3], (1, reach), step, (0, margin))
    slot = at.claim(weight)
    wide = None if slot is None else Slot(slot.name, slot.tensor.unsqueeze(-2), slot.written)
    y = Convolve.apply(images.contiguous(), at.anchor, at.dense(weight).unsqueeze(-2), wide, where)
    return at.add_bias(y, bias).squeeze(2).movedim(-1, 2)


def _pair(given: Any) -> tuple[int, int]:
    if isinstance(given, Sequence):
        return (int(given[0]), int(given[-1]))
    return int(given), int(given)


def _margins(padding: Any, kernel: tuple[int, int], stride: tuple[int, int]) -> tuple[int, int] | None:
    """Return the rows and columns added on each side; None where sides differ."""
    if padding == "valid":
        return 0, 0
    if padding == "same":
        return (kernel[0] // 2, kernel[1] // 2) if kernel[0] % 2 and kernel[1] % 2 and stride == (1, 1) else None
    return _pair(padding)


# ---- views ---------------------------------------------------------------------------------------------------------
def view_as_complex(at: StackedPass, x: Operand) -> Tensor | None:
    """Pairs of a leaf as complex numbers; where it begins at an odd place, PyTorch takes none."""
    if not x.stacked or x.name is None:
        return None
    return torch.view_as_complex(at.low(x).clone(memory_format=torch.contiguous_format))


# ---- tables, attention ---------------------------------------------------------------------------------------------
def embedding(
    at: StackedPass, numbers: Operand, weight: Operand, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor | None:  # fmt: skip
    if scale_grad_by_freq and weight.stacked and (padding_idx is not None or at.mask is not None):
        raise ModelError(
            "this model cannot be stacked: an embedding divides gradients by how often a batch asks for a row, and one "
            "row pads, or samples fill a batch up.",
            "leave out scale_grad_by_freq, or use --engine auto or serial",
        )
    if max_norm is not None or scale_grad_by_freq:
        return None
    if not weight.stacked:
        return F.embedding(numbers.value, at.low(weight), padding_idx)
    asked = at.stack(numbers)
    padding = None if padding_idx is None else padding_idx % weight.value.shape[1]
    rows = Embed.apply(weight.value, at.anchor, asked.reshape(at.clients, -1), at.claim(weight), padding, at.compute)
    return rows.view(*asked.shape, -1)


def attention(
    at: StackedPass, query: Operand, key: Operand, value: Operand, attn_mask: Operand | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor | None:  # fmt: skip
    """The clients' samples are samples of one larger batch."""
    if dropout_p > 0 or min(query.axes, key.axes, value.axes) < 3 or len({query.axes, key.axes, value.axes}) > 1:
        return None
    if len({part.value.shape[part.stacked] for part in (query, key, value)}) > 1:  # one query for all samples
        return None
    q, k, v = (at.stack(part).flatten(0, 1) for part in (query, key, value))
    mask = None if attn_mask is None else _mask(at, attn_mask, query.axes, len(q) // at.clients)
    options: dict[str, Any] = {"enable_gqa": True} if enable_gqa else {}
    y = F.scaled_dot_product_attention(q, k, v, mask, 0.0, is_causal, scale=scale, **options)
    return y.unflatten(0, (at.clients, -1))


def _mask(at: StackedPass, mask: Operand, axes: int, batch: int) -> Tensor:
    """Return a mask that fits the larger batch."""
    value = at.low(mask)
    if not mask.stacked and (mask.axes < axes or value.shape[0] == 1):
        return value
    value = at.stack(Operand(value, mask.stacked))
    value = value.view(at.clients, *(1,) * (axes - mask.axes), *value.shape[1:])
    return value.expand(at.clients, batch, *value.shape[2:]).flatten(0, 1)


# ---- what needs no weights -----------------------------------------------------------------------------------------
def fold(f: Callable[..., Tensor]) -> Operator:
    """Make an operator of a function that treats images one by one: clients' images form one batch."""

    def folded(at: StackedPass, x: Operand, *args: Any, **options: Any) -> Tensor | None:
        if x.axes != 4 or not x.stacked or any(isinstance(part, Operand) for part in (*args, *options.values())):
            return None
        y = f(x.value.flatten(0, 1), *args, **options)
        return y.unflatten(0, x.value.shape[:2]) if isinstance(y, Tensor) else None

    return folded


def max_pool2d(
    at: StackedPass, x: Operand, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Tensor | None:  # fmt: skip
    if return_indices:
        return None
    sizes = [_pair(kernel_size), _pair(kernel_size if stride is None or stride == [] else stride), _pair(padding)]
    square = all(one == other for one, other in sizes) and _pair(dilation) == (1, 1) and not ceil_mode
    if square and x.axes == 4 and x.stacked and x.value.is_cuda and x.value.dtype in GPU_TYPES:
        images = x.value.movedim(2, -1).contiguous()
        y: Tensor = MaxPool.apply(images, *(size[0] for size in sizes))
        return y.movedim(-1, 2)
    return fold(torch.max_pool2d)(at, x, kernel_size, stride or kernel_size, padding, dilation, ceil_mode)


def avg_pool2d(
    at: StackedPass, x: Operand, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor | None:  # fmt: skip
    (size, other), step = _pair(kernel_size), _pair(stride or kernel_size)
    side_by_side = size == other and step == (size, size) and _pair(padding) == (0, 0)
    common = not ceil_mode and divisor_override is None
    if side_by_side and common and x.axes == 4 and x.stacked and x.value.is_cuda and x.value.dtype in GPU_TYPES:
        y: Tensor = AveragePool.apply(x.value.movedim(2, -1).contiguous(), size)
        return y.movedim(-1, 2)
    options = (ceil_mode, count_include_pad, divisor_override)
    return fold(F.avg_pool2d)(at, x, kernel_size, stride or kernel_size, padding, *options)


def cat(at: StackedPass, tensors: Sequence[Operand], dim: int = 0) -> Tensor | None:
    """Join images along their channels, which lie last in memory, and leave them there."""
    if dim not in (1, -3) or any(part.axes != 4 or not part.stacked for part in tensors):
        return None
    parts = [part.value.movedim(2, -1) for part in tensors]
    if not any(part.is_contiguous() for part in parts) or len({part.shape[:4] for part in parts}) > 1:
        return None
    # as matrices: beyond four axes PyTorch copies piece by piece on a GPU
    joined = torch.cat([part.reshape(-1, part.shape[-1]) for part in parts], -1)
    return joined.view(*parts[0].shape[:4], -1).movedim(-1, 2)
