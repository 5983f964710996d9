"""Signals that end a command: an exception that leaves every block in order, so that checkpoints are written."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import PurePath
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
MOMENT = 0.01  # seconds
PACKAGES = {"site-packages", "dist-packages"}


class Stopped(BaseException):
    """The user (Ctrl-C) or the system (SIGTERM) wants the command to end; click would keep a KeyboardInterrupt."""

    def __init__(self, number: int):
        super().__init__(number)
        self.exit_code = 128 + number

    def __str__(self) -> str:
        return "interrupted" if self.exit_code == 130 else "terminated"


def leave_at_once() -> None:
    """From now on SIGINT and SIGTERM end the process with their exit code: before a command begins, and after it."""
    for number in SIGNALS:
        signal.signal(number, lambda came, _: os._exit(128 + came))
    atexit.register(ignore)  # the first to be registered is the last to be called


def ignore() -> None:
    """Ignore both signals: the work is done, and Python puts the system's handlers back while it shuts down."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def raise_in_main_thread(number: int) -> None:
    """Raise a signal; where the system can, so that it ends what the main thread waits for."""
    here = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and here is not None:
        signal.pthread_kill(here, number)
    else:
        signal.raise_signal(number)


def raise_in_a_moment(number: int) -> None:
    """Raise a signal again, soon."""
    threading.Timer(MOMENT, raise_in_main_thread, [number]).start()


def is_importing(frame: FrameType | None) -> bool:
    """Whether an installed package is being imported.

    Compiled code that imports may end the process where an exception comes out of it, or go on without what it was to
    import: PyTorch does both.
    """
    while frame is not None:
        caller = frame.f_back
        if frame.f_code.co_name == "<module>" and not PACKAGES.isdisjoint(PurePath(frame.f_code.co_filename).parts):
            if caller is not None and caller.f_globals.get("__name__") == "importlib._bootstrap":
                return True
        frame = caller
    return False


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """Within the block SIGINT and SIGTERM raise `Stopped`; while a package is imported, once that is done.

    Also in a process that a script started in the background, with SIGINT ignored: stopping loses nothing.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        if is_importing(frame):
            raise_in_a_moment(number)
        else:
            raise Stopped(number)

    def stop_later(lost: sys.UnraisableHookArgs) -> None:
        if isinstance(lost.exc_value, Stopped):  # raised where Python drops exceptions, in a __del__ for example
            raise_in_a_moment(lost.exc_value.exit_code - 128)
        else:
            hook(lost)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, hook = {number: signal.getsignal(number) for number in SIGNALS}, sys.unraisablehook
    try:
        sys.unraisablehook = stop_later
        for number in SIGNALS:
            signal.signal(number, stop)
        yield
    except RuntimeError as error:
        if isinstance(error.__cause__, Stopped):  # up to Python 3.11, what is raised while a class is made comes so
            raise error.__cause__ from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook
