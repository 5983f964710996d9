"""The functions that a network calls: their names, which are costly, and which write into what they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


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

RESHAPES = {
    Tensor.reshape, torch.reshape, Tensor.reshape_as, Tensor.flatten, torch.flatten, Tensor.ravel, torch.ravel,
    Tensor.contiguous,
}  # fmt: skip
"""What is a view or a copy, as memory lies: for one client it can be the one, and for a stack the other."""

TURNS = {
    *(getattr(of, name) for of in (torch, Tensor) for name in "permute transpose movedim moveaxis t".split()),
    *(getattr(of, name) for of in (torch, Tensor) for name in ("swapaxes", "swapdims")),
    *(getattr(Tensor, name).__get__ for name in ("T", "mT")),
}
SHAPES = RESHAPES | TURNS
MOVES = {
    Tensor.unsqueeze, torch.unsqueeze, Tensor.unsqueeze_, Tensor.__getitem__, Tensor.transpose_, Tensor.swapaxes_,
    Tensor.swapdims_,
}  # fmt: skip
"""What can put an axis between those by which an image is known, or move them in place."""

RELU = {F.relu, torch.relu, Tensor.relu}
RELU_IN_PLACE = {torch.relu_, Tensor.relu_}
ADD = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__}
ADD_IN_PLACE = {Tensor.add_, Tensor.__iadd__}
DTYPE = Tensor.dtype.__get__  # type: ignore[attr-defined]
REQUIRES_GRAD = Tensor.requires_grad.__get__  # type: ignore[attr-defined]
QUERIES = {
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "is_cuda", "is_nested", "layout")),
    REQUIRES_GRAD, Tensor.dim, Tensor.size, Tensor.numel, Tensor.__len__, Tensor.is_floating_point,
    torch.is_floating_point, torch.numel, Tensor.is_complex, torch.is_complex,
}  # fmt: skip
"""What asks for a shape, a type or whether gradients flow, and never for values."""
