"""CIFAR-10-C and CIFAR-100-C: the test images under 19 corruptions at five severities.

Published are one array of 50 000 images for each corruption, severity s in rows 10 000 (s - 1) … 10 000 s, and one
array of labels, all made from the test set. There are no corrupted training images: training takes the clean ones of
CIFAR, which the partition `feature-shift` corrupts, and the test set is severity 3 of the fifteen corruptions of the
benchmark (the other four are meant for validation). `test_groups` is the corruption of each test image.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.dataset import Dataset, DatasetCard, Joined
from fedkeel.data.datasets.cards import make_source
from fedkeel.data.datasets.cifar import CIFAR10, CIFAR100
from fedkeel.data.storage.archives import BLOCK, Room, basename, check_file, open_files
from fedkeel.data.storage.folder import Draft, damaged, open_array, open_folder
from fedkeel.data.storage.source import Source
from fedkeel.data.storage.web import fetch_from_url
from fedkeel.errors import DataError

CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
SEVERITIES = 5
SEVERITY = 3


def file_names() -> list[str]:
    return [f"{name}.npy" for name in (*CORRUPTIONS, *EXTRA)]


def is_complete(card: DatasetCard, folder: Path) -> bool:
    return all((folder / name).is_file() for name in [*file_names(), "labels.npy"])


def per_severity(card: DatasetCard) -> int:
    return card.test // len(CORRUPTIONS)


def published_bytes(card: DatasetCard) -> int:
    return len(file_names()) * SEVERITIES * per_severity(card) * int(np.prod(card.array_shape))


def open_images(card: DatasetCard, folder: Path, corruption: str) -> NDArray[np.uint8]:
    """Map the test images under one corruption from the published array."""
    count = per_severity(card)
    whole = open_array(folder / f"{corruption}.npy", np.uint8, SEVERITIES * count, card.array_shape)
    return whole[count * (SEVERITY - 1) : count * SEVERITY]


def read_labels(card: DatasetCard, folder: Path) -> NDArray[np.int64]:
    """Read the labels, which are published as bytes and repeated for each severity."""
    count = per_severity(card)
    whole = np.array(open_array(folder / "labels.npy", np.uint8, SEVERITIES * count, ()), np.int64)
    if whole.max() >= card.classes:
        raise damaged(folder / "labels.npy", f"holds labels up to {whole.max()}, outside 0 … {card.classes - 1}")
    return whole[count * (SEVERITY - 1) : count * SEVERITY]


def make_opener(clean: Source) -> Any:
    """Clean training images from the set `clean`, corrupted test images from the folder."""

    def open_corrupted(card: DatasetCard, folder: Path, root: Path) -> Dataset:
        training = open_folder(clean.card, root / clean.card.folder, root)
        images = Joined([open_images(card, folder, name) for name in CORRUPTIONS])
        labels = np.tile(read_labels(card, folder), len(CORRUPTIONS))
        groups = np.arange(len(CORRUPTIONS)).repeat(per_severity(card))
        return Dataset(
            card, training.train_images, training.train_labels, images, labels, test_groups=groups, root=root
        )

    return open_corrupted


def convert(path: Path, draft: Draft, check: bool) -> None:
    """Copy the published arrays; their headers are checked when the draft is opened."""
    wanted = {*file_names(), "labels.npy"}
    copied = set()
    room = Room(path, 2 * published_bytes(draft.card) + BLOCK)  # with the labels, and some room
    for name, file in open_files(path, lambda name: basename(name) in wanted, room):
        copied.add(basename(name))
        with (draft.folder / basename(name)).open("xb") as target:
            shutil.copyfileobj(file, target, BLOCK)
        if draft.progress is not None:
            draft.progress(basename(name), len(copied), len(wanted))
    if missing := sorted(wanted - copied):
        raise DataError(f"{path} lacks {', '.join(missing)}")
    if check:
        check_file(draft.folder / "labels.npy", draft.card.checksums)


def make_corrupted(name: str, clean: Source) -> Source:
    return make_source(
        name,
        open=make_opener(clean),
        is_complete=is_complete,
        convert=convert,
        fetch=fetch_from_url,
        space=published_bytes,
    )


CIFAR10_C = make_corrupted("cifar10-c", CIFAR10)
CIFAR100_C = make_corrupted("cifar100-c", CIFAR100)
