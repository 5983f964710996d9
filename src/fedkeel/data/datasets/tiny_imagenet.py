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

from fedkeel.data.datasets.cards import make_source
from fedkeel.data.storage.archives import Room, read_files, reading
from fedkeel.data.storage.download import fetch_from_hub
from fedkeel.data.storage.folder import Draft
from fedkeel.data.storage.pictures import decode_image
from fedkeel.errors import DataError

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
        with reading(name, UnicodeDecodeError):
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


TINY_IMAGENET = make_source("tiny-imagenet", convert=convert((500, 50)), fetch=fetch_from_hub)
TINY_IMAGENET_SUBSET = make_source("tiny-imagenet-subset", convert=convert((50, 10)))
