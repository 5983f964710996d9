"""Many numbers per client drawn as points in a plane: principal components, or t-SNE; how far apart they are."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Principal components of `[rows, features]` by scikit-learn, which also makes their signs stable."""
    if rows.dim() != 2 or not 1 <= components <= min(rows.shape):
        raise RequestError(f"{components} components cannot be taken from a table of shape {tuple(rows.shape)}.")
    if not rows.isfinite().all():
        raise RequestError("numbers that are not finite have no principal components.", "did a model diverge?")
    from sklearn.decomposition import PCA

    table = rows.to(torch.float64).numpy()
    if not np.ptp(table, axis=0).any():  # equal rows lie in one point, and have no variance to share
        return Projection(torch.zeros(len(rows), components, dtype=torch.float64), torch.zeros(components))
    found = PCA(components, svd_solver="full").fit(table)
    return Projection(torch.from_numpy(found.transform(table)), torch.from_numpy(found.explained_variance_ratio_))


def tsne(rows: Tensor, of: int = 0) -> NDArray[np.float64]:
    """t-SNE in the plane, of the first 50 principal components; `of` is a key of `fedkeel.randomness`."""
    if len(rows) < 4:
        raise RequestError(f"t-SNE needs at least four points, not {len(rows)}.", "use pca for fewer")
    from sklearn.manifold import TSNE

    reduced = pca(rows, min(50, *rows.shape)).points.numpy()
    embedding = TSNE(perplexity=min(30.0, (len(rows) - 1) / 3), init="random", random_state=of % 2**32)
    return np.asarray(embedding.fit_transform(reduced), dtype=np.float64)


def spread(rows: Tensor, classes: Sequence[int] | None = None) -> float:
    """The mean distance of rows from the mean of all, or of those of their class."""
    groups = torch.zeros(len(rows), dtype=torch.int64) if classes is None else torch.tensor(classes)
    table, total = rows.to(torch.float64), 0.0
    for group in groups.unique():
        part = table[groups == group]
        total += float((part - part.mean(0)).norm(dim=1).sum())
    return total / len(rows)


def separation(rows: Tensor, classes: Sequence[int]) -> float | None:
    """The mean silhouette: 1 where classes are far apart and tight, 0 where they touch; None where it is undefined."""
    if not 2 <= len(set(classes)) < len(rows):
        return None
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(rows.to(torch.float64).numpy(), classes))
