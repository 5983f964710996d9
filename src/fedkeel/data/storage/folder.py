"""The data folder: one sub-folder per data set, of memory-mapped arrays, filled as a whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray

from fedkeel.data.dataset import Dataset, DatasetCard
from fedkeel.data.storage.array_headers import read_header
from fedkeel.data.storage.source import Source
from fedkeel.errors import NO_SPACE, DataError
from fedkeel.text import byte_size, in_one_line

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many samples are done, and of how many (0: not known)."""

ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
DAY = 86_400  # seconds
TOO_MUCH = (*NO_SPACE, errno.EFBIG)


def data_root(root: Path | str | None = None) -> Path:
    """Where data live: the argument, else $FEDKEEL_DATA, else the user's cache folder."""
    return Path(root or os.environ.get("FEDKEEL_DATA") or platformdirs.user_cache_path("fedkeel")).expanduser()


def file_names(card: DatasetCard) -> tuple[str, ...]:
    groups = ("train_groups", "test_groups") if card.natural else ()
    return tuple(f"{name}.npy" for name in (*ARRAYS, *groups))


def is_complete(card: DatasetCard, folder: Path) -> bool:
    return all((folder / name).is_file() for name in file_names(card))


def open_folder(card: DatasetCard, folder: Path, root: Path) -> Dataset:
    """Map the arrays of a complete folder. Headers and labels are checked; images are not read."""
    train, test = (open_split(card, folder, split, getattr(card, split)) for split in ("train", "test"))
    owners, test_owners = (
        open_labels(folder / f"{split}_groups.npy", len(labels), None) if card.natural else None
        for split, (_, labels) in (("train", train), ("test", test))
    )
    return Dataset(card, *train, *test, owners, test_owners, root, remark_untested(card, owners, test_owners))


