"""Files the user already has: a folder, a tar or zip archive, or one file, read member by member in memory.

Nothing is unpacked to disk, so no name inside an archive can reach outside a folder. What a header states is checked
against the size of the data set before a byte is unpacked.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import math
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.storage.array_headers import read_header
from fedkeel.errors import DataError
from fedkeel.text import byte_size

BLOCK = 1 << 20
FREE, RATIO = 64 << 20, 100
"""Bytes that any archive may unpack to, and how many times its own size a larger one may."""
OPENERS: dict[bytes, Callable[[Path], IO[bytes]]] = {
    b"\x1f\x8b": lambda path: cast(IO[bytes], gzip.open(path)),
    b"BZh": lambda path: cast(IO[bytes], bz2.open(path)),
    b"\xfd7zXZ\x00": lambda path: cast(IO[bytes], lzma.open(path)),
}
"""How packed files start, and what unpacks them."""
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile, lzma.LZMAError, EOFError)
MACS_OWN = "._"
"""What macOS calls the files that it puts beside others, in folders and in archives, for itself: `._00001.jpg`."""
AGAIN = "fetch the file again; check=False (--no-check) takes it as it is"


@contextmanager
def reading(path: Path | str, *faults: type[Exception]) -> Iterator[None]:
    """Turn the many ways in which a file says that it is cut off, an archive's or `faults`, into one line."""
    refused = faults or DAMAGED
    try:
        yield
    except refused as error:
        raise DataError(f"{path} is damaged or cut off: {error}", hint="fetch the file again") from error


class Room:
    """How much may be unpacked from one path: `most` bytes in all, `each` from one file."""

    def __init__(self, path: Path, most: int, each: int | None = None):
        self.path, self.left, self.each = path, most, min(most, each or most)

    def take(self, name: str, size: int, packed: int) -> None:
        """Refuse a file by the size that its header states."""
        self.left -= size
        if size > self.each or self.left < 0 or (size > FREE and size > RATIO * packed):
            raise too_large(f"{name[:80]} in {self.path}", size)


def too_large(what: str, size: int) -> DataError:
    return DataError(
        f"{what} states {byte_size(size)}, more than this data set may have: nothing of it was unpacked",
        hint="fetch the published file",
    )


def read_files(path: Path, wanted: Callable[[str], bool], room: Room) -> Iterator[tuple[str, bytes]]:
    """Yield name (relative, with forward slashes) and content of each wanted file, in the archive's own order."""
    for name, file in open_files(path, wanted, room):
        with reading(path):
            yield name, file.read()


