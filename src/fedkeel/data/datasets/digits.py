"""The 1 797 handwritten digits that ship with scikit-learn: 8×8 pixels, real data, no download.

They are the test part of the UCI "Optical Recognition of Handwritten Digits" set (43 writers). Grey levels 0 … 16 are
stored as the nearest of 0 … 255. The set has no published split of its own: a fifth of each class, drawn once and for
all by a fixed key, is the test set.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.dataset import Dataset, DatasetCard
from fedkeel.data.datasets.cards import make_source
from fedkeel.randomness import key, permutation


def open_digits(card: DatasetCard, folder: Path, root: Path) -> Dataset:
    rows = read_digits()
    images = np.rint(rows[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    labels = rows[:, -1].astype(np.int64)
    orders = [
        np.flatnonzero(labels == c)[permutation(key(0, "digits", c), int((labels == c).sum()))] for c in range(10)
    ]
    test = np.sort(np.concatenate([order[: len(order) // 5] for order in orders]))
    train = np.setdiff1d(np.arange(len(labels)), test)
    return Dataset(card, images[train], labels[train], images[test], labels[test], root=root)


def read_digits() -> NDArray[np.float64]:
    """`[1797, 65]`, from scikit-learn's own file: importing the library takes seconds, reading the file does not."""
    package = find_spec("sklearn")
    for place in () if package is None else package.submodule_search_locations or ():
        file = Path(place) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    digits = load_digits()
    return np.column_stack([digits.data, digits.target])


DIGITS = make_source("digits", open=open_digits, is_complete=lambda card, folder: True)
