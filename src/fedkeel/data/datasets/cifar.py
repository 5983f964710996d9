"""CIFAR-10 and CIFAR-100: 60 000 colour images of 32×32, in canonical order.

The published archives come in two forms that are both read here. Binary: records of one label byte (CIFAR-100: coarse,
then fine) and 3 072 bytes of pixels, channel by channel. Pickled: dictionaries of the same pixels, read through an
unpickler that knows only plain arrays. CIFAR-100 uses its fine labels.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.datasets.cards import make_source
from fedkeel.data.storage.archives import Room, basename, check_bytes, read_files
from fedkeel.data.storage.download import fetch_from_hub
from fedkeel.data.storage.folder import Draft
from fedkeel.data.storage.pickles import PlainArray, read_pickle
from fedkeel.errors import DataError

PIXELS = 3 * 32 * 32


def planes_last(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[n, 3072], channel by channel, to [n, 32, 32, 3]."""
    return np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def read_binary_batch(name: str, content: bytes, label_bytes: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images and labels of a binary file; the last label byte is the class (the one before it, the superclass)."""
    if len(content) % (label_bytes + PIXELS):
        raise DataError(f"{name} has {len(content)} bytes, which is no whole number of images", hint="fetch it again")
    records = np.frombuffer(content, np.uint8).reshape(-1, label_bytes + PIXELS)
    return planes_last(records[:, label_bytes:]), records[:, label_bytes - 1]


def read_pickled_batch(name: str, content: bytes, label_key: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    batch = read_pickle(name, content)
    # Python 2 wrote the published keys as bytes; a copy written again by Python 3 has text
    fields = {k.decode() if isinstance(k, bytes) else k: v for k, v in batch.items()} if isinstance(batch, dict) else {}
    pixels, labels = fields.get("data"), fields.get(label_key)
    pixels = pixels.array if isinstance(pixels, PlainArray) else None
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (PIXELS,):
        raise DataError(f"{name} holds no array 'data' of {PIXELS} bytes per image")
    if not isinstance(labels, list) or len(labels) != len(pixels) or not all(isinstance(c, int) for c in labels):
        raise DataError(f"{name} holds no list {label_key!r} of one number per image")
    if any(not 0 <= c < 256 for c in labels):
        raise DataError(f"{name} holds labels {min(labels)} … {max(labels)}")
    return planes_last(pixels), np.array(labels, np.uint8)


def convert(
    binary: dict[str, list[str]], pickled: dict[str, list[str]], label_bytes: int, label_key: str
) -> Callable[[Path, Draft, bool], None]:
    """The reader of one set, given the file names of each split in both forms."""

    def read(path: Path, draft: Draft, check: bool) -> None:
        names = {name for form in (binary, pickled) for files in form.values() for name in files}
        batches: dict[str, tuple[NDArray[np.uint8], NDArray[np.uint8]]] = {}
        for name, content in read_files(path, lambda name: basename(name) in names, Room(path, draft.most)):
            if check:
                check_bytes(name, content, draft.card.checksums)
            if name.endswith(".bin"):
                batches[basename(name)] = read_binary_batch(name, content, label_bytes)
            else:
                batches[basename(name)] = read_pickled_batch(name, content, label_key)
        form = binary if batches.keys() & {name for files in binary.values() for name in files} else pickled
        for split, files in form.items():
            if missing := [name for name in files if name not in batches]:
                raise DataError(f"{path} lacks {', '.join(missing)}")
            images, labels = zip(*(batches[name] for name in files), strict=True)
            draft.save_split(split, np.concatenate(images), np.concatenate(labels))

    return read


CIFAR10 = make_source(
    "cifar10",
    convert=convert(
        binary={"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]},
        pickled={"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]},
        label_bytes=1,
        label_key="labels",
    ),
    fetch=fetch_from_hub,
)
CIFAR100 = make_source(
    "cifar100",
    convert=convert(
        binary={"train": ["train.bin"], "test": ["test.bin"]},
        pickled={"train": ["train"], "test": ["test"]},
        label_bytes=2,
        label_key="fine_labels",
    ),
    fetch=fetch_from_hub,
)
