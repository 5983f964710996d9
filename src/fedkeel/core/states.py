"""States as safetensors files: written to a temporary name, synced, renamed. Nothing is ever pickled."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedkeel.core.layout import Layout
from fedkeel.core.rule import State
from fedkeel.core.trees import Tree
from fedkeel.errors import NO_SPACE, FolderError, RunError
from fedkeel.text import in_one_line

Arrays = dict[str, NDArray[Any]]
BLANK = "0" * 8
MARK = b'{\\"check\\": \\"'  # as it stands in the file: JSON in a text of JSON
WINDOWS = os.name == "nt"
PRIVATE = 0o700
"""The mode of a folder that its owner alone may look into."""


class Damaged(Exception):
    """A file that cannot be read back completely."""


# ---- whole files ---------------------------------------------------------------------------------------------------
def write_atomically(path: Path, fill: Callable[[Path], Any], *, synced: bool = True, private: bool = False) -> None:
    """Call fill(temporary path), sync it and rename it: readers see the old file or the new one, never half.

    A `private` file, and a folder that is made for it, is its owner's alone.
    """
    refuse_device(path)
    temporary = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(PRIVATE if private else 0o777, parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)  # it may be a link, which would be written through
        temporary.touch(0o600 if private else 0o666, exist_ok=False)
        mode = stat.S_IMODE(temporary.stat().st_mode)  # others may read as the umask has it; safetensors allows nobody
        fill(temporary)
        if stat.S_IMODE(temporary.stat().st_mode) != mode:
            temporary.chmod(mode)
        if synced:
            sync(temporary)
        os.replace(temporary, path)
        if synced:
            sync(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if not isinstance(error, OSError | SafetensorError):
            raise
        full = not isinstance(error, OSError) or error.errno in NO_SPACE  # safetensors does not say why, but in words
        raise RunError(
            f"cannot write {path}: {in_one_line(error).rstrip('.')}",
            f"{'free some space' if full else 'let it be written'}, or choose another place; "
            "an unfinished run goes on with `fedkeel resume`, that of a federation with `flwr run`",
        ) from error


def refuse_device(path: Path) -> None:
    """Refuse what a file would take the place of: a device, a pipe, a link such as /dev/stdout."""
    if path.parent == Path("/dev") or (path.exists() and not path.is_file() and not path.is_dir()):
        raise RunError(f"cannot write {path}: it is a device or a pipe, not a file", "give the name of a file")


def write_text(path: Path, text: str, *, synced: bool = True) -> None:
    """Write a text whole; refuse one that holds a name of a file which is not UTF-8."""
    try:
        body = text.encode()
    except UnicodeEncodeError:
        raise FolderError(
            f"cannot write {path}: a name in it is not UTF-8.", "call files and folders by names in UTF-8"
        ) from None
    write_atomically(path, lambda temporary: temporary.write_bytes(body), synced=synced)


def beside(folder: Path, suffix: str) -> Path:
    """Return a file that lies beside a folder and is called like it; `.` and `..` have names of their own."""
    named = folder if folder.name not in ("", "..") else Path(os.path.abspath(folder))
    return named.with_name(f"{named.name}{suffix}")


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    if WINDOWS and path.is_dir():  # it opens no folder, and flushes only what may be written to
        return
    descriptor = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(path: Path, arrays: Arrays, facts: Mapping[str, Any], *, synced: bool = True, private: bool = False) -> None:
    """Write arrays and facts to one file. Its header holds a checksum of each array and one of the header itself."""
    header_facts = dict(facts) | {"sums": {name: checksum(array) for name, array in arrays.items()}}
    # one entry: safetensors writes several in an order that changes from process to process
    text = f'{{"check": "{BLANK}", {json.dumps(header_facts, sort_keys=True)[1:]}'

    def fill(temporary: Path) -> None:
        save_file(arrays, temporary, {"fedkeel": text})
        header = read_header(temporary)
        with temporary.open("r+b") as file:
            file.seek(header.index(MARK) + len(MARK))
            file.write(compute_check(header).encode())

    write_atomically(path, fill, synced=synced, private=private)


def read(path: Path, *, arrays: bool = True, prefix: str = "") -> tuple[Arrays, dict[str, Any]]:
    """Read what `write` wrote: all arrays, those under a prefix, or none. Whatever is returned has been checked.

    Files of older versions have one checksum, of all arrays together, and their facts no "check".
    """
    try:
        header = read_header(path)
        if MARK in header and stored_check(header) != compute_check(header):
            raise Damaged(f"{path.name} does not match its checksum")
        with safe_open(path, framework="np") as file:
            facts = json.loads((file.metadata() or {})["fedkeel"])
            names = list(file.keys())
            wanted = prefix if MARK in header else ""
            loaded = {name: file.get_tensor(name) for name in names if arrays and name.startswith(wanted)}
        if MARK in header:
            intact = all(checksum(array) == facts["sums"][name] for name, array in loaded.items())
        else:
            intact = not arrays or facts["checksum"] == checksum_of_all(loaded)
        if not intact:
            raise Damaged(f"{path.name} does not match its checksum")
        return {name: array for name, array in loaded.items() if name.startswith(prefix)}, facts
    except PermissionError as error:  # nothing is known to be wrong with it
        raise FolderError(f"cannot read {path}: {error.strerror}", "allow it to be read: nothing was changed") from None
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{path.name}: {in_one_line(error)}") from error


def read_header(path: Path) -> bytes:
    """Read the beginning of a safetensors file: the length of the header, and the header."""
    with path.open("rb") as file:
        head = file.read(8)
        size = min(int.from_bytes(head, "little"), os.fstat(file.fileno()).st_size)
        return head + file.read(size)


def stored_check(header: bytes) -> str | None:
    """Return the checksum that a header stores; None for a file of an older version."""
    at = header.find(MARK) + len(MARK)
    return header[at : at + len(BLANK)].decode(errors="replace") if MARK in header else None


def compute_check(header: bytes) -> str:
    """Compute the checksum of a header, with a blank in the place where it is stored."""
    at = header.index(MARK) + len(MARK)
    return f"{zlib.crc32(header[:at] + BLANK.encode() + header[at + len(BLANK) :]):08x}"


def checksum(array: NDArray[Any], before: int = 0) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, before)


def checksum_of_all(arrays: Arrays) -> int:
    total = 0
    for name in sorted(arrays):
        total = checksum(arrays[name], zlib.crc32(name.encode(), total))
    return total


# ---- states --------------------------------------------------------------------------------------------------------
def to_arrays(state: State, prefix: str) -> tuple[Arrays, dict[str, str]]:
    """Turn slots into arrays; return them with the layouts of those that are trees."""
    arrays: Arrays = {}
    layouts: dict[str, str] = {}
    for name, slot in state.items():
        tensor = slot.buffer if isinstance(slot, Tree) else slot
        arrays[prefix + name] = tensor.detach().cpu().contiguous().numpy()
        if isinstance(slot, Tree):
            layouts[name] = slot.layout.dumps()
    return arrays, layouts


def from_arrays(arrays: Arrays, layouts: Mapping[str, str], prefix: str, device: torch.device | str = "cpu") -> State:
    """Turn the arrays under a prefix back into the slots of a state."""
    state: State = {}
    for name, array in arrays.items():
        if name.startswith(prefix):
            slot, tensor = name.removeprefix(prefix), torch.from_numpy(array).to(device)
            state[slot] = Tree(tensor, Layout.loads(layouts[slot])) if slot in layouts else tensor
    return state
