"""BloodMNIST: microscopic images of eight kinds of blood cells, 28×28 in colour, from MedMNIST v2.

One compressed numpy file of six arrays. Labels are published as a column and become a row. The published training and
test parts are used; the validation part (1 712 images) is left out.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.datasets.cards import make_source
from fedkeel.data.storage.archives import ZipArchive, read_array, reading
from fedkeel.data.storage.folder import Draft
from fedkeel.data.storage.web import fetch_from_url
from fedkeel.errors import DataError


def convert(path: Path, draft: Draft, check: bool) -> None:
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} is not a whole numpy archive")
    with reading(path), ZipArchive(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        for split in ("train", "test"):
            arrays: list[NDArray[Any]] = []
            for name in (f"{split}_images", f"{split}_labels"):
                if name not in names:
                    raise DataError(f"{path} has no array {name!r}: it has {', '.join(sorted(names))}")
                with archive.open(f"{name}.npy") as file:
                    arrays.append(read_array(f"{name} in {path}", file, draft.most))
            images, labels = arrays
            if images.dtype != np.uint8 or labels.shape != (len(images), 1):
                raise DataError(f"{path} holds {images.dtype} images and labels of shape {labels.shape}")
            draft.save_split(split, images, labels[:, 0])


BLOODMNIST = make_source("bloodmnist", convert=convert, fetch=fetch_from_url)
