"""Files the user already has: a folder, a tar or zip archive, or one file, read member by member in memory.

Nothing is unpacked to disk, so no name inside an archive can reach outside a folder. Pickles go through `plain_pickle`,
which builds numpy arrays and plain containers and refuses every other name.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from fedkeel.errors import DataError

BLOCK = 1 << 20
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile, lzma.LZMAError, EOFError)
AGAIN = "fetch the file again; check=False (--no-check) takes it as it is"


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn the many ways in which an archive says it is cut off into one line."""
    try:
        yield
    except DAMAGED as error:
        raise DataError(f"{path} is damaged or cut off: {error}", hint="fetch the file again") from error


def entries(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Name (relative, with forward slashes) and content of each wanted file, in the archive's own order."""
    for name, file in streams(path, wanted):
        with reading(path):
            yield name, file.read()


def streams(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, IO[bytes]]]:
    """The same, as files open for reading until the next one is asked for."""
    with reading(path):
        if path.is_dir():
            for place in sorted(path.rglob("*")):
                name = place.relative_to(path).as_posix()
                if wanted(name) and place.is_file():
                    with place.open("rb") as file:
                        yield name, file
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for entry in archive.infolist():
                    if not entry.is_dir() and wanted(entry.filename):
                        with archive.open(entry) as file:
                            yield entry.filename, file
        elif is_tar(path):
            with tarfile.open(path) as tar:
                for member in tar:
                    content = tar.extractfile(member) if member.isfile() and wanted(member.name) else None
                    if content is not None:
                        yield member.name, content
        elif wanted(path.name):
            with path.open("rb") as file:
                yield path.name, file


def is_tar(path: Path) -> bool:
    # a .tar.gz that is cut off still starts like one, and must be called damaged rather than unknown
    return tarfile.is_tarfile(path) or path.name.endswith((".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2"))


def basename(name: str) -> str:
    return PurePosixPath(name).name


def digest(path: Path, algorithm: str = "md5") -> str:
    total = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            total.update(block)
    return total.hexdigest()


def check_file(path: Path, checksums: Mapping[str, str]) -> None:
    """Compare a file whose name has a published checksum with it; other files are judged by their content."""
    if (published := checksums.get(path.name)) is not None and path.is_file():
        algorithm, expected = published.split(":")
        compare(str(path), digest(path, algorithm), expected, algorithm)


def check_bytes(name: str, content: bytes, checksums: Mapping[str, str]) -> None:
    if (published := checksums.get(basename(name))) is not None:
        algorithm, expected = published.split(":")
        found = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
        compare(name, found, expected, algorithm)


def compare(name: str, found: str, expected: str, algorithm: str) -> None:
    if found != expected:
        raise DataError(f"{name} has {algorithm} {found}, not the published {expected}", hint=AGAIN)


class PlainUnpickler(pickle.Unpickler):
    """Numpy arrays, bytes, strings, numbers and containers. Any other name in the pickle is refused, never imported."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return np.ndarray.__reduce__(np.empty(0))[0]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):
            return latin1
        raise DataError(
            f"the pickle names {module}.{name}, which is neither an array nor a plain container",
            hint="only the published CIFAR pickles are read; the binary form works too",
        )


def latin1(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes into a pickle of protocol 2."""
    if encoding != "latin1":
        raise DataError(f"the pickle encodes bytes as {encoding!r}, not latin1")
    return text.encode("latin1")


def plain_pickle(name: str, content: bytes) -> Any:
    try:
        return PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        raise DataError(f"{name} is damaged or cut off: {error}", hint="fetch the file again") from error
