"""MNIST and Fashion-MNIST: 70 000 grey images of 28×28, published as four IDX files each.

An IDX file is a magic number (type of the numbers, number of axes), the length of each axis, and the numbers. The
checksums are those of the uncompressed files, so a copy compressed again is recognised too.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.datasets.cards import make_source
from fedkeel.data.storage.archives import Room, basename, check_bytes, read_files, unzip
from fedkeel.data.storage.download import fetch_from_hub
from fedkeel.data.storage.folder import Draft
from fedkeel.errors import DataError

PREFIXES = {"train": "train", "test": "t10k"}
UNSIGNED_BYTES = 8


def read_idx(name: str, content: bytes) -> NDArray[np.uint8]:
    """Read the array of an IDX file of unsigned bytes."""
    axes = content[3] if len(content) > 3 else 0
    start = 4 + 4 * axes
    if content[:3] != bytes((0, 0, UNSIGNED_BYTES)) or len(content) < start:
        raise DataError(f"{name} is no IDX file of bytes: it starts with {content[:4].hex(' ')}")
    shape = struct.unpack(f">{axes}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise DataError(
            f"{name} is cut off: {len(content) - start} bytes for an array of {shape}", hint="fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def convert(path: Path, draft: Draft, check: bool) -> None:
    files = {
        split: (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte") for split, prefix in PREFIXES.items()
    }
    wanted = {name for pair in files.values() for name in pair}
    # one of the four files stands for the folder it lies in
    where = path.parent if path.is_file() and plain_name(path.name) in wanted else path
    arrays: dict[str, NDArray[np.uint8]] = {}
    for name, content in read_files(where, lambda name: plain_name(name) in wanted, Room(where, draft.most)):
        raw = unzip(name, content, draft.most) if name.endswith(".gz") else content
        if check:
            check_bytes(plain_name(name), raw, draft.card.checksums)
        arrays[plain_name(name)] = read_idx(name, raw)
    if missing := sorted(wanted - arrays.keys()):
        raise DataError(f"{path} lacks {', '.join(missing)}")
    for split, (images, labels) in files.items():
        draft.save_split(split, arrays[images], arrays[labels])


def plain_name(name: str) -> str:
    """`train-images.idx3-ubyte.gz` and `train-images-idx3-ubyte` are the same file."""
    return basename(name).removesuffix(".gz").replace(".idx", "-idx")


MNIST = make_source("mnist", convert=convert, fetch=fetch_from_hub)
FASHION_MNIST = make_source("fashion-mnist", convert=convert, fetch=fetch_from_hub)
