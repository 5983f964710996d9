"""Flower's SuperNode, whose process ends when the node does: `python -m fedkeel.federation.supernode ARGUMENTS`.

An error of the server's (500, when its database is locked for long) makes a SuperNode leave the federation. The thread
of its own port would keep its process alive for ever, and what watches the process would not start it again.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points

LEFT = 1
"""The exit code of a node that just returns: its work has no end, so something ended it."""


def call_program(program: Callable[[], object]) -> int:
    """Call a program as its command does, and return the exit code."""
    try:
        program()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else LEFT
    except BaseException:
        traceback.print_exc()
    return LEFT


def main() -> int:
    """Run the installed flower-supernode."""
    for program in entry_points(group="console_scripts", name="flower-supernode"):
        return call_program(program.load())
    sys.stderr.write('error: a node needs Flower.\nhint: pip install "fedkeel[flower]"\n')
    return 2


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # no thread is waited for
