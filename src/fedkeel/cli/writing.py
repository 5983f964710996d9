"""Files that a command is asked to write: what cannot be written is an error in one line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from fedkeel.errors import FolderError


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system refuses in this block is an error about the path that was asked for."""
    try:
        yield
    except OSError as error:
        raise FolderError(f"cannot write {path}: {error.strerror}", "choose another place") from error


def refuse_folder(file: Path, example: str) -> None:
    """The name of a file is needed, and this is a folder: refused before any work is done."""
    if file.is_dir():
        raise FolderError(f"{file} is a folder, and a file is to be written.", f"for example: {file / example}")
