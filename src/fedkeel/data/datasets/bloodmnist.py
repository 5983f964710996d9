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

from fedkeel.data.dataset import DatasetCard, Url
from fedkeel.data.storage.archives import read_array, reading
from fedkeel.data.storage.folder import Draft, is_complete, open_folder
from fedkeel.data.storage.source import Source
from fedkeel.data.storage.web import fetch_from_url
from fedkeel.errors import DataError


def convert(path: Path, draft: Draft, check: bool) -> None:
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} is not a whole numpy archive", hint=draft.source.import_hint)
    with reading(path), zipfile.ZipFile(path) as archive:
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


BLOODMNIST = Source(
    DatasetCard(
        name="bloodmnist",
        title="BloodMNIST: blood cells under the microscope, eight kinds",
        classes=8,
        shape=(3, 28, 28),
        train=11_959,
        test=3_421,
        home=Url("https://zenodo.org/records/10519652/files/bloodmnist.npz?download=1", "bloodmnist.npz"),
        licence="CC BY 4.0",
        citation="""@article{yang2023medmnist,
  author = {Yang, Jiancheng and Shi, Rui and Wei, Donglai and Liu, Zequan and Zhao, Lin and Ke, Bilian and
            Pfister, Hanspeter and Ni, Bingbing},
  title = {{MedMNIST} v2: a large-scale lightweight benchmark for 2D and 3D biomedical image classification},
  journal = {Scientific Data},
  volume = {10},
  number = {41},
  year = {2023}
}""",
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        checksums={"bloodmnist.npz": "md5:7053d0359d879ad8a5505303e11de1dc"},
        preset={
            "model": "resnet20-gn",
            "partition": {"kind": "dirichlet", "alpha": 0.1, "clients": 100},
            "rounds": 300,
            "participation": 0.1,
            "epochs": 5,
            "batch_size": 50,
            "lr": 0.1,
            "lr_decay": 0.998,
            "weight_decay": 1e-3,
            "clip": 10.0,
            "augment": "none",
        },
        notes="Validation part unused. Normalised by 0.5 and 0.5 as MedMNIST's examples do. SpecGradFilter names "
        "neither model nor sizes for it: ResNet-20 and its CIFAR protocol.",
    ),
    open=open_folder,
    is_complete=is_complete,
    convert=convert,
    fetch=fetch_from_url,
    accepts="bloodmnist.npz",
)
