"""What a file in numpy's format states of its array, read without trust: also a damaged header is one kind of error."""

from __future__ import annotations

import math
from tokenize import TokenError
from typing import IO, Any

import numpy as np

FAULTS = (ValueError, TypeError, SyntaxError, OverflowError, RecursionError, MemoryError, TokenError, Warning)
"""What numpy raises on a damaged header; Warning where warnings are errors."""


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the shape, whether columns lie together, and the type; a ValueError if these are not of an array of numbers.

    Afterwards the file is at the first number.
    """
    try:
        major = np.lib.format.read_magic(file)[0]
        header = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = header(file)
    except FAULTS as error:
        raise ValueError(f"its header cannot be read: {error}") from error
    if dtype.hasobject or not dtype.itemsize or any(isinstance(size, bool) or size < 0 for size in shape):
        raise ValueError(f"it holds {dtype} of shape {shape}, not numbers")
    if math.prod(max(size, 1) for size in shape) * dtype.itemsize >= 1 << 63:
        raise ValueError(f"its header states the shape {shape}")
    return shape, fortran, dtype
