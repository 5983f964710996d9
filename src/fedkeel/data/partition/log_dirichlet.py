"""Dirichlet draws as logarithms, so that any alpha > 0 works and a draw can be restricted to some of its parts."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedkeel import randomness
from fedkeel.ranges import Range

Floats = NDArray[np.float64]
Concentration = Annotated[float, Range(1e-300)]  # the logarithms of smaller ones are not finite


def log_dirichlet(key: int, alpha: float, rows: int, columns: int) -> Floats:
    """Logarithms of `rows` draws of the symmetric Dirichlet distribution, each row up to a constant.

    Gamma variates of a small alpha underflow; their logarithms do not: log Γ(α) = log Γ(α + 1) + log(U) / α.
    """
    generator = randomness.generator(key)
    logs = np.log(generator.standard_gamma(alpha + 1.0, (rows, columns)))
    return np.asarray(logs + np.log1p(-generator.random((rows, columns))) / alpha)


def normalise(logs: Floats) -> Floats:
    """Turn logarithms into the shares of each row. A part at -∞ has none: that restricts a draw to the other parts."""
    weights = np.exp(logs - logs.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))
