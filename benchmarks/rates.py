"""What a device reaches in a second: operations in products of large matrices, and bytes in copies."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch


def seconds(f: Callable[[], Any], times: int, device: str) -> float:
    """Measure the median of so many calls, each until the device has finished."""
    found = []
    for _ in range(times):
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        f()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def measure_products(device: str, dtype: torch.dtype = torch.bfloat16) -> float:
    """Measure operations a second."""
    size = 8192 if device == "cuda" else 256
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))

    def multiply() -> None:
        for _ in range(10):
            torch.mm(a, b)

    multiply()
    return 20 * size**3 / seconds(multiply, 5, device)


def measure_copies(device: str) -> float:
    """Measure bytes read and written a second."""
    x = torch.zeros(1 << 28 if device == "cuda" else 1 << 20, device=device)
    y = torch.empty_like(x)

    def copy() -> None:
        for _ in range(10):
            y.copy_(x)

    copy()
    return 20 * x.nbytes / seconds(copy, 5, device)
