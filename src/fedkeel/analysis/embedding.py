"""Many numbers per client drawn as points in a plane: principal components, or t-SNE."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.errors import RequestError


@dataclass(frozen=True, eq=False)
class Projection:
    """`points` [rows, components]; `explained`: the share of the variance along each component."""

    points: Tensor
    explained: Tensor


def pca(rows: Tensor, components: int = 2) -> Projection:
    """Principal components of `[rows, features]`; each component's largest loading is positive, so signs are stable."""
    if rows.dim() != 2 or not 1 <= components <= min(rows.shape):
        raise RequestError(f"{components} components cannot be taken from a table of shape {tuple(rows.shape)}.")
    x = rows.to(torch.float64)
    x = x - x.mean(0)
    # rows × rows: features are the parameters of a model, rows are clients
    values, vectors = torch.linalg.eigh(x @ x.mT)
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    points = vectors[:, :components] * values[:components].sqrt()
    loadings = x.mT @ vectors[:, :components]
    largest = loadings.gather(0, loadings.abs().argmax(0, keepdim=True)).squeeze(0)
    total = values.sum()
    explained = values[:components] / total if total > 0 else torch.zeros(components, dtype=torch.float64)
    return Projection(points * torch.where(largest < 0, -1.0, 1.0), explained)


def tsne(rows: Tensor, of: int = 0, perplexity: float = 30.0) -> NDArray[np.float64]:
    """t-SNE in the plane, of the first 50 principal components; `of` is a key of `fedkeel.randomness`."""
    if len(rows) < 4:
        raise RequestError(f"t-SNE needs at least four points, not {len(rows)}.", "use pca for fewer")
    from sklearn.manifold import TSNE

    reduced = pca(rows, min(50, *rows.shape)).points.numpy()
    embedding = TSNE(perplexity=min(perplexity, (len(rows) - 1) / 3), init="random", random_state=of % 2**32)
    return np.asarray(embedding.fit_transform(reduced), dtype=np.float64)
