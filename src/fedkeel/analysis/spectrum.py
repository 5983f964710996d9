"""Where in the spectrum clients disagree. Trees are stacked: `[clients, D]`, gradients, perturbations or updates.

Each tensor of the model ("layer" in the papers) is flattened and taken as a signal; its ⌊n/2⌋ + 1 rFFT coefficients
are cut into M neighbouring bands of equal width. A tensor too short for M bands has empty ones, which do not count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fedkeel.core.trees import Tree
from fedkeel.errors import RequestError

BANDS = 10


@dataclass(frozen=True, eq=False)
class BandDrift:
    """Dist(m) and Std(m) over all layers, and for each layer by name; NaN where a band is empty."""

    distance: Tensor  # [bands]
    deviation: Tensor  # [bands]
    layers: dict[str, tuple[Tensor, Tensor]]


def band_edges(bins: int, bands: int) -> list[int]:
    """Where each band begins, and the end of the last: ⌊m · bins / M⌋."""
    if bands < 1:
        raise RequestError(f"a spectrum has at least one band, not {bands}.", "use bands=10, as in the papers")
    return [m * bins // bands for m in range(bands + 1)]


def band_drift(tree: Tree, bands: int = BANDS, *, by_layer: bool = True) -> BandDrift:
    """Mean and standard deviation of the clients' distances in each band, over all layers and pairs of clients.

    δ_{l,m}^{jk} = ‖M_m ⊙ (F g_l^j − F g_l^k)‖,  Dist(m) = mean_{l, j<k} δ,  Std(m) = √mean (δ − Dist)².
    The coefficients are not normalised, as in the paper.  (SpecGradFilter eq. 4, fig. 1)
    """
    apart = band_distances(tree, bands)
    flat = apart.flatten(1)
    layers = {}
    if by_layer:
        names = [*tree.layout.spans]
        layers = {names[i]: mean_and_deviation(apart[:, i]) for i in range(len(names))}
    return BandDrift(*mean_and_deviation(flat), layers={name: layers[name] for name in tree if name in layers})


def mean_and_deviation(apart: Tensor) -> tuple[Tensor, Tensor]:
    """Over the last axis, without the NaN of empty bands."""
    there = ~torch.isnan(apart)
    count, values = there.sum(-1), apart.nan_to_num(0.0)
    mean = values.sum(-1) / count
    square = torch.where(there, (values - mean.unsqueeze(-1)) ** 2, 0.0).sum(-1) / count
    return mean, square.sqrt()


def band_distances(tree: Tree, bands: int = BANDS) -> Tensor:
    """`[bands, layers, pairs]`, layers in the order of the buffer: the distance of each pair of clients in each band.

    Through the Gram matrix of the centred coefficients, so the cost is that of the transform: not of all pairs.
    """
    clients = count_clients(tree)
    j, k = torch.triu_indices(clients, clients, 1, device=tree.buffer.device)
    parts = []
    for gram in band_grams(tree, bands):
        square = gram.diagonal(dim1=-2, dim2=-1)
        apart = square[..., j] + square[..., k] - 2 * gram[..., j, k]
        parts.append(apart.clamp(min=0).sqrt())
    return torch.cat(parts, 1)


def band_grams(tree: Tree, bands: int) -> list[Tensor]:
    """For each group of leaves of one length, `[bands, leaves, clients, clients]`: ⟨ĝ_j, ĝ_k⟩ of the centred rows."""
    clients, matrices = tree.buffer.shape[0], []
    for offset, leaves, length, _ in tree.layout.groups:
        rows = tree.buffer.narrow(-1, offset, leaves * length).view(clients, leaves, length)
        hat = torch.view_as_real(torch.fft.rfft(rows - rows.mean(0))).flatten(2)
        hat = hat.permute(1, 2, 0).contiguous()  # clients last: such narrow products are twice as fast
        edges = band_edges(length // 2 + 1, bands)
        gram = hat.new_full((bands, leaves, clients, clients), torch.nan)
        for m in range(bands):
            if edges[m] < edges[m + 1]:
                part = hat[:, 2 * edges[m] : 2 * edges[m + 1]]  # real and imaginary parts beside each other
                gram[m] = part.mT @ part
        matrices.append(gram)
    return matrices


def band_variance(tree: Tree, bands: int = BANDS) -> dict[str, Tensor]:
    """For each layer `[bands]`: the variance across clients of a coefficient, averaged over the band's.

    V_l(m) = mean_{q ∈ band m} mean_k |v̂_l^k[q] − mean_k' v̂_l^k'[q]|².  Its mean over layers is FedFFT fig. 1.
    """
    clients, variances = count_clients(tree), []
    for (_, _, length, _), gram in zip(tree.layout.groups, band_grams(tree, bands), strict=True):
        edges = band_edges(length // 2 + 1, bands)
        width = torch.tensor([end - begin for begin, end in pairwise(edges)], device=gram.device)
        total = gram.diagonal(dim1=-2, dim2=-1).sum(-1)  # [bands, leaves]
        variances.append(total / (clients * width.unsqueeze(-1)))
    by_name = dict(zip(tree.layout.spans, torch.cat(variances, 1).unbind(1), strict=True))
    return {name: by_name[name] for name in tree}


def client_distances(tree: Tree, bands: int = BANDS) -> Tensor:
    """`[clients, bands]`: how far each client is from the mean of all in each band, mean over layers.

    D_k(m) = mean_l ‖M_m ⊙ (F g_l^k − F ḡ_l)‖.
    """
    count_clients(tree)
    squares = [gram.diagonal(dim1=-2, dim2=-1) for gram in band_grams(tree, bands)]  # [bands, leaves, clients]
    return torch.cat(squares, 1).sqrt().nanmean(1).mT


def summarise_bands(tree: Tree, bands: int = BANDS) -> dict[str, Any]:
    """Return all that is drawn of a spectrum as plain data: over all layers, for each layer and for each client."""
    found, variance = band_drift(tree, bands), band_variance(tree, bands)
    return {
        "distance": found.distance.tolist(),
        "deviation": found.deviation.tolist(),
        "variance": torch.stack([*variance.values()]).nanmean(0).tolist(),
        "layers": {name: distance.tolist() for name, (distance, _) in found.layers.items()},
        "layer_deviation": {name: deviation.tolist() for name, (_, deviation) in found.layers.items()},
        "clients": client_distances(tree, bands).tolist(),
    }


def layer_divergence(tree: Tree, filter: Callable[[Tree], Tree] | None = None) -> dict[str, float]:
    """Δ_l(Φ) = mean_k ‖Φ(g_l^k) − Φ(ḡ_l)‖ by layer; without a filter Φ = 1.  (SpecGradFilter eq. 5, fig. 2)"""
    count_clients(tree)
    apart = tree - tree.mean().expand(len(tree.buffer))
    if filter is not None:  # not assumed linear: Φ is applied to each side
        apart = filter(tree) - filter(tree.mean()).expand(len(tree.buffer))
    return {name: float(leaf.reshape(len(leaf), -1).norm(dim=-1).mean()) for name, leaf in apart.items()}


@dataclass(frozen=True)
class Heterogeneity:
    """δ_low² and δ_high²; they add up to mean_k ‖g_k − ḡ‖², because the filter is an orthogonal projection."""

    low: float
    high: float

    @property
    def total(self) -> float:
        return self.low + self.high

    @property
    def low_share(self) -> float:
        return self.low / self.total if self.total else 0.0


def heterogeneity(tree: Tree, high_pass: Callable[[Tree], Tree]) -> Heterogeneity:
    """The clients' disagreement on each side of a filter's cut.

    δ_high² = mean_k ‖P g_k − P ḡ‖² and δ_low² = mean_k ‖(1 − P)(g_k − ḡ)‖².  (SpecGradFilter eq. 9, 10)
    """
    clients = count_clients(tree)
    apart = tree - tree.mean().expand(clients)
    high = high_pass(apart)
    low = apart - high
    return Heterogeneity(*(float(part.dot(part).to(torch.float64).mean()) for part in (low, high)))


def count_clients(tree: Tree) -> int:
    """Count the stacked clients; refuse fewer than two, which cannot disagree."""
    if tree.buffer.dim() != 2 or len(tree.buffer) < 2:
        raise RequestError(
            f"a comparison of clients needs at least two, stacked; the shape is {tuple(tree.buffer.shape)}.",
            "fedkeel.core.trees.stack([tree_0, tree_1, …])",
        )
    return len(tree.buffer)
