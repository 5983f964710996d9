"""What this machine has."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator

import torch

from fedkeel.errors import RequestError


def device_of(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise RequestError(f"unknown device: {name}", "use auto, cpu, cuda or mps") from None
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if not there.get(device.type, False):
        raise RequestError(f"no such device here: {name}", "see `fedkeel doctor`")
    return device


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def steady() -> Iterator[None]:
    """One thread, and the caller's random numbers left alone: sums then do not depend on how many cores there are.

    On 64-bit ARM, oneDNN's convolutions are left out: PyTorch's own were 1.2 to 2.7 times as fast for the models here.
    """
    threads, onednn = torch.get_num_threads(), torch.backends.mkldnn.enabled
    torch.set_num_threads(1)
    if platform.machine() in ("aarch64", "arm64"):
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.mkldnn.enabled = onednn
