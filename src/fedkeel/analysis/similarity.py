"""How alike the representations of two models are: linear centred kernel alignment, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedkeel.errors import RequestError


def linear_cka(x: Tensor, y: Tensor) -> float:
    """CKA(X, Y) = ‖Yᵀ X‖² / (‖Xᵀ X‖ ‖Yᵀ Y‖) of centred features `[samples, features]`.

    1 for features that differ by a rotation and a scale, 0 for uncorrelated or constant ones.  (Kornblith et al. 2019)
    """
    if len(x) != len(y) or len(x) < 2:
        raise RequestError(f"CKA compares features of the same samples, at least two: {len(x)} and {len(y)}.")
    if not (x.isfinite().all() and y.isfinite().all()):
        raise RequestError("CKA compares features that are finite.", "did a model diverge?")
    x, y = centred(x.flatten(1)), centred(y.flatten(1))
    if max(x.shape[1], y.shape[1]) > len(x):  # the same numbers through samples × samples, when that is smaller
        a, b = x @ x.mT, y @ y.mT
        alike, scale = (a * b).sum(), a.norm() * b.norm()
    else:
        alike, scale = (y.mT @ x).square().sum(), (x.mT @ x).norm() * (y.mT @ y).norm()
    return float(alike / scale) if scale > 0 else 0.0


def centred(features: Tensor) -> Tensor:
    """Features less their means, in float64; exactly 0 where one is constant up to its rounding in float32 or 64."""
    eps = torch.finfo(torch.promote_types(features.dtype, torch.float32)).eps
    features = features.to(torch.float64)
    rest, rounding = features - features.mean(0), 10 * eps * features.abs().amax(0)
    return torch.where(rest.abs().amax(0) > rounding, rest, 0.0)


def pairwise_cka(features: Sequence[Tensor]) -> Tensor:
    """CKA of every two models' features, `[models, models]`."""
    matrix = torch.eye(len(features), dtype=torch.float64)
    for i in range(len(features)):
        for j in range(i):
            matrix[i, j] = matrix[j, i] = linear_cka(features[i], features[j])
    return matrix


@torch.no_grad()
def layer_features(module: nn.Module, *inputs: Tensor, **named: Tensor) -> dict[str, Tensor]:
    """Return the output of each layer that has its own parameters, by name, samples first."""
    features: dict[str, Tensor] = {}
    samples, hooks = len(next(iter((*inputs, *named.values())))), []

    def keep(name: str, layer: nn.Module) -> None:
        def hook(_layer: nn.Module, given: object, output: object) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if isinstance(first, Tensor) and len(first) == samples:
                features[name] = first.detach().flatten(1)

        hooks.append(layer.register_forward_hook(hook))

    for name, layer in module.named_modules():
        if next(layer.parameters(recurse=False), None) is not None:
            keep(name or type(layer).__name__, layer)
    was_training = module.training
    try:
        module.eval()(*inputs, **named)
    finally:
        module.train(was_training)
        for handle in hooks:
            handle.remove()
    return features
