"""CIFAR-10 and CIFAR-100: 60 000 colour images of 32×32, in canonical order.

The published archives come in two forms that are both read here. Binary: records of one label byte (CIFAR-100: coarse,
then fine) and 3 072 bytes of pixels, channel by channel. Pickled: dictionaries of the same pixels, read through an
unpickler that knows only plain arrays. CIFAR-100 uses its fine labels.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.dataset import DatasetCard, Hub
from fedkeel.data.storage.archives import Room, basename, check_bytes, read_files
from fedkeel.data.storage.download import fetch_from_hub
from fedkeel.data.storage.folder import Draft, is_complete, open_folder
from fedkeel.data.storage.pickles import PlainArray, read_pickle
from fedkeel.data.storage.source import Source
from fedkeel.errors import DataError

PIXELS = 3 * 32 * 32
CITATION = """@techreport{krizhevsky2009learning,
  author = {Krizhevsky, Alex},
  title = {Learning Multiple Layers of Features from Tiny Images},
  institution = {University of Toronto},
  year = {2009}
}"""
PRESET: dict[str, Any] = {
    "model": "resnet18-gn",
    "partition": {"kind": "dirichlet", "alpha": 0.1, "clients": 100},
    "rounds": 800,
    "participation": 0.1,
    "epochs": 5,
    "batch_size": 50,
    "lr": 0.1,
    "lr_decay": 0.998,
    "weight_decay": 1e-3,
    "clip": 10.0,
    "augment": "crop-flip",
}


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
                raise DataError(f"{path} lacks {', '.join(missing)}", hint=draft.source.import_hint)
            images, labels = zip(*(batches[name] for name in files), strict=True)
            draft.save_split(split, np.concatenate(images), np.concatenate(labels))

    return read


CIFAR10 = Source(
    DatasetCard(
        name="cifar10",
        title="CIFAR-10: 32×32 colour images of ten objects",
        classes=10,
        shape=(3, 32, 32),
        train=50_000,
        test=10_000,
        home=Hub("uoft-cs/cifar10", image="img", label="label"),
        licence="none stated by its authors; cite the report",
        citation=CITATION,
        mean=(0.491, 0.482, 0.447),
        std=(0.247, 0.243, 0.262),
        checksums={
            "cifar-10-python.tar.gz": "md5:c58f30108f718f92721af3b95e74349a",
            "cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530",
            "data_batch_1.bin": "md5:5dd7e06a14cb22eb9f671a540d1b7c25",
            "data_batch_2.bin": "md5:5ea93a67294ea407fff1d09f752e9692",
            "data_batch_3.bin": "md5:942cd6a4bcdd0dd3c604fbe906cb4421",
            "data_batch_4.bin": "md5:ae636b3ba5c66a11e91e8cb52e771fcb",
            "data_batch_5.bin": "md5:53f37980c15c3d472c316c40844f3f0d",
            "test_batch.bin": "md5:803d5f7f4d78ea53de84dbe85f74fb6d",
        },
        preset=PRESET,
    ),
    open=open_folder,
    is_complete=is_complete,
    convert=convert(
        binary={"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]},
        pickled={"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]},
        label_bytes=1,
        label_key="labels",
    ),
    fetch=fetch_from_hub,
    accepts="cifar-10-python.tar.gz, cifar-10-binary.tar.gz or the folder either unpacks to",
)

CIFAR100 = Source(
    DatasetCard(
        name="cifar100",
        title="CIFAR-100: 32×32 colour images of a hundred objects",
        classes=100,
        shape=(3, 32, 32),
        train=50_000,
        test=10_000,
        home=Hub("uoft-cs/cifar100", image="img", label="fine_label"),
        licence="none stated by its authors; cite the report",
        citation=CITATION,
        mean=(0.5071, 0.4867, 0.4408),
        std=(0.2675, 0.2565, 0.2761),
        checksums={
            "cifar-100-python.tar.gz": "md5:eb9058c3a382ffc7106e4002c42a8d85",
            "cifar-100-binary.tar.gz": "md5:03b5dce01913d631647c71ecec9e9cb8",
        },
        preset={**PRESET, "epochs": 2, "batch_size": 20},
        notes="Fine labels; the twenty superclasses are not used by the papers.",
    ),
    open=open_folder,
    is_complete=is_complete,
    convert=convert(
        binary={"train": ["train.bin"], "test": ["test.bin"]},
        pickled={"train": ["train"], "test": ["test"]},
        label_bytes=2,
        label_key="fine_labels",
    ),
    fetch=fetch_from_hub,
    accepts="cifar-100-python.tar.gz, cifar-100-binary.tar.gz or the folder either unpacks to",
)
