"""MNIST and Fashion-MNIST: 70 000 grey images of 28×28, published as four IDX files each.

An IDX file is a magic number (type of the numbers, number of axes), the length of each axis, and the numbers. The
checksums are those of the uncompressed files, so a copy compressed again is recognised too.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.dataset import DatasetCard, Hub
from fedkeel.data.storage.archives import Room, basename, check_bytes, read_files, unzip
from fedkeel.data.storage.download import fetch_from_hub
from fedkeel.data.storage.folder import Draft, is_complete, open_folder
from fedkeel.data.storage.source import Source
from fedkeel.errors import DataError

PREFIXES = {"train": "train", "test": "t10k"}
UNSIGNED_BYTES = 8
ACCEPTS = "the folder of train-images-idx3-ubyte.gz and its three companions, compressed or not"


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
        raise DataError(f"{path} lacks {', '.join(missing)}", hint=draft.source.import_hint)
    for split, (images, labels) in files.items():
        draft.save_split(split, arrays[images], arrays[labels])


def plain_name(name: str) -> str:
    """`train-images.idx3-ubyte.gz` and `train-images-idx3-ubyte` are the same file."""
    return basename(name).removesuffix(".gz").replace(".idx", "-idx")


def make_source(**facts: Any) -> Source:
    card = DatasetCard(classes=10, shape=(1, 28, 28), train=60_000, test=10_000, **facts)
    return Source(card, open_folder, is_complete, convert, fetch_from_hub, ACCEPTS)


MNIST = make_source(
    name="mnist",
    title="MNIST: handwritten digits",
    home=Hub("ylecun/mnist", image="image", label="label"),
    licence="none stated by its authors; often given as CC BY-SA 3.0",
    citation="""@article{lecun1998gradient,
  author = {LeCun, Yann and Bottou, L{\\'e}on and Bengio, Yoshua and Haffner, Patrick},
  title = {Gradient-based learning applied to document recognition},
  journal = {Proceedings of the IEEE},
  volume = {86},
  number = {11},
  pages = {2278--2324},
  year = {1998}
}""",
    mean=(0.1307,),
    std=(0.3081,),
    checksums={
        "train-images-idx3-ubyte": "md5:6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "md5:a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "md5:2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "md5:27ae3e4e09519cfbb04c329615203637",
    },
    preset={
        "model": "small-cnn",
        "partition": {"kind": "dirichlet", "alpha": 0.1, "clients": 100},
        "rounds": 100,
        "participation": 0.1,
        "epochs": 5,
        "batch_size": 50,
        "lr": 0.05,
        "augment": "none",
    },
    notes="Not used by the papers: normalised by its own mean and deviation; the preset is ours.",
)

FASHION_MNIST = make_source(
    name="fashion-mnist",
    title="Fashion-MNIST: grey images of clothes",
    home=Hub("zalando-datasets/fashion_mnist", image="image", label="label"),
    licence="MIT",
    citation="""@article{xiao2017fashion,
  author = {Xiao, Han and Rasul, Kashif and Vollgraf, Roland},
  title = {Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms},
  journal = {arXiv preprint arXiv:1708.07747},
  year = {2017}
}""",
    mean=(0.2860,),
    std=(0.3530,),
    checksums={
        "train-images-idx3-ubyte": "md5:f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "md5:9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "md5:8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "md5:15d484375f8d13e6eb1aabb0c3f46965",
    },
    preset={
        "model": "small-cnn",
        "partition": {"kind": "dirichlet", "alpha": 0.1, "clients": 10},
        "rounds": 10,
        "participation": 1.0,
        "epochs": 5,
        "batch_size": 256,
        "lr": 0.01,
        "augment": "none",
    },
    notes="The papers do not state a normalisation: its own mean and deviation. The preset is FedSCAM's study.",
)
