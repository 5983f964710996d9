"""CIFAR-10-C and CIFAR-100-C: the test images under 19 corruptions at five severities.

Published are one array of 50 000 images for each corruption, severity s in rows 10 000 (s - 1) … 10 000 s, and one
array of labels, all made from the test set. There are no corrupted training images: training takes the clean ones of
CIFAR, which the partition `feature-shift` corrupts, and the test set is severity 3 of the fifteen corruptions of the
benchmark (the other four are meant for validation). `test_groups` is the corruption of each test image.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.dataset import Dataset, DatasetCard, Url
from fedkeel.data.datasets.cifar import CIFAR10, CIFAR100
from fedkeel.data.storage.archives import BLOCK, Room, basename, check_file, open_files
from fedkeel.data.storage.folder import Draft, damaged, open_array, open_folder
from fedkeel.data.storage.source import Source
from fedkeel.data.storage.web import fetch_from_url
from fedkeel.errors import DataError, require_known

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


@dataclass(frozen=True, eq=False)
class Joined:
    """Arrays one after another, as one array that is never copied together."""

    parts: Sequence[NDArray[Any]]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.parts[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self), *self.parts[0].shape[1:]

    @property
    def ndim(self) -> int:
        return self.parts[0].ndim

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        wanted = np.arange(len(self))[rows]
        part, row = np.divmod(wanted, len(self.parts[0]))
        taken = np.empty((*wanted.shape, *self.shape[1:]), self.dtype)
        for index in np.unique(part):
            taken[part == index] = self.parts[index][row[part == index]]
        return taken

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype)


def file_names() -> list[str]:
    return [f"{name}.npy" for name in (*CORRUPTIONS, *EXTRA)]


def is_complete(card: DatasetCard, folder: Path) -> bool:
    return all((folder / name).is_file() for name in [*file_names(), "labels.npy"])


def per_severity(card: DatasetCard) -> int:
    return card.test // len(CORRUPTIONS)


def published_bytes(card: DatasetCard) -> int:
    return len(file_names()) * SEVERITIES * per_severity(card) * int(np.prod(card.array_shape))


def open_images(card: DatasetCard, folder: Path, corruption: str, severity: int) -> NDArray[np.uint8]:
    """Map the test images under one corruption from the published array."""
    require_known(corruption, (*CORRUPTIONS, *EXTRA), "unknown corruption", "corruptions", DataError)
    if severity not in range(1, SEVERITIES + 1):
        raise DataError(f"severity must be 1 … {SEVERITIES}: {severity}", hint=f"papers use {SEVERITY}")
    count = per_severity(card)
    whole = open_array(folder / f"{corruption}.npy", np.uint8, SEVERITIES * count, card.array_shape)
    return whole[count * (severity - 1) : count * severity]


def read_labels(card: DatasetCard, folder: Path, severity: int) -> NDArray[np.int64]:
    """Read the labels, which are published as bytes and repeated for each severity."""
    count = per_severity(card)
    whole = np.array(open_array(folder / "labels.npy", np.uint8, SEVERITIES * count, ()), np.int64)
    if whole.max() >= card.classes:
        raise damaged(folder / "labels.npy", f"holds labels up to {whole.max()}, outside 0 … {card.classes - 1}")
    return whole[count * (severity - 1) : count * severity]


def make_opener(clean: Source) -> Any:
    """Clean training images from the set `clean`, corrupted test images from the folder."""

    def open_corrupted(card: DatasetCard, folder: Path, root: Path) -> Dataset:
        training = open_folder(clean.card, root / clean.card.name, root)
        images = Joined([open_images(card, folder, name, SEVERITY) for name in CORRUPTIONS])
        labels = np.tile(read_labels(card, folder, SEVERITY), len(CORRUPTIONS))
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
        raise DataError(f"{path} lacks {', '.join(missing)}", hint=draft.source.import_hint)
    if check:
        check_file(draft.folder / "labels.npy", draft.card.checksums)


CITATION = """@inproceedings{hendrycks2019benchmarking,
  author = {Hendrycks, Dan and Dietterich, Thomas},
  title = {Benchmarking Neural Network Robustness to Common Corruptions and Perturbations},
  booktitle = {International Conference on Learning Representations},
  year = {2019}
}"""
NOTES = (
    "SpecGradFilter states severity 3, 100 clients and 2–3 corruptions each, not where training images come from. "
    "Ours: the clean training images, corrupted by the partition `feature-shift` (twelve corruptions; frost, snow "
    "and motion blur exist as published test images only), labels iid; the test set is all fifteen published "
    "corruptions at severity 3."
)
PRESET = {
    "model": "resnet20-gn",
    "partition": {"kind": "feature-shift", "base": {"kind": "iid", "clients": 100}, "severity": SEVERITY},
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


def make_source(clean: Source, name: str, title: str, record: int, archive: str, checksums: dict[str, str]) -> Source:
    return Source(
        DatasetCard(
            name=name,
            title=title,
            classes=clean.card.classes,
            shape=clean.card.shape,
            train=clean.card.train,
            test=len(CORRUPTIONS) * clean.card.test,
            home=Url(f"https://zenodo.org/records/{record}/files/{archive}?download=1", archive),
            licence="CC BY 4.0",
            citation=CITATION,
            mean=clean.card.mean,
            std=clean.card.std,
            checksums=checksums,
            preset=PRESET,
            notes=NOTES,
        ),
        open=make_opener(clean),
        is_complete=is_complete,
        convert=convert,
        fetch=fetch_from_url,
        accepts=f"{archive} or the folder it unpacks to",
        requires=clean.card.name,
        space=published_bytes,
    )


CIFAR10_C = make_source(
    CIFAR10,
    "cifar10-c",
    "CIFAR-10-C: CIFAR-10 under fifteen corruptions",
    2535967,
    "CIFAR-10-C.tar",
    {"CIFAR-10-C.tar": "md5:56bf5dcef84df0e2308c6dcbcbbd8499", "labels.npy": "md5:c439b113295ed5254878798ffe28fd54"},
)
CIFAR100_C = make_source(
    CIFAR100,
    "cifar100-c",
    "CIFAR-100-C: CIFAR-100 under fifteen corruptions",
    3555552,
    "CIFAR-100-C.tar",
    {"CIFAR-100-C.tar": "md5:11f0ed0f1191edbf9fa23466ae6021d3"},
)
