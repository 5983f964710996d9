"""The pickles in which CIFAR is published: arrays, texts, numbers and plain containers, and nothing else.

No name in a pickle is imported, and numpy builds nothing from it: arrays and their types are read by the two classes
below. A pickle is checked before it is loaded: one small file could otherwise ask for any amount of memory.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.storage.archives import reading
from fedkeel.errors import DataError

OPERATIONS = 1_000_000
"""The most that a pickle may be made of: CIFAR-100 needs 300 000 for its names and labels."""
FAULTS = (
    pickle.UnpicklingError, EOFError, ValueError, TypeError, IndexError, KeyError, AttributeError, MemoryError,
    OverflowError, RecursionError,
)  # fmt: skip
ONLY = "only the published CIFAR pickles are read; the binary form works too"


class PlainType:
    """The type of an array: numbers or bytes."""

    def __init__(self, text: Any, *flags: Any):
        self.text = text.decode("latin1") if isinstance(text, bytes) else str(text)
        if not re.fullmatch(r"[biuf?]\d{0,2}", self.text):
            raise DataError(f"the pickle holds an array of {self.text[:40]!r}, not of numbers", hint=ONLY)

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        if any(part is not None for part in state[2:5]) or order not in ("|", "<", ">", "="):
            raise DataError("the pickle holds an array of records, not of numbers", hint=ONLY)
        self.text = f"{order}{self.text}"


class PlainArray:
    """An array, made of the bytes that the pickle holds."""

    array: NDArray[Any] = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        shape, kind, fortran, content = state[-4:]
        if not isinstance(kind, PlainType) or not isinstance(content, bytes):
            raise DataError("the pickle holds an array of objects, not of numbers", hint=ONLY)
        dtype = np.dtype(kind.text)
        if not all(isinstance(n, int) and n >= 0 for n in shape) or math.prod(shape) * dtype.itemsize != len(content):
            raise ValueError(f"{len(content)} bytes for an array of {shape}")
        self.array = np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")


def reconstruct(kind: type, shape: Any, code: Any) -> PlainArray:
    """What numpy calls before it fills an array: an empty one, whatever size the pickle asks for."""
    return PlainArray()


def latin1(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes into a pickle of protocol 2."""
    if encoding != "latin1":
        raise DataError(f"the pickle encodes bytes as {encoding!r}, not latin1")
    return text.encode("latin1")


KNOWN = {
    ("numpy.core.multiarray", "_reconstruct"): reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): reconstruct,
    ("numpy", "ndarray"): PlainArray,
    ("numpy", "dtype"): PlainType,
    ("_codecs", "encode"): latin1,
}


class PlainUnpickler(pickle.Unpickler):
    """Arrays, bytes, strings, numbers and containers. Any other name in the pickle is refused, never imported."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in KNOWN:
            raise DataError(
                f"the pickle names {module}.{name}, which is neither an array nor a plain container", hint=ONLY
            )
        return KNOWN[module, name]


def check_pickle(name: str, content: bytes) -> None:
    """Refuse a pickle of too many parts, or one that numbers what it remembers beyond what it has made: the table of
    these is as long as the highest number."""
    for count, (operation, argument, _) in enumerate(pickletools.genops(content)):
        if count > OPERATIONS:
            raise DataError(f"{name} is a pickle of more than {OPERATIONS} parts", hint=ONLY)
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and not 0 <= int(argument or 0) <= count:
            raise DataError(f"{name} is a pickle that numbers its parts from {argument} on", hint=ONLY)


def read_pickle(name: str, content: bytes) -> Any:
    """Read what a pickle holds; its arrays are `PlainArray`."""
    with reading(name, *FAULTS):
        check_pickle(name, content)
        return PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
