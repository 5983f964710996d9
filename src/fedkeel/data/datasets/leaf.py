"""The JSON files of the LEAF benchmark.

{"users": […], "num_samples": […], "user_data": {user: {"x": […], "y": […]}}}
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from fedkeel.data.storage.archives import Room, list_names, read_files, reading
from fedkeel.errors import DataError

FILE, WHOLE = 2 << 30, 64 << 30
"""Bytes of one file, and of all, at most: the 800 000 samples of FEMNIST are some 13 GB of text in 36 files."""


class User(NamedTuple):
    """One client of one file. `part` is "train", "test" or, where a file does not say, "all"."""

    part: str
    name: str
    x: list[Any]
    y: list[Any]


def read_users(path: Path) -> Iterator[User]:
    """Every client of every file, file by file: a whole FEMNIST does not fit into memory as JSON.

    LEAF leaves all its steps in one folder: of that folder the last one is read, train/ and test/. Of several unsplit
    ones none is known to be the one that is meant.
    """
    names = [name for name in list_names(path, Room(path, WHOLE)) if name.endswith(".json")]
    split = {"train", "test"} <= {*map(part_of, names)}
    chosen = {name for name in names if not split or part_of(name) != "all"}
    folders: dict[tuple[str, str], PurePosixPath] = {}
    for name, content in read_files(path, chosen.__contains__, Room(path, WHOLE, FILE)):
        with reading(name, ValueError, RecursionError):
            document = json.loads(content)
        users = document.get("user_data") if isinstance(document, dict) else None
        for user, data in users.items() if isinstance(users, dict) else ():
            x, y = (data.get(part) if isinstance(data, dict) else None for part in ("x", "y"))
            if not isinstance(x, list) or not isinstance(y, list):
                raise DataError(f"{name} has no samples 'x' and 'y' for user {user!r}")
            if len(x) != len(y):
                raise DataError(f"{name} has {len(x)} inputs and {len(y)} labels for user {user!r}")
            here = PurePosixPath(name).parent
            if (before := folders.setdefault((part_of(name), user), here)) != here:
                raise DataError(
                    f"{path} holds user {user!r} twice, in {before} and in {here}.",
                    "LEAF makes one folder from the other (sampled_data from all_data): give one of them",
                )
            yield User(part_of(name), user, x, y)


def part_of(name: str) -> str:
    """LEAF writes …/train/…_train_9.json and …/test/…_test_9.json once it has split the data."""
    for part in ("train", "test"):
        if f"{part}/" in name or f"_{part}_" in name:
            return part
    return "all"
