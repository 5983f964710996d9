"""Whose a picture of a set by its name is: what a column says, or the folder that it lies in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedkeel.data.storage.download import place_of
from fedkeel.data.storage.hub_folders import SPLIT, SPLITS, list_files
from fedkeel.errors import DataError, require_known

FOLDER = "folder"
"""`group=folder`: in `OWNER/CLASS/picture.png` the owner, where no column is called so."""
LEAVE_OUT = "leave them out: load it with datasets, .filter() it, save_to_disk(FOLDER), and name hf:FOLDER"


def find_owners(splits: Mapping[str, Any], column: str | None, image: str, repository: str) -> dict[str, list[Any]]:
    """Whose each picture of each split is; empty where nobody asks."""
    place, above = Path(place_of(repository)), dict[str, tuple[str, ...]]()
    found: dict[str, list[Any]] = {name: [] for name in splits}
    if column is None:
        return found
    for name, rows in splits.items():
        if column == FOLDER and FOLDER not in rows.column_names and place.is_dir():
            found[name] = [read_owner(file, place, above) for file in list_files(rows, image)]
        else:
            require_known(column, rows.column_names, f"{repository} has no column", "columns", DataError)
            found[name] = [trim(owner) for owner in rows[column]]
    return found


def read_owner(file: str | None, place: Path, above: dict[str, tuple[str, ...]]) -> str:
    """The folder above that of the class; `above` keeps where each owner's folder lies, which is one place."""
    path, top = Path(file or "").absolute(), place.absolute()
    if not path.is_relative_to(top):  # the library has followed a link
        path, top = path.resolve(), top.resolve()
    folders = path.relative_to(top).parts[:-2] if path.is_relative_to(top) else ()
    if not folders or folders[-1].lower() in SPLITS or SPLIT.match(folders[-1]):
        raise DataError(
            f"{file or 'a picture'} lies in no folder of an owner.",
            f"{place}/OWNER/CLASS/picture.png, or {place}/train/OWNER/CLASS/picture.png with the same below test",
        )
    *before, owner = (one for one in folders if not SPLIT.match(one))
    other = above.setdefault(owner, tuple(before))
    if other != tuple(before):
        first, second = ("/".join((*one, owner)) for one in (other, before))
        raise DataError(
            f"two folders of {place} would be one owner: {first} and {second}.",
            "give each owner a name of its own, such as " + "-".join((*before, owner)),
        )
    return owner


def number_owners(
    splits: Mapping[str, Any], owned: Mapping[str, Sequence[Any]], column: str, repository: str
) -> tuple[dict[str, int], list[str]]:
    """Each owner's place, and the names in this order: numbers and classes as they follow, words by the alphabet."""
    given = [owner for owners in owned.values() for owner in owners]
    classes = getattr(splits["train"].features.get(column), "names", None)
    if missing := sum(is_missing(owner) or (bool(classes) and owner < 0) for owner in given):
        raise DataError(f"column {column} of {repository} names no owner in {missing} of {len(given)} rows.", LEAVE_OUT)
    found = {str(owner): owner for owner in given}
    numbers = all(isinstance(owner, int | float) for owner in found.values())
    words = sorted(found, key=found.__getitem__ if numbers else None)
    return {word: place for place, word in enumerate(words)}, [classes[int(one)] for one in words] if classes else words


def trim(value: Any) -> Any:
    """A word without spaces at its ends; anything else as it is."""
    return value.strip() if isinstance(value, str) else value


def is_missing(value: Any) -> bool:
    return value is None or value == "" or bool(value != value)
