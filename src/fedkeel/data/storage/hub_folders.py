"""Folders of pictures as the library `datasets` reads them: refuse what it would leave out or read twice."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedkeel.data.storage.download import SAVED, place_of
from fedkeel.errors import DataError

SPLITS = ("train", "training", "test", "testing", "eval", "evaluation", "valid", "validation", "val", "dev")
SPLIT = re.compile(rf"(^|.*[-._ 0-9])({'|'.join(SPLITS)})([-._ 0-9].*|$)", re.DOTALL)
"""The names of folders and files from which the library guesses a split; capital letters count."""
READER = "imagefolder"
RENAME = (
    "the library datasets guesses what a picture is for from names such as train, test_1 or val-x: rename those that "
    "mean something else"
)


def check_folder(found: Any, repository: str) -> None:
    """Refuse a folder of pictures some of which no split holds, or two; what its tables choose is trusted."""
    place = Path(os.path.abspath(place_of(repository)))
    if not place.is_dir() or any((place / file).is_file() for file in SAVED) or chooses_files(place):
        return
    splits: Mapping[str, Any] = found if hasattr(found, "keys") else {"train": found}
    here = sorted(map(name_file, walk_pictures(place)))
    if not here:
        return
    if kinds := sorted({str(rows.info.builder_name) for rows in splits.values()} - {READER}):
        if not any(holds_pictures(rows) for rows in splits.values()):
            raise DataError(
                f"{repository} holds more files of another kind ({kinds[0]}) than pictures.",
                "the library datasets reads the most frequent kind alone: put the others elsewhere",
            )
        return
    split_of: dict[str, str] = {}
    for split, rows in splits.items():
        column = next(name for name, kind in rows.features.items() if type(kind).__name__ == "Image")
        for file in map(name_file, filter(None, list_files(rows, column))):
            if file in split_of:
                raise DataError(f"{file} would be read twice, for {split_of[file]} and {split}.", RENAME)
            split_of[file] = split
    top = os.path.realpath(place)
    for file in here:
        if any(one.lower() in SPLITS and one not in SPLITS for one in Path(os.path.relpath(file, top)).parts[:-2]):
            raise DataError(f"{file} lies in a folder of a split that has capital letters.", "name it train or test")
    left = [file for file in here if file not in split_of]
    if left:
        raise DataError(
            f"{len(left)} of {len(here)} pictures of {repository} would be left out, such as {left[0]}.",
            explain(left[0], top),
        )
    if not any(type(kind).__name__ == "ClassLabel" for rows in splits.values() for kind in rows.features.values()):
        raise DataError(
            f"the pictures of {repository} lie in no two folders of classes at the same depth.",
            f"{place}/CLASS/picture.png, or {place}/OWNER/CLASS/picture.png for all pictures",
        )


def explain(file: str, top: str) -> str:
    """Why the library leaves a picture out, as a hint."""
    name = os.path.relpath(file, top)
    if not os.path.exists(file):
        return "this is a link to a file that is not there: take it away"
    if name.startswith(".."):
        return "the library datasets follows no link to a folder: put the folder itself there"
    if any(part.startswith("__") for part in Path(name).parts):
        return "the library datasets reads no folder whose name begins with __: rename it"
    if (suffix := os.path.splitext(name)[1]) not in (suffix.lower(), suffix.upper()):
        return f"the library datasets reads {suffix.lower()} and {suffix.upper()}, but not {suffix}: rename it"
    return RENAME


def chooses_files(place: Path) -> bool:
    """Whether a table, or the head of a README, says which files there are."""
    readme = place / "README.md"
    told = readme.is_file() and "data_files" in readme.read_text(encoding="utf-8", errors="replace")
    return told or any(file.is_file() for file in place.rglob("metadata.*"))


def walk_pictures(place: Path) -> Iterator[str]:
    """All pictures that are not hidden, also behind links to folders, each folder once."""
    from datasets.packaged_modules.imagefolder.imagefolder import ImageFolder

    seen = set()
    for top, folders, files in os.walk(place, followlinks=True):
        seen.add(os.path.realpath(top))
        folders[:] = [
            one for one in folders
            if not one.startswith(".") and os.path.realpath(os.path.join(top, one)) not in seen
        ]  # fmt: skip
        for file in files:
            if not file.startswith(".") and os.path.splitext(file)[1].lower() in ImageFolder.EXTENSIONS:
                yield os.path.join(top, file)


def list_files(rows: Any, column: str) -> list[str | None]:
    """The file of each picture of a split; None of one that is in none."""
    found = rows.cast_column(column, type(rows.features[column])(decode=False))[column]
    return [one["path"] for one in found]


def name_file(file: str) -> str:
    """A file by the folder that it truly lies in; the library follows links to the whole folder, we those in it."""
    top, name = os.path.split(file)
    return os.path.join(os.path.realpath(top), name)


def holds_pictures(rows: Any) -> bool:
    return any(type(kind).__name__ == "Image" for kind in rows.features.values())
