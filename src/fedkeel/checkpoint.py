"""States as safetensors files: written to a temporary name, synced, renamed. Nothing is ever pickled."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedkeel.errors import FolderError, RunError
from fedkeel.layout import Layout
from fedkeel.rule import State
from fedkeel.trees import Tree

FORMAT = 1
KEPT = 2  # the last two: one may be damaged


class Damaged(Exception):
    """A checkpoint that cannot be read back whole."""


def write_whole(path: Path, write: Any) -> None:
    """Call write(temporary path), sync it and rename it: readers see the old file or the new one, never half."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise RunError(
            f"cannot write {path}: {_reason(error)}", "free some space or choose another folder, then `fedkeel resume`"
        ) from error


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text.rstrip(".")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- states as flat dictionaries of arrays -------------------------------------------------------------------------
def flatten(state: State, prefix: str) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, str]]:
    """Slots as arrays, and the layouts of those that are trees."""
    arrays, layouts = {}, {}
    for name, slot in state.items():
        tensor = slot.buffer if isinstance(slot, Tree) else slot
        arrays[prefix + name] = tensor.detach().cpu().contiguous().numpy()
        if isinstance(slot, Tree):
            layouts[prefix + name] = slot.layout.dumps()
    return arrays, layouts


class Checkpoint:
    """The server's state, every client's that took part, and how many rounds are done."""

    def __init__(self, round: int, server: State, clients: Mapping[int, State]):
        self.round, self.server, self.clients = round, server, clients

    def save(self, path: Path, fingerprint: str) -> None:
        # the model by name, so that others can read it; other slots as flat buffers
        arrays = {f"model/{n}": leaf.detach().cpu().contiguous().numpy() for n, leaf in self.server["params"].items()}
        rest, layouts = flatten({n: s for n, s in self.server.items() if n != "params"}, "server/")
        arrays |= rest
        layouts["params"] = self.server["params"].layout.dumps()
        for client, state in self.clients.items():
            more, shapes = flatten(state, f"client/{client}/")
            arrays |= more
            layouts |= shapes
        # layouts repeat from client to client: each text is stored once
        texts = sorted(set(layouts.values()))
        facts = {
            "format": FORMAT,
            "round": self.round,
            "fingerprint": fingerprint,
            "clients": sorted(self.clients),
            "layouts": texts,
            "layout_of": {name: texts.index(text) for name, text in layouts.items()},
            "checksum": _checksum(arrays),
        }
        # one entry: safetensors writes several in an order that changes from process to process
        metadata = {"fedkeel": json.dumps(facts, sort_keys=True)}
        write_whole(path, lambda temporary: save_file(arrays, temporary, metadata))

    @staticmethod
    def load(path: Path, device: torch.device | str = "cpu") -> Checkpoint:
        """Raises Damaged when anything in the file does not hold together."""
        try:
            with safe_open(path, framework="np") as file:
                facts = json.loads((file.metadata() or {})["fedkeel"])
                arrays = {name: file.get_tensor(name) for name in file.keys()}
            if _checksum(arrays) != facts["checksum"]:
                raise Damaged(f"{path.name} does not match its checksum")
            layouts = {name: Layout.loads(facts["layouts"][i]) for name, i in facts["layout_of"].items()}
            tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
            model = {n.removeprefix("model/"): t for n, t in tensors.items() if n.startswith("model/")}
            server: State = {"params": Tree.of(model, layouts["params"])}
            clients: dict[int, State] = {client: {} for client in facts["clients"]}
            for name, tensor in tensors.items():
                slot = Tree(tensor, layouts[name]) if name in layouts else tensor
                whose, _, rest = name.partition("/")
                if whose == "server":
                    server[rest] = slot
                elif whose == "client":
                    client, _, slot_name = rest.partition("/")
                    clients[int(client)][slot_name] = slot
            return Checkpoint(facts["round"], server, clients)
        except (OSError, SafetensorError, KeyError, ValueError, IndexError, json.JSONDecodeError) as error:
            raise Damaged(f"{path.name}: {error}") from error


def _checksum(arrays: Mapping[str, np.ndarray[Any, Any]]) -> int:
    total = 0
    for name in sorted(arrays):
        total = zlib.crc32(name.encode(), total)
        total = zlib.crc32(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data, total)
    return total


def names(folder: Path) -> list[Path]:
    """The checkpoints of a folder, newest first."""
    return sorted(folder.glob("[0-9]*.safetensors"), reverse=True)


def prune(folder: Path) -> None:
    for old in names(folder)[KEPT:]:
        old.unlink(missing_ok=True)
    for half in folder.glob(".*.partial"):
        half.unlink(missing_ok=True)


def newest(folder: Path, device: torch.device | str = "cpu") -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, and what is wrong with newer ones. None when there has never been one."""
    wrong: list[str] = []
    for path in names(folder):
        try:
            return Checkpoint.load(path, device), wrong
        except Damaged as error:
            wrong.append(str(error))
    if wrong:
        raise FolderError(
            f"no checkpoint in {folder} can be read: {'; '.join(wrong)}",
            "restore one from a copy, or start again in another folder; nothing was changed here",
        )
    return None, wrong
