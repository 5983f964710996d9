"""Weights from how much clients agree with the last global move, and with each other (FedSCAM)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedkeel.core.rule import State, Weighting, newer_field
from fedkeel.core.trees import Tree
from fedkeel.randomness import key, uniforms
from fedkeel.ranges import Count, NonNegative, PositiveShare, Whole
from fedkeel.rules.probes import sketch
from fedkeel.rules.weights import by_size, to_shares

__all__ = ["ByAgreement"]

ITERATIONS = 20


@dataclass(frozen=True)
class ByAgreement(Weighting):
    """p_i ∝ n_i f_i / (1 + γ h̃_i) · max(0, 1 + β c_i), from each client's heterogeneity h̃_i and alignment c_i.

    With `clustering`, clients whose updates point against another's of the same cluster, and are the shorter of the
    two, count f_i = lam; else f_i = 1. clusters = 0 makes min(3, max(1, m // 3)) of them for m clients.
    gamma = beta = 0 without clustering is by size, and so is a sum of zero.  (FedSCAM, 2025)
    """

    gamma: NonNegative = 1.0
    beta: NonNegative = 0.8
    clustering: bool = False
    lam: PositiveShare = 0.5
    dimensions: Count = 256
    clusters: Whole = newer_field(0)
    reads = ("heterogeneity", "alignment")

    def __call__(self, reports: State, server: State) -> Tensor:
        heterogeneous = 1 + self.gamma * reports["heterogeneity"]
        agree = (1 + self.beta * reports["alignment"]).clamp(min=0)
        raw = reports["size"] / heterogeneous * agree
        if self.clustering:
            raw = raw * self.opposition_factors(reports)
        return to_shares(raw, by_size(reports))

    def opposition_factors(self, reports: State) -> Tensor:
        """lam for the shorter update of each opposed pair in a cluster, else 1."""
        delta = reports["delta"]
        z, cluster = self.find_clusters(delta)
        length = delta.norm()
        opposed = (cluster[:, None] == cluster) & (z @ z.T < 0)
        later = torch.ones_like(opposed).tril(-1)  # of two equal updates the later client's counts as the shorter
        shorter = (length[:, None] < length) | ((length[:, None] == length) & later)
        return torch.where((opposed & shorter).any(1), self.lam, 1.0).to(length.dtype)

    def find_clusters(self, updates: Tree) -> tuple[Tensor, Tensor]:
        """The directions of stacked updates as short unit vectors, and the number of the cluster of each."""
        z = unit_rows(sketch(updates, self.dimensions))
        return z, cluster_directions(z, self.clusters or min(3, max(1, len(z) // 3)))


def unit_rows(rows: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / (length + 1e-12)


def cluster_directions(z: Tensor, clusters: int) -> Tensor:
    """Clusters of unit vectors by direction, at most one for each: k-means on the sphere, seeded by k-means++."""
    count = len(z)
    clusters = min(clusters, count)
    draws = torch.from_numpy(uniforms(key(0, "clusters", count), clusters)).to(z)
    centres = z[(draws[:1] * count).to(torch.int64)]
    for draw in draws[1:]:
        far = (1 - (z @ centres.T).amax(1)).clamp(min=0).cumsum(0)
        centres = torch.cat([centres, z[torch.searchsorted(far, draw * far[-1:]).clamp(max=count - 1)]])
    nearest = (z @ centres.T).argmax(1)
    for _ in range(ITERATIONS):
        members = torch.nn.functional.one_hot(nearest, clusters).to(z)
        centres = unit_rows(members.T @ z)  # an empty cluster's is zero, and stays without members
        nearest = (z @ centres.T).argmax(1)
    return nearest
