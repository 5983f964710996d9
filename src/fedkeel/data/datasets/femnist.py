"""FEMNIST: handwritten digits and letters by writer, 62 classes, 28×28, black ink on white paper (LEAF).

Three forms are read. LEAF's JSON files, split by LEAF into train/ and test/: taken as they are. LEAF's JSON files
before the split, and the copy of all writers on the Hugging Face hub: split here by LEAF's rule, ⌊0.9 n⌋ (at least one)
of a writer's n samples, drawn by a key of the writer's name, are for training. Writers are numbered in the order of
their names. A writer with a single sample has it for training and no test sample; a writer without samples is no
client.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.datasets.cards import make_source
from fedkeel.data.datasets.leaf import read_users
from fedkeel.data.storage.download import BATCH, explain_errors, hub_of, open_split, stack_images
from fedkeel.data.storage.folder import Draft
from fedkeel.errors import DataError
from fedkeel.randomness import key, permutation

SHARE = 0.9
Writer = tuple[str, NDArray[np.uint8], NDArray[np.int64]]
Writers = dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]


def convert(path: Path, draft: Draft, check: bool) -> None:
    writers: dict[str, list[Writer]] = {"train": [], "test": [], "all": []}
    for part, name, x, y in read_users(path):
        if y:
            writers[part].append((name, read_pixels(name, x), read_labels(name, y)))
    if writers["all"] and (writers["train"] or writers["test"]):
        raise DataError(
            f"{path} holds split and unsplit files at once", hint="give LEAF's folder data, or data/all_data"
        )
    if writers["all"]:
        save_writers(draft, *split_writers(merge_writers(writers["all"])))
    elif writers["train"] and writers["test"]:
        save_writers(draft, merge_writers(writers["train"]), merge_writers(writers["test"]))
    else:
        raise DataError(f"{path} holds no LEAF files with users, or only half of a split")


def read_pixels(writer: str, x: Sequence[Any]) -> NDArray[np.uint8]:
    """LEAF divides by 255 and writes 784 numbers a sample, 1 for white."""
    try:
        values = np.array(x, np.float64).reshape(-1, 28, 28)
    except (ValueError, TypeError) as error:
        raise DataError(f"a sample of writer {writer!r} does not have 784 numbers") from error
    if len(values) != len(x) or not ((values >= 0) & (values <= 1)).all():
        raise DataError(f"the samples of writer {writer!r} are not {len(x)} times 784 numbers between 0 and 1")
    return np.rint(values * 255).astype(np.uint8)


def read_labels(writer: str, y: Sequence[Any]) -> NDArray[np.int64]:
    try:
        labels = np.array(y, np.float64)
    except (ValueError, TypeError):
        labels = np.full(1, np.nan)
    if labels.ndim != 1 or not (labels == np.rint(labels)).all():
        raise DataError(f"the labels of writer {writer!r} are not whole numbers")
    return labels.astype(np.int64)


def fetch(draft: Draft) -> None:
    """All writers from the hub, which has one split only."""
    hub, rows = hub_of(draft), open_split(draft, "train")
    writers: list[Writer] = []
    with explain_errors(draft, "train"):
        for batch in rows.iter(batch_size=BATCH):
            names, images = np.array(batch[hub.group]), stack_images(draft, batch[hub.image])
            labels = np.array(batch[hub.label], np.int64)
            writers += [(str(name), images[names == name], labels[names == name]) for name in np.unique(names)]
    save_writers(draft, *split_writers(merge_writers(writers)))


def merge_writers(pieces: Sequence[Writer]) -> Writers:
    """One entry for each writer, in the order of names; a writer may be spread over several files or batches."""
    by_name: dict[str, list[Writer]] = {}
    for piece in pieces:
        by_name.setdefault(piece[0], []).append(piece)
    return {
        name: (np.concatenate([p[1] for p in parts]), np.concatenate([p[2] for p in parts]))
        for name, parts in sorted(by_name.items())
    }


def split_writers(writers: Writers) -> tuple[Writers, Writers]:
    train: Writers = {}
    test: Writers = {}
    for name, (images, labels) in writers.items():
        order = permutation(key(0, "femnist", zlib.crc32(name.encode())), len(labels))
        count = max(1, int(SHARE * len(labels)))
        first, rest = np.sort(order[:count]), np.sort(order[count:])
        train[name] = images[first], labels[first]
        if len(rest):
            test[name] = images[rest], labels[rest]
    return train, test


def save_writers(draft: Draft, train: Writers, test: Writers) -> None:
    number = {name: index for index, name in enumerate(sorted(train.keys() | test.keys()))}
    for part, writers in (("train", train), ("test", test)):
        with draft.split(part) as writer:
            for name, (images, labels) in writers.items():
                writer.write(images, labels.tolist(), [number[name]] * len(labels))


FEMNIST = make_source("femnist", convert=convert, fetch=fetch)
