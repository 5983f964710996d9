"""States as Flower records: one array per slot. Its key is the layout of a tree, or empty for a plain tensor.

What arrives is read by this module alone. Nothing is unpickled, and nothing is allocated before names, layouts, types
and lengths are known to be the expected ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from fedkeel.core.rule import State
from fedkeel.core.trees import Tree

HEADER = 1024  # bytes: more than numpy ever writes before the numbers of a plain array
MAGIC = b"\x93NUMPY\x01\x00"  # how every file of numpy's format 1.0 begins; two bytes follow, the header's length
NEVER = 0
"""The digest of the state of a client that has never taken part."""


class Refused(Exception):
    """Something received that is not what was asked for; the message says why."""


def pack(state: State, prefix: str) -> dict[str, ArrayRecord]:
    """Turn the slots of a state into records under a prefix."""
    packed = {}
    for name, slot in state.items():
        key, tensor = (slot.layout.dumps(), slot.buffer) if isinstance(slot, Tree) else ("", slot)
        packed[prefix + name] = ArrayRecord({key: Array(tensor.detach().cpu().contiguous().numpy())})
    return packed


def unpack(records: Mapping[str, Any], prefix: str, like: State) -> State:
    """Read the slots under a prefix; refuse names, layouts or types that differ from those of `like`."""
    received = {name.removeprefix(prefix): record for name, record in records.items() if name.startswith(prefix)}
    if missing := sorted(like.keys() - received.keys()):
        raise Refused(f"slot {missing[0]!r} is missing")
    if unknown := sorted(received.keys() - like.keys()):
        raise Refused(f"unknown slot {unknown[0][:40]!r}")
    return {name: _slot(name, received[name], slot) for name, slot in like.items()}


def _slot(name: str, record: Any, like: Tree | Tensor) -> Tree | Tensor:
    key, tensor = (like.layout.dumps(), like.buffer) if isinstance(like, Tree) else ("", like)
    if not isinstance(record, ArrayRecord) or list(record) != [key]:
        raise Refused(f"slot {name!r} does not have the names and shapes of the model")
    received = _numbers(name, record[key], tuple(tensor.shape), np.dtype(str(tensor.dtype).removeprefix("torch.")))
    received = received.to(tensor.device)
    return Tree(received, like.layout) if isinstance(like, Tree) else received


def _numbers(name: str, array: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
    """Read the numbers of an array in numpy's file format.

    Its header is compared with the only one that fits, and never parsed: numpy would evaluate it, with many ways to
    fail. Only how many spaces end it is left to the version of numpy that wrote it.
    """
    if array.stype != "numpy.ndarray":
        raise Refused(f"slot {name!r} is serialised as {str(array.stype)[:40]!r}")
    if tuple(array.shape) != shape or array.dtype != str(dtype):
        raise Refused(f"slot {name!r} is {str(array.dtype)[:20]} {tuple(array.shape)[:4]}, not {dtype} {shape}")
    count = int(np.prod(shape))
    if not count * dtype.itemsize < len(array.data) <= count * dtype.itemsize + HEADER:
        raise Refused(f"slot {name!r} has {len(array.data)} bytes for {count} numbers")
    begin = len(MAGIC) + 2 + int.from_bytes(array.data[len(MAGIC) : len(MAGIC) + 2], "little")
    wanted = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape}, }}"
    if array.data[: len(MAGIC)] != MAGIC or array.data[len(MAGIC) + 2 : begin].rstrip(b" \n") != wanted.encode():
        raise Refused(f"slot {name!r} has no readable header of {dtype} {shape}")
    if len(array.data) - begin != count * dtype.itemsize:
        raise Refused(f"slot {name!r} is cut short")
    return torch.from_numpy(np.frombuffer(array.data, dtype, count, begin).reshape(shape).copy())


def digest(state: State | None) -> int:
    """Compute which state this is: 63 bits of a hash over every name, layout and bit."""
    if state is None:
        return NEVER
    seen = hashlib.sha256()
    for name, slot in sorted(state.items()):
        tensor = slot.buffer if isinstance(slot, Tree) else slot
        where = slot.layout.dumps() if isinstance(slot, Tree) else ""
        seen.update(f"{name} {where} {tensor.dtype} {tuple(tensor.shape)}".encode())
        seen.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return int.from_bytes(seen.digest()[:8], "big") >> 1
