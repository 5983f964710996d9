"""The loss around a model along one or two directions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.analysis.curvature import LossParts, loss_value, normal_like
from fedkeel.core.trees import Tree
from fedkeel.errors import RequestError
from fedkeel.randomness import key


@dataclass(frozen=True, eq=False)
class Landscape:
    """`values` [x] are L(w + x d_1), or `values` [y, x] are L(w + x d_1 + y d_2); `along` names the directions."""

    x: NDArray[np.float64]
    y: NDArray[np.float64] | None
    values: NDArray[np.float64]
    along: str

    def data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        y = None if self.y is None else self.y.tolist()
        return {"x": self.x.tolist(), "y": y, "values": self.values.tolist(), "along": self.along}


def filter_normalised(direction: Tree, params: Tree) -> Tree:
    """Each filter of the direction scaled to the length of the model's: d_f ‖w_f‖ / ‖d_f‖; biases and scales stay put.

    A filter is a row along a tensor's first axis. Landscapes of models whose weights differ in scale become
    comparable. Of a model that has only vectors each vector is a filter: nothing else could move.  (Li et al. 2018)
    """
    vectors = all(w.dim() < 2 for _, w in params.items())

    def scaled(d: Tensor, w: Tensor) -> Tensor:
        if w.dim() < 2:
            return d * w.norm() / d.norm().clamp(min=1e-30) if vectors else torch.zeros_like(d)
        own, theirs = (z.flatten(1).norm(dim=1).view((-1,) + (1,) * (w.dim() - 1)) for z in (d, w))
        rescaled: Tensor = d * theirs / own.clamp(min=1e-30)
        return rescaled

    return direction.map(scaled, params)


def random_direction(params: Tree, seed: int = 0, number: int = 0) -> Tree:
    """A random, filter-normalised direction."""
    direction = Tree(normal_like(params.buffer, key(seed, "landscape", number)), params.layout)
    return filter_normalised(direction, params)


def grid_points(radius: float, points: int) -> NDArray[np.float64]:
    """From −radius to radius; an odd number of points, so that the model itself is one of them."""
    if points < 3 or points % 2 == 0 or radius <= 0:
        raise RequestError(f"a landscape needs an odd number of points and a radius: {points}, {radius}.", "points=21")
    return np.linspace(-radius, radius, points)


def line(
    loss: LossParts, at: Tree, direction: Tree, radius: float = 1.0, points: int = 21, along: str = ""
) -> Landscape:
    """L(w + x d) over −radius ≤ x ≤ radius."""
    x = grid_points(radius, points)
    values = np.array([loss_value(loss, at.moved(direction, float(step))) for step in x])
    return Landscape(x, None, values, along)


def plane(
    loss: LossParts, at: Tree, first: Tree, second: Tree, radius: float = 1.0, points: int = 21, along: str = ""
) -> Landscape:
    """L(w + x d_1 + y d_2) over a square."""
    x = grid_points(radius, points)
    values = np.array([[loss_value(loss, at.moved(first, float(a)).moved(second, float(b))) for a in x] for b in x])
    return Landscape(x, x.copy(), values, along)
