"""States as safetensors files: written to a temporary name, synced, renamed. Nothing is ever pickled."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedkeel.errors import RunError
from fedkeel.layout import Layout
from fedkeel.rule import State
from fedkeel.trees import Tree

Arrays = dict[str, NDArray[Any]]


class Damaged(Exception):
    """A file that cannot be read back whole."""


# ---- whole files ---------------------------------------------------------------------------------------------------
def write_whole(path: Path, fill: Callable[[Path], Any], *, synced: bool = True) -> None:
    """Call fill(temporary path), sync it and rename it: readers see the old file or the new one, never half."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)  # it may be a link, which would be written through
        fill(temporary)
        if synced:
            sync(temporary)
        os.replace(temporary, path)
        if synced:
            sync(path.parent)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RunError(
            f"cannot write {path}: {reason.rstrip('.')}",
            "free some space or choose another folder, then `fedkeel resume`",
        ) from error


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, reach the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(path: Path, arrays: Arrays, facts: Mapping[str, Any], *, synced: bool = True) -> None:
    """Arrays and facts in one file, with a checksum of the arrays."""
    # one entry: safetensors writes several in an order that changes from process to process
    text = json.dumps(dict(facts) | {"checksum": checksum(arrays)}, sort_keys=True)
    write_whole(path, lambda temporary: save_file(arrays, temporary, {"fedkeel": text}), synced=synced)


def read(path: Path, *, arrays: bool = True, prefix: str = "") -> tuple[Arrays, dict[str, Any]]:
    """What `write` wrote; the arrays under a prefix only, or none. All of them together are checked."""
    try:
        with safe_open(path, framework="np") as file:
            facts = json.loads((file.metadata() or {})["fedkeel"])
            names = list(file.keys())
            found = {name: file.get_tensor(name) for name in names if arrays and name.startswith(prefix)}
        if arrays and len(found) == len(names) and checksum(found) != facts["checksum"]:
            raise Damaged(f"{path.name} does not match its checksum")
        return found, facts
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise Damaged(f"{path.name}: {error}") from error


def checksum(arrays: Arrays) -> int:
    total = 0
    for name in sorted(arrays):
        total = zlib.crc32(name.encode(), total)
        total = zlib.crc32(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data, total)
    return total


# ---- states --------------------------------------------------------------------------------------------------------
def split(state: State, prefix: str) -> tuple[Arrays, dict[str, str]]:
    """Slots as arrays, and the layouts of those that are trees."""
    arrays: Arrays = {}
    layouts: dict[str, str] = {}
    for name, slot in state.items():
        tensor = slot.buffer if isinstance(slot, Tree) else slot
        arrays[prefix + name] = tensor.detach().cpu().contiguous().numpy()
        if isinstance(slot, Tree):
            layouts[name] = slot.layout.dumps()
    return arrays, layouts


def join(arrays: Arrays, layouts: Mapping[str, str], prefix: str, device: torch.device | str = "cpu") -> State:
    """The slots under a prefix, back in a state."""
    state: State = {}
    for name, array in arrays.items():
        if name.startswith(prefix):
            slot, tensor = name.removeprefix(prefix), torch.from_numpy(array).to(device)
            state[slot] = Tree(tensor, Layout.loads(layouts[slot])) if slot in layouts else tensor
    return state


def bytes_of(state: State) -> int:
    return sum((slot.buffer if isinstance(slot, Tree) else slot).nbytes for slot in state.values())