def open_files(path: Path, wanted: Callable[[str], bool], room: Room) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield each wanted file by name, open for reading until the next one is asked for."""

    def asked(name: str) -> bool:
        return not basename(name).startswith(MACS_OWN) and wanted(name)

    with reading(path):
        if path.is_dir():
            for place in sorted(path.rglob("*")):
                name = place.relative_to(path).as_posix()
                if asked(name) and place.is_file():
                    room.take(name, place.stat().st_size, place.stat().st_size)
                    with place.open("rb") as file:
                        yield name, file
        elif zipfile.is_zipfile(path):
            with ZipArchive(path) as archive:
                for entry in archive.infolist():
                    if not entry.is_dir() and asked(entry.filename):
                        room.take(entry.filename, entry.file_size, entry.compress_size)
                        with archive.open(entry) as inner:
                            yield entry.filename, inner
        elif is_tar(path):
            with Bounded(path, room) as bounded, tarfile.open(fileobj=cast(IO[bytes], bounded), mode="r:") as tar:
                for member in tar:
                    if member.isfile() and asked(member.name):
                        room.take(member.name, member.size, path.stat().st_size)
                        content = tar.extractfile(member)
                        assert content is not None
                        yield member.name, content
        elif asked(path.name):
            room.take(path.name, path.stat().st_size, path.stat().st_size)
            with path.open("rb") as file:
                yield path.name, file


def list_names(path: Path, room: Room) -> list[str]:
    """The name of every file, none of which is opened."""
    names: list[str] = []

    def note(name: str) -> bool:
        names.append(name)
        return False

    for _ in open_files(path, note, room):
        pass
    return names


class ZipArchive(zipfile.ZipFile):
    """A zip archive for reading; what is encrypted, or packed in a way that Python does not know, is a bad one."""

    def __init__(self, path: Path):
        with unpackable():
            super().__init__(path)

    def open(self, *given: Any, **named: Any) -> IO[bytes]:
        with unpackable():
            return super().open(*given, **named)


@contextmanager
def unpackable() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # zipfile has no error of its own for it
        raise zipfile.BadZipFile(str(error)) from error


def is_tar(path: Path) -> bool:
    # a .tar.gz that is cut off still starts like one, and must be called damaged rather than unknown
    if path.name.endswith((".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")):
        return True
    try:  # not tarfile.is_tarfile, which reads the first header whole, however long it says it is
        with open_unpacked(path) as file:
            return file.read(512)[257:262] == b"ustar"
    except (*DAMAGED, OSError):
        return False


def open_unpacked(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        start = file.read(6)
    return next((opener(path) for magic, opener in OPENERS.items() if start.startswith(magic)), None) or path.open("rb")


class Bounded(io.RawIOBase):
    """A tar archive, unpacked as it is read, up to what it may hold; a header that is longer is not read at all."""

    def __init__(self, path: Path, room: Room):
        self.path, self.file = path, open_unpacked(path)
        self.most = min(4 * room.left + FREE, max(FREE, RATIO * path.stat().st_size))

    def reach(self, end: int) -> None:
        if end > self.most:
            raise too_large(str(self.path), end)

    def seek(self, offset: int, whence: int = 0) -> int:
        assert whence == 0, "tarfile seeks from the start"
        self.reach(offset)
        return self._try(self.file.seek, offset)

    def tell(self) -> int:
        return self.file.tell()

    def read(self, size: int = -1) -> bytes:
        self.reach(self.file.tell() + max(size, 0))
        return self._try(self.file.read, size)

    def _try(self, act: Callable[[int], Any], number: int) -> Any:
        try:
            return act(number)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise tarfile.ReadError(str(error)) from error

    def close(self) -> None:
        self.file.close()
        super().close()


def unzip(name: str, content: bytes, most: int) -> bytes:
    """Unpack a gzip file of at most `most` bytes."""
    with reading(name), gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        raw = file.read(most + 1)
    if len(raw) > most:
        raise too_large(name, len(raw))
    return raw


def read_array(name: str, file: IO[bytes], most: int) -> NDArray[Any]:
    """Read an array in numpy's format after checking its type and size in the header; never one of objects."""
    with reading(name, ValueError):
        shape, fortran, dtype = read_header(file)
    size = math.prod(shape) * dtype.itemsize
    if size > most:
        raise too_large(name, size)
    content = file.read(size)
    if len(content) < size:
        raise DataError(f"{name} is damaged or cut off: {len(content)} of {size} bytes", hint="fetch the file again")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")


def basename(name: str) -> str:
    return PurePosixPath(name).name


def check_file(path: Path, checksums: Mapping[str, str]) -> None:
    """Compare a file whose name has a published checksum with it; other files are judged by their content."""
    if path.name in checksums and path.is_file():
        with path.open("rb") as file:
            check_content(str(path), file, checksums[path.name])


def check_bytes(name: str, content: bytes, checksums: Mapping[str, str]) -> None:
    if basename(name) in checksums:
        check_content(name, io.BytesIO(content), checksums[basename(name)])


def check_content(name: str, file: io.BufferedReader | io.BytesIO, published: str) -> None:
    algorithm, expected = published.split(":")
    total = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    if (actual := total.hexdigest()) != expected:
        raise DataError(f"{name} has {algorithm} {actual}, not the published {expected}", hint=AGAIN)
