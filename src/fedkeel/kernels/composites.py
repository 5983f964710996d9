"""Functions of PyTorch that call others: written out for one client, so that each part is taken over by itself."""

from __future__ import annotations

from collections.abc import Callable
from inspect import unwrap
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedkeel.kernels.recurrent import (
    gru,
    gru_cell,
    lstm,
    lstm_cell,
    rnn_relu,
    rnn_relu_cell,
    rnn_tanh,
    rnn_tanh_cell,
)
from fedkeel.models.adapters import adapt_linear


def multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int, in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None, bias_k: Tensor | None, bias_v: Tensor | None, add_zero_attn: bool, dropout_p: float,
    out_proj_weight: Tensor, out_proj_bias: Tensor | None, training: bool = True,
    key_padding_mask: Tensor | None = None, need_weights: bool = True, attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False, q_proj_weight: Tensor | None = None, k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None, static_k: Tensor | None = None, static_v: Tensor | None = None,
    average_attn_weights: bool = True, is_causal: bool = False,
) -> tuple[Tensor, Tensor | None] | None:  # fmt: skip
    """`F.multi_head_attention_forward`, in whose layout the tokens come first; rare options are left to PyTorch."""
    unusual = any(part is not None for part in (bias_k, bias_v, static_k, static_v)) or add_zero_attn
    if unusual or use_separate_proj_weight or in_proj_weight is None or query.dim() != 3:
        return None
    q, k, v = project(query, key, value, in_proj_weight, in_proj_bias)
    tokens, batch, width = q.shape
    q, k, v = (part.reshape(len(part), batch, num_heads, -1).permute(1, 2, 0, 3) for part in (q, k, v))
    mask = join_masks(attn_mask, key_padding_mask, batch, num_heads, q.dtype)
    share = dropout_p if training else 0.0
    weights = None
    if need_weights:
        scores = q @ k.transpose(-2, -1) * (width // num_heads) ** -0.5
        weights = torch.softmax(scores if mask is None else scores + mask, -1)
        weights = F.dropout(weights, share) if share else weights
        y = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        y = F.scaled_dot_product_attention(q, k, v, mask, share, is_causal and mask is None)
    y = y.permute(2, 0, 1, 3).reshape(tokens, batch, width)
    return F.linear(y, out_proj_weight, out_proj_bias), weights


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor | None:  # fmt: skip
    """`F.scaled_dot_product_attention` with dropout, written out; PyTorch's own kernel draws without a key."""
    if dropout_p == 0:
        return None
    if enable_gqa:
        key, value = (part.repeat_interleave(query.shape[-3] // part.shape[-3], -3) for part in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    if attn_mask is not None:
        scores = scores + (as_scores(~attn_mask, scores.dtype) if attn_mask.dtype == torch.bool else attn_mask)
    return F.dropout(torch.softmax(scores, -1), dropout_p) @ value


def project(
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values: one product where all three come from the same tokens."""
    if query is key and key is value:
        q, k, v = F.linear(query, weight, bias).chunk(3, -1)
        return q, k, v
    rows = weight.chunk(3)
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    q, k, v = (F.linear(x, w, b) for x, w, b in zip((query, key, value), rows, biases, strict=True))
    return q, k, v


def join_masks(
    mask: Tensor | None, padding: Tensor | None, batch: int, heads: int, dtype: torch.dtype
) -> Tensor | None:
    """Return what is added to scores `[batch, heads, queries, keys]`."""
    joined = None
    if mask is not None:
        wide = mask if mask.dim() == 2 else mask.view(batch, heads, *mask.shape[-2:])
        joined = as_scores(wide, dtype)
    if padding is not None:
        of_keys = as_scores(padding, dtype)[:, None, None, :]
        joined = of_keys if joined is None else joined + of_keys
    return joined


def as_scores(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a mask of what is left out into numbers to add."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))


def view(x: Tensor, *shape: Any, **options: Any) -> Tensor | None:
    """A view, or a copy where the strides of a stack allow none; as another type it is left alone."""
    return None if options or isinstance(shape[0], torch.dtype) else x.reshape(*shape)


COMPOSITES: dict[Callable[..., Any], Callable[..., Any]] = {
    F.multi_head_attention_forward: multi_head_attention,
    F.scaled_dot_product_attention: attention,
    torch.lstm: lstm,
    torch.gru: gru,
    torch.rnn_tanh: rnn_tanh,
    torch.rnn_relu: rnn_relu,
    torch.lstm_cell: lstm_cell,
    torch.gru_cell: gru_cell,
    torch.rnn_tanh_cell: rnn_tanh_cell,
    torch.rnn_relu_cell: rnn_relu_cell,
    adapt_linear: unwrap(adapt_linear),
    Tensor.view: view,
}
"""Each is called with the arguments of the function that it stands for, and returns None where it leaves it alone."""