def open_split(card: DatasetCard, folder: Path, split: str, count: int = 0) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Map the inputs of a split, and read its labels; a count of 0 accepts any number of samples."""
    inputs = open_array(folder / f"{split}_images.npy", card.dtype, count, card.array_shape)
    return inputs, open_labels(folder / f"{split}_labels.npy", len(inputs), card.classes)


def remark_untested(
    card: DatasetCard, groups: NDArray[np.int64] | None, test_groups: NDArray[np.int64] | None
) -> tuple[str, ...]:
    """Count the natural clients that have training samples only; they stay clients."""
    if groups is None or test_groups is None:
        return ()
    owners = np.unique(groups)
    missing = len(np.setdiff1d(owners, test_groups))
    return (f"{missing} of {len(owners)} {card.natural}s have no test sample",) if missing else ()


def open_array(path: Path, dtype: Any, count: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """Map one array after checking what its header says. A count of 0 in the card accepts any number of samples."""
    try:
        with path.open("rb") as file:
            found, fortran, of = read_header(file)
            array = np.memmap(path, of, "r", file.tell(), found, "F" if fortran else "C")
    except (OSError, ValueError, EOFError) as error:
        raise damaged(path, f"cannot be read ({in_one_line(error)})") from error
    expected = (count or (len(array) if array.ndim else 0), *shape)
    if array.dtype != np.dtype(dtype) or array.shape != expected:
        raise damaged(path, f"holds {array.dtype} {array.shape}, not {np.dtype(dtype)} {expected}")
    return array


def open_labels(path: Path, count: int, classes: int | None) -> NDArray[np.int64]:
    """Labels (or groups, without an upper end) are small, and read whole so that their range is checked."""
    labels = np.array(open_array(path, np.int64, count, ()))
    if len(labels) and (labels.min() < 0 or (classes is not None and labels.max() >= classes)):
        raise damaged(path, f"holds labels {labels.min()} … {labels.max()}, outside 0 … {(classes or 0) - 1}")
    return labels


def damaged(path: Path, what: str) -> DataError:
    return DataError(f"{path} {what}", hint=f"delete the folder {path.parent} and fetch the data set again")


class ArrayWriter(AbstractContextManager["ArrayWriter"]):
    """A .npy file written row by row. A count of 0 in the shape takes as many rows as come.

    Not a memory map: on a full disk a write to a map ends the process, while a write to a file raises.
    """

    def __init__(self, path: Path, dtype: Any, shape: tuple[int, ...], progress: Progress | None = None):
        self.path, self.dtype, self.shape, self.progress = path, np.dtype(dtype), shape, progress
        self.rows = 0
        self.file = path.open("xb")
        self.write_header()

    def write_header(self) -> None:
        # numpy pads the header so that the number of rows can be written over later
        shape = (self.shape[0] or self.rows, *self.shape[1:])
        header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self.file, header)

    def write(self, rows: NDArray[Any]) -> None:
        if rows.shape[1:] != self.shape[1:] or rows.dtype != self.dtype:
            raise DataError(
                f"a sample of {self.path.stem} is {rows.dtype} {rows.shape[1:]}, not {self.dtype} {self.shape[1:]}"
            )
        if self.shape[0] and self.rows + len(rows) > self.shape[0]:
            raise DataError(f"the source has more than the {self.shape[0]} samples of {self.path.stem}")
        self.file.write(np.ascontiguousarray(rows).data)
        self.rows += len(rows)
        if self.progress is not None:
            self.progress(self.path.stem, self.rows, self.shape[0])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None and self.shape[0] not in (0, self.rows):
                raise DataError(f"the source has {self.rows} of the {self.shape[0]} samples of {self.path.stem}")
            if kind is None and not self.shape[0]:
                self.file.seek(0)
                self.write_header()
        finally:
            self.file.close()


class Draft:
    """A data set on its way into the data folder: arrays in a hidden folder beside their final place."""

    def __init__(self, source: Source, folder: Path, progress: Progress | None = None):
        self.source, self.card, self.folder, self.progress = source, source.card, folder, progress

    @property
    def most(self) -> int:
        """Bytes that the published files may unpack to: those of the arrays, in both forms that some sets have."""
        return 3 * needed_bytes(self.source) + (1 << 20)

    def array(self, name: str, dtype: Any, shape: tuple[int, ...]) -> ArrayWriter:
        return ArrayWriter(self.folder / f"{name}.npy", dtype, shape, self.progress)

    def save(self, name: str, values: NDArray[Any]) -> None:
        with self.array(name, values.dtype, values.shape) as file:
            file.write(values)

    def save_split(self, split: str, images: NDArray[Any], labels: NDArray[Any]) -> None:
        """Images and labels of "train" or "test", their number checked against the card."""
        count = getattr(self.card, split)
        for name, values in ((f"{split}_images", images), (f"{split}_labels", labels.astype(np.int64))):
            with self.array(name, values.dtype, (count, *values.shape[1:])) as file:
                file.write(values)

    def split(self, split: str) -> SplitWriter:
        return SplitWriter(self, split)


class SplitWriter(AbstractContextManager["SplitWriter"]):
    """Images written as they come; labels and groups, which are small, at the end."""

    def __init__(self, draft: Draft, split: str):
        self.draft, self.name = draft, split
        self.labels: list[int] = []
        self.groups: list[int] = []
        card = draft.card
        self.images = draft.array(f"{split}_images", card.dtype, (getattr(card, split), *card.array_shape))

    def write(self, images: NDArray[Any], labels: Sequence[int], groups: Sequence[int] = ()) -> None:
        self.images.write(images)
        self.labels.extend(labels)
        self.groups.extend(groups)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.images.__exit__(kind, error, at)
        if kind is None:
            self.draft.save(f"{self.name}_labels", np.array(self.labels, np.int64))
            if self.draft.card.natural:
                self.draft.save(f"{self.name}_groups", np.array(self.groups, np.int64))


@contextmanager
def drafting(source: Source, root: Path, progress: Progress | None = None) -> Iterator[Draft]:
    """Make a draft that becomes the data set's folder if the block ends well and it opens without fault.

    Every error within says what may be imported.
    """
    card, folder = source.card, None
    try:
        root.mkdir(parents=True, exist_ok=True)
        check_space(source, root)
        remove_stale(card, root)
        folder = Path(tempfile.mkdtemp(prefix=f".{card.folder}-", dir=root))
        inner = folder / card.folder
        inner.mkdir()
        yield Draft(source, inner, progress)
        source.open(card, inner, root)
        settle(inner, root / card.folder)
    except DataError as error:
        error.hint = error.hint or source.import_hint
        raise
    except OSError as error:
        if error.errno in TOO_MUCH:
            raise no_space(source, root) from error
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise DataError(
            f"{card.name} could not be put into {root}: {what}", hint="set FEDKEEL_DATA to a folder of yours"
        ) from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def remove_stale(card: DatasetCard, root: Path) -> None:
    """Remove the drafts of a process that was killed: nothing in them has been written for a day."""
    for draft in root.glob(f".{card.folder}-*"):
        with contextlib.suppress(FileNotFoundError):  # another process is at work there, or has just come to its end
            if time.time() - max(path.lstat().st_mtime for path in (draft, *draft.rglob("*"))) > DAY:
                shutil.rmtree(draft, ignore_errors=True)


def settle(draft: Path, place: Path) -> None:
    """Move a finished draft to its place; what lay there is kept until the new folder stands."""
    if place.exists():
        place.rename(draft.parent / "before")
    draft.rename(place)


def needed_bytes(source: Source) -> int:
    card = source.card
    if source.space is not None:
        return source.space(card)
    sample = int(np.prod(card.array_shape, dtype=np.int64)) * np.dtype(card.dtype).itemsize
    return (card.train + card.test) * (sample + 8)


def check_space(source: Source, root: Path) -> None:
    if shutil.disk_usage(root).free < needed_bytes(source):
        raise no_space(source, root)


def no_space(source: Source, root: Path) -> DataError:
    size = f", which needs {byte_size(needed_bytes(source))}" if needed_bytes(source) else ""
    return DataError(
        f"no space left in {root} for {source.card.name}{size}",
        hint="free some space, or set FEDKEEL_DATA to a folder on another disk",
    )
