"""The lock beside a run folder: one server at a time writes there, and nobody turns its run back meanwhile."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from fedkeel.core.states import beside
from fedkeel.errors import FolderError, RunError, explain_os_errors

log = logging.getLogger("fedkeel")

LOCK = "-server.lock"
PATIENCE = 60.0
"""Seconds: a server learns that its SuperLink has begun anew when it next asks it, 20 seconds later at the most."""


@contextlib.contextmanager
def hold_place(out: Path, *, wait: bool = True) -> Iterator[None]:
    """Within the block no other server writes beside `out`: of its two audit logs none would follow from the other.

    One that is about to end is waited for, where `wait` says so.
    """
    lock = FileLock(place := beside(out, LOCK), thread_local=False)
    with explain_os_errors(f"cannot write beside {out}", "let the server write there, then start it again", RunError):
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if not wait:
                raise FolderError(f"a server is running in {out}.", "stop it first: flwr stop") from None
            log.info("another server is running in %s: this one waits up to %.0f s for its end", out, PATIENCE)
            try:
                lock.acquire(timeout=PATIENCE)
            except Timeout:
                raise FolderError(f"another server is running in {out}.", "stop it, or choose another out") from None
    try:
        yield
    finally:
        lock.release()
