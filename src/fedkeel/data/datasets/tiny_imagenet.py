"""Tiny-ImageNet: 200 classes of ImageNet at 64×64, 500 training and 50 validation images of each.

The published archive has labels for training and validation images only, so the validation images are the test set, as
in the papers. Classes are numbered in the order of their WordNet identifiers, images come in the order of class and
number.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedkeel.data.dataset import DatasetCard, Hub
from fedkeel.data.storage.archives import Room, read_files
from fedkeel.data.storage.download import fetch_from_hub
from fedkeel.data.storage.folder import Draft, is_complete, open_folder
from fedkeel.data.storage.pictures import decode_image
from fedkeel.data.storage.source import Source
from fedkeel.errors import DataError

CITATION = """@misc{le2015tiny,
  author = {Le, Ya and Yang, Xuan},
  title = {Tiny {ImageNet} Visual Recognition Challenge},
  howpublished = {CS 231N, Stanford University},
  year = {2015}
}"""
LICENCE = "ImageNet terms of access: research and education only"
PRESET = {
    "model": "resnet18-gn",
    "partition": {"kind": "dirichlet", "alpha": 0.1, "clients": 100},
    "rounds": 300,
    "participation": 0.1,
    "epochs": 5,
    "batch_size": 50,
    "lr": 0.1,
    "lr_decay": 0.998,
    "weight_decay": 1e-3,
    "clip": 10.0,
    "augment": "crop-flip",
}
MOST = 512 << 20  # bytes of image files, at most: the published archive has 237 MB
TRAIN = re.compile(r"(?:^|/)train/(n\d{8})/images/n\d{8}_(\d+)\.JPEG$")
VALIDATION = re.compile(r"(?:^|/)val/images/(val_(\d+)\.JPEG)$")
ANNOTATIONS = re.compile(r"(?:^|/)val/val_annotations\.txt$")


def convert(per_class: tuple[int, int]) -> Callable[[Path, Draft, bool], None]:
    """The reader of the lowest-numbered `per_class` (training, validation) images of each class."""

    def read(path: Path, draft: Draft, check: bool) -> None:
        synset_of = read_synsets(path)
        classes = sorted(set(synset_of.values()))
        if len(classes) != draft.card.classes:
            raise DataError(f"{path} names {len(classes)} classes, not {draft.card.classes}")
        number = {synset: index for index, synset in enumerate(classes)}

        def train_place(name: str) -> tuple[int, int] | None:
            match = TRAIN.search(name)
            return (number.get(match[1], -1), int(match[2])) if match else None

        def test_place(name: str) -> tuple[int, int] | None:
            match = VALIDATION.search(name)
            return (number.get(synset_of.get(match[1], ""), -1), int(match[2])) if match else None

        for split, place, limit in (("train", train_place, per_class[0]), ("test", test_place, per_class[1])):
            write_split(path, draft, split, place, limit)

    return read


def read_synsets(path: Path) -> dict[str, str]:
    """The WordNet identifier of each validation image."""
    for name, content in read_files(path, lambda name: bool(ANNOTATIONS.search(name)), Room(path, MOST)):
        lines = [line.split("\t") for line in content.decode().splitlines()]
        if any(len(fields) < 2 for fields in lines):
            raise DataError(f"{name} has a line that names no class")
        return {fields[0]: fields[1] for fields in lines}
    raise DataError(f"{path} lacks val/val_annotations.txt", hint="give tiny-imagenet-200.zip or its folder")


def write_split(
    path: Path, draft: Draft, split: str, place: Callable[[str], tuple[int, int] | None], limit: int
) -> None:
    """Decode in the archive's order, write in the order of (class, number)."""
    files: dict[tuple[int, int], bytes] = {}
    for name, content in read_files(path, lambda name: place(name) is not None, Room(path, MOST)):
        at = place(name)
        if at is None or at[0] < 0:
            raise DataError(f"{name} belongs to no class of val_annotations.txt")
        files[at] = content
    taken: dict[int, int] = {}
    with draft.split(split) as writer:
        for at in sorted(files):
            taken[at[0]] = taken.get(at[0], 0) + 1
            if taken[at[0]] <= limit:
                image = decode_image(f"image {at[1]} of class {at[0]}", files[at], draft.card.shape)
                writer.write(np.asarray(image)[None], [at[0]])


TINY_IMAGENET = Source(
    DatasetCard(
        name="tiny-imagenet",
        title="Tiny-ImageNet: 64×64 colour images of 200 objects",
        classes=200,
        shape=(3, 64, 64),
        train=100_000,
        test=10_000,
        home=Hub("zh-plus/tiny-imagenet", image="image", label="label", splits=("train", "valid")),
        licence=LICENCE,
        citation=CITATION,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        checksums={"tiny-imagenet-200.zip": "md5:90528d7ca1a48142e341f4ef8d21d0de"},
        preset=PRESET,
        notes="Validation images are the test set. Normalised by 0.5 and 0.5 as FL-Simulator does (crop padding 8).",
    ),
    open=open_folder,
    is_complete=is_complete,
    convert=convert((500, 50)),
    fetch=fetch_from_hub,
    accepts="tiny-imagenet-200.zip or the folder it unpacks to",
)

TINY_IMAGENET_SUBSET = Source(
    DatasetCard(
        name="tiny-imagenet-subset",
        title="Tiny-ImageNet, a tenth of the training images: 50 and 10 of each class",
        classes=200,
        shape=(3, 64, 64),
        train=10_000,
        test=2_000,
        home="a part of tiny-imagenet",
        licence=LICENCE,
        citation=CITATION,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        checksums={"tiny-imagenet-200.zip": "md5:90528d7ca1a48142e341f4ef8d21d0de"},
        preset=PRESET | {"partition": {"kind": "dirichlet", "alpha": 0.1, "clients": 20}, "participation": 0.5},
        notes="The lowest-numbered images of each class, for tests and short runs; no paper uses it.",
    ),
    open=open_folder,
    is_complete=is_complete,
    convert=convert((50, 10)),
    accepts="tiny-imagenet-200.zip or the folder it unpacks to, and keeps its lowest-numbered images",
)
