"""What this machine has: devices, cores, memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import torch

from fedkeel.errors import RequestError
from fedkeel.randomness import list_gpus

ONEDNN = platform.machine() not in ("aarch64", "arm64")
"""Whether oneDNN convolves: on 64-bit ARM, PyTorch itself was 1.2 to 2.7 times as fast for the models here."""

CPU = torch.device("cpu")
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def read_precision(given: torch.dtype | str) -> torch.dtype:
    """Return the type of torch that is given, by itself or by its name; refuse one in which nothing is trained."""
    found = PRECISIONS.get(given) if isinstance(given, str) else given
    if found is None or found not in PRECISIONS.values():
        raise RequestError(f"dtype is a type of torch or its name, not {given!r}.", " or ".join(PRECISIONS))
    return found


def check_device(name: str) -> None:
    """Refuse the name of no device; `device_of` checks whether it is present."""
    with contextlib.suppress(RuntimeError, TypeError):
        if name == "auto" or torch.device(name).type in ("cpu", "cuda", "mps"):
            return
    raise RequestError(f"unknown device: {name}", "use auto, cpu, cuda or mps")


def check_workers(number: object) -> None:
    """Refuse a wrong number of processes; None is one per core."""
    if number is not None and not (isinstance(number, int) and not isinstance(number, bool) and 0 < number <= 1024):
        raise RequestError(f"workers must be at least 1 and at most 1024: {number}", "leave it out for one per core")


def device_of(name: str) -> torch.device:
    """Return the device of that name; `auto` is the GPU where there is one."""
    check_device(name)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if not there.get(device.type, False):
        raise RequestError(f"no such device here: {name}", "see `fedkeel doctor`")
    return device


def cores() -> int:
    """Count the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_pools() -> bool:
    """Whether processes can be kept from signals and waited for together; Windows does neither."""
    return hasattr(signal, "pthread_sigmask")


def processor() -> str:
    """Name the processor and the cores this process may use, on which seconds depend."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return f"{name}, {cores()} cores"


@contextlib.contextmanager
def delay_signals(once: bool = False) -> Iterator[None]:
    """Delay the signals that end a run until the block is done; but only `once`, so that a second one ends the block.

    Not by a mask: the system would hand them to another thread (a progress display has one), and Python to this one.
    """
    if threading.current_thread() is not threading.main_thread():  # which is the only one that signals interrupt
        yield
        return
    late: list[int] = []

    def note(number: int, _: object) -> None:
        late.append(number)
        if once and len(late) > 1:
            late.clear()
            restore()
            signal.raise_signal(number)

    def restore() -> None:
        for number, handler in old.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    old = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        restore()
        for caught in late:
            signal.raise_signal(caught)


UNKNOWN = 4 << 30  # bytes of memory where the system does not tell

OTHERS = 1 << 30  # bytes: a process's own context takes less


def used_by_others(device: torch.device) -> bool:
    """Whether another process works on the same GPU, judged by memory in use that is not ours."""
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device) > OTHERS


def free_memory() -> int:
    """Return the free memory of this machine in bytes, as the system estimates it."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    known = {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= getattr(os, "sysconf_names", {}).keys()
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2 if known else UNKNOWN


def keep_large_buffers() -> None:
    """Have glibc keep buffers over 32 MB, not map and unmap each: steps of large models are 2 to 3 times as fast."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD


def uses_onednn() -> bool:
    """Whether the convolutions of runs on this CPU are oneDNN's: where it is worth it and the caller left it on."""
    return ONEDNN and torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)


@contextlib.contextmanager
def steady(device: torch.device = CPU) -> Iterator[None]:
    """Use one thread, so that sums do not depend on the number of cores, and keep the caller's random generators.

    Tensors are made on the CPU unless a device is named, and can be trained, whatever the caller's defaults are. The
    caller's autocast does not reach into a run: the precision is the run's own choice.
    """
    elsewhere = torch.get_default_device().type != "cpu"
    threads, onednn = torch.get_num_threads(), torch.backends.mkldnn.enabled
    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = uses_onednn()  # type: ignore[assignment]
    try:
        with contextlib.ExitStack() as calm:
            calm.enter_context(torch.random.fork_rng(devices=list_gpus(device)))
            calm.enter_context(torch.inference_mode(False))
            for kind in {"cpu", device.type}:
                if torch.is_autocast_enabled(kind):
                    calm.enter_context(torch.autocast(kind, enabled=False))
            if elsewhere:  # it would slow every call of PyTorch down
                calm.enter_context(CPU)
            yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.mkldnn.enabled = onednn
