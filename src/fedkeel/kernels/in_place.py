"""How functions that a network calls are named, which are costly, and which write into what they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from fedkeel.errors import ModelError


def name_of(func: Callable[..., Any]) -> str:
    name = str(getattr(func, "__name__", func))
    return {"scan_lstm": "lstm", "step_gru": "gru", "adapt_linear": "linear with adapter"}.get(name, name)


def rename(options: dict[str, Any]) -> dict[str, Any]:
    """Give arguments that a network names as PyTorch does the names that operators have for them."""
    return {ALIASES.get(name, name): given for name, given in options.items()}


def changes_in_place(func: Callable[..., Any], kwargs: dict[str, Any]) -> bool:
    """Whether a function writes into its argument, by its name."""
    name = name_of(func)
    marked = name.endswith("_") and not name.endswith("__")
    return marked or kwargs.get("inplace") is True or name in IN_PLACE or "out" in kwargs


IN_PLACE = {f"__{kind}__" for kind in "iadd isub imul itruediv ifloordiv ipow iand ior ixor setitem".split()}

ALIASES = {"input": "x", "axis": "dim", "normalized_shape": "shape", "train": "training"}
"""PyTorch's functions have the first of each pair, or take it too."""

COSTLY = {
    *"conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d unfold fold bilinear linear".split(),
    *"group_norm batch_norm layer_norm instance_norm rms_norm embedding embedding_bag interpolate grid_sample".split(),
    *"scaled_dot_product_attention multi_head_attention_forward lstm gru rnn_tanh rnn_relu cdist".split(),
    *"max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d scatter_add".split(),
    *"adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d linalg_solve svd sort ctc_loss".split(),
}  # fmt: skip
"""Functions that take longer under vmap than their arithmetic does; a product of matrices is one product there too."""

RESHAPES = {Tensor.reshape, torch.reshape, Tensor.flatten, torch.flatten, Tensor.ravel, torch.ravel}
"""What is a view of one client's tensor in one piece, and a copy where a stack of them lies otherwise in memory."""


class Copies:
    """Copies of stacked tensors where one client alone has a view: what is written into one is not seen in the other.

    That is refused where the other is read afterwards.
    """

    def __init__(self) -> None:
        self.groups: dict[int, list[StorageWeakRef]] = {}
        self.stale: dict[int, StorageWeakRef] = {}  # a weak reference also keeps the identity from being given again

    def note(self, source: Tensor, made: Tensor, *, always: bool) -> None:
        """Note that one may be a copy of the other, where it is `always` a view for one client.

        Else only of what lies as operators leave it, with channels last: other tensors are copied for one client too.
        """
        if not always and (source.dim() < 4 or not source.movedim(2, -1).is_contiguous()):
            return
        one, other = (StorageWeakRef(tensor.untyped_storage()) for tensor in (source, made))
        if one.cdata != other.cdata:
            group = self.groups.setdefault(one.cdata, [one])
            group.append(other)
            self.groups[other.cdata] = group

    def write(self, value: Tensor) -> None:
        """Note that something is written into a tensor."""
        own = value.untyped_storage()._cdata
        self.stale.update((ref.cdata, ref) for ref in self.groups.get(own, ()) if ref.cdata != own)

    def read(self, value: Tensor) -> None:
        """Refuse a tensor that would have been changed, had another not been its copy."""
        if value.untyped_storage()._cdata in self.stale:
            raise ModelError(
                "this model cannot be stacked: it changes a reshaped tensor in place, and then reads what it was "
                "reshaped from, or the other way round.",
                "write into a new tensor (x = x * 2), or use --engine auto or serial",
            )
